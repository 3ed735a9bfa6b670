"""The numbers that alignment, rounding and diagnosis decide by, each with its reason."""

from __future__ import annotations

# what belongs together
SAME_VALUES = 0.99  # cosine from which values are the same ones
LEAST_VALUES = 3  # elements below which equal values prove nothing
CHANCE = 1e-3  # pairs of random leaves, of all that are compared, that may be taken for equal by chance
HOW_SURE = {  # pairs, by how they were found: 0.95 leaves one of 20 to a fault, 0.4 is a guess
    "the map": 1.0,
    "equal paths": 1.0,
    "equal parameters": 0.99,
    "names": 0.95,
    "modules": 0.95,
    "equal gradients": 0.95,
    "equal parameters and order": 0.7,
    "shape alone": 0.4,
}
SURE = 0.9  # how sure a pair must be that something is said of its parameters; below it, it is named as doubtful

# what rounding explains
SUMS, LAYERS = 2.0**10, 2.0**5  # units in a gradient: of sums of thousands of rounded terms, else of tens of layers
CANCELLED = 8  # units, of the usual norm, below which a sum cancels in one run: the other may have rounded its terms
UNLIKE = 0.5  # part of the squares in common, below which two leaves have no direction in common
GROWTH = 48.0  # times larger at the next recorded step: a stable training triples it, another batch has it 16-fold
GROWN = 0.25  # power of the unit beyond which runs have parted, however slowly: a quarter of the digits is in common
CLOSE = 32  # units up to which numbers are the same computation: clean pairs of small networks differ by under ten
AMPLIFIED = 8.0  # times as far apart as gradients moves may be: Adam doubles it, a momentum of 0.9 leaves a quarter
COPIES = 64  # units that a copy of the parameters may be off, for instance by a cast

# what a cause must predict
BETTER = 8.0  # times nearer a prediction must be than a simpler one: rounding rarely gives three bits
EXACT = 1e-4  # how far the same values in another place may be apart: above float32's rounding, below a fault's
EXPLAINED, FACTOR_UNITS = 0.1, 16  # part of a difference, or units of float32, that a factor may leave
ALIKE = 2e-3  # how far factors of leaves may be apart that have one in common: another fault may be in them as well
WHOLE = 1e-3  # how far a factor may be from a whole number, and norms of one limit may be apart: float16 has as much
SAME_FACTOR = 0.1  # how far the ratios of norms of two trainings may be from a factor that goes on
CLIPPED = 1e-2  # how far norms must be apart so that they are no one limit
NEARER = 64.0  # times nearer a tree of another step must be: rounding leaves it thousands of times nearer
SHIFTS = 4  # steps by which recordings may be shifted, and steps that are compared then
PROVING, FEWEST = 3, 8  # elements below which a factor proves nothing, and below which two numbers prove nothing
OTHER_SEED = 0.5  # cosine below which two weights are no changed copies: of two seeds it is near 0

# what is seen without a cause
LARGE, DIRECTED = 64, 0.7  # elements from which a direction means something, and the cosine from which there is one
SMALL = 0.3  # relative difference up to which an epsilon or a constant may be the cause
UNRELATED = 0.97  # cosine of all gradients below which they point elsewhere: dropout of 0.1 leaves less

# what tells an optimizer
ROOM = 2.0**8  # units of its parameter that a move must have, so that the subtraction leaves half of float32's digits
CANCELS = 1e-2  # part of the usual gradient below which it is a sum that cancels, and which no clip by value is below
OPTIMIZER_ELEMENTS = 16  # elements below which nothing is said of an optimizer: twice as many as it has numbers
TELLING_UNITS = 8.0  # units of the parameters that a setting may be off before another number is added to it
SAME_RATE, SAME_DECAY, SAME_EPSILON = AMPLIFIED * 2.0**-14, 0.02, 0.1  # how far fitted numbers may be apart, relatively
SAME_RATIO = 0.02  # how far the ratios of most moves may be apart that are one learning rate times another
