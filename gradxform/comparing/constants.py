"""The numbers that the diagnosis decides by, each with its reason."""

from __future__ import annotations

BETTER = 8.0
"""How many times nearer a prediction must be to be preferred to a simpler one: rounding rarely gives three bits."""
CLOSE = 32
"""Units up to which numbers are the same computation: clean pairs of small networks differ by fewer than ten."""
AMPLIFIED = 8.0
"""How many times as far apart as gradients moves may be: Adam doubles it, a momentum of 0.9 leaves a quarter of one."""
ALIKE = 2e-3
"""How far the factors of leaves may be apart that have one factor in common: another fault may be in them as well."""
SAME_NORM = 1e-3
"""How far norms may be apart that are one limit: a clip divides by its norm plus 1e-6, or by a norm in float16."""
SAME_FACTOR = 0.1
"""How far the ratios of norms of two trainings may be from a factor that goes on."""
EXACT = 1e-4
"""How far values may be apart that are the same ones in another place: above float32's rounding, below a fault's."""
PROVING, FEWEST = 3, 8
"""Elements below which a factor that fits them proves nothing, and below which two numbers prove nothing."""
LARGE, DIRECTED = 64, 0.7
"""Elements of a leaf from which a direction means something, and the cosine from which there is one."""
NEAREST_STEP = 0.4
"""How much nearer the gradients of another step must be."""
COPIES = 64
"""Units that a copy of the parameters may be off, for instance by a cast."""
NEARER = 64.0
"""How many times nearer the parameters of another step must be: rounding leaves them thousands of times nearer."""
SHIFTS = 4
"""Steps by which recordings may be shifted, and steps that are compared then."""
SURE = 0.9
"""How sure a pair must be that something is said of its parameters; below it, the pair is named as doubtful."""
ROOM = 2.0**8
"""How many units of its parameter a move must have, so that the subtraction leaves half of float32's digits."""
OPTIMIZER_ELEMENTS = 16
"""Elements below which nothing is said of an optimizer: twice as many as it has numbers."""
TELLING_UNITS = 8.0
"""Units of the parameters that the best setting of an optimizer may be off before another number is added to it."""
