"""Orthogonalize matrices, as Muon does with its momentum, and balance their rows, as NorMuon does afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradxform.core import align
from gradxform.core.arguments import Scalar, number, places, static, unit_interval
from gradxform.core.factory import factory
from gradxform.core.leaves import put
from gradxform.core.norm import Norm
from gradxform.core.state import shares
from gradxform.core.transform import Context, GradientTransformation, stateful, stateless
from gradxform.core.tree import Tree
from gradxform.numerics import Array, formulas, matrices
from gradxform.numerics.matrices import newton_schulz
from gradxform.transforms import units
from gradxform.transforms.across import check_whole

Polynomial = tuple[float, float, float]
_JORDAN = ((3.4445, -4.7750, 2.0315),)
_AMSEL = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
_SAFETY = (1.01**2, *[1.01] * 6, 1.0)
"""Algorithm 1 divides singular values by 1.01 before each step but the last, and once more by 1.01 at the start."""
KNOWN: dict[str, tuple[Polynomial, ...]] = {
    "jordan": _JORDAN,
    "polar_express": tuple((a / s, b / s**3, c / s**5) for (a, b, c), s in zip(_AMSEL, _SAFETY, strict=True)),
}
"""The known coefficients of a x + b x^3 + c x^5, one polynomial per step; the last one is repeated."""
SCALES: dict[str | None, Callable[[float, float], float]] = {
    None: lambda inputs, outputs: 1.0,
    "shape": lambda inputs, outputs: math.sqrt(max(1.0, outputs / max(inputs, 1))),
    "rms": lambda inputs, outputs: 0.2 * math.sqrt(max(inputs, outputs)),
}
_DTYPES = (None, "float32", "bfloat16", "float16")
_EPSILONS = {None: 0.0, "torch": 1e-7, "keras": 1e-7, "mlx": 1e-7, "optax": 1e-8}
"""What guards the division by the norm: PyTorch's least norm, and what the others add to it."""


@factory(steps=places)
def orthogonalize(
    steps: int = 5,
    coefficients: Any = "jordan",
    *,
    scale: str | None = "shape",
    axes: Any = None,
    dtype: str | None = None,
    like: str | None = None,
) -> GradientTransformation:
    r"""Bring the singular values of each matrix near one by Newton-Schulz iteration: Muon's step.

    Each matrix X is divided by its Frobenius norm. Then `steps` times ``X = a X + (b A + c A A) X`` with ``A = X X^T``:

    .. math:: X \leftarrow a X + b X X^\top X + c (X X^\top)^2 X, \quad X_0 = G / \lVert G \rVert_F

    Singular vectors stay; each singular value s becomes ``a s + b s^3 + c s^5`` per step. With the defaults, values
    above 0.01 of the norm end between 0.6 and 1.25. With momentum before it, ``chain(trace(0.95, nesterov=True),
    orthogonalize())``, it is Muon.

    The factors of earlier `scale` or clips cancel, except for their sign. A zero matrix stays zero; a matrix with a NaN
    or infinite element becomes NaN. Products are in float32 or wider, and frameworks sum them in different orders: they
    agree to rounding of matrix products, not to the bit.

    Args:
        steps: Number of iterations, at least 1.
        coefficients: "jordan" (3.4445, -4.7750, 2.0315), "polar_express" (one polynomial per step, which converges to
            one), three numbers (a, b, c), or a tuple of them: one per step, the last one repeated.
        scale: Factor of the result. "shape": ``sqrt(max(1, outputs / inputs))``. "rms":
            ``0.2 * sqrt(max(inputs, outputs))``, for the step size of AdamW. None: 1.
        axes: Input axes of the matrix, as in `clip_adaptive`: "torch" (all but the first), "keras" (all but the last:
            Keras, Flax, Haiku), a tuple, a mapping from a path glob to one, or a function of path and leaf. A pair
            ``((inputs), (outputs))`` leaves other axes, which stack matrices. Default: rows are outputs, as in PyTorch;
            required for gradients with more than two axes.
        dtype: Dtype of the products: "float32", "bfloat16" (as PyTorch's Muon), "float16". Default: float32, or float64
            for float64 gradients.
        like: Library whose small number guards the division by the norm: "torch" (1e-7 as the least norm), "keras" and
            "mlx" (1e-7 is added), "optax" (1e-8 is added). Default: none, gradients of any magnitude are exact.

    Returns:
        A stateless transform for gradients with at least two axes and real floating dtype.

    Raises:
        TypeError: `steps` is not an int, or `coefficients` are not numbers. On use: a gradient is complex or integer.
        ValueError: `steps` is below 1; `coefficients`, `scale`, `dtype` or `like` is unknown. On use: a gradient is a
            vector or a number, or its axes are unknown; the matrix is split by ``across(..., split="leaves")``. The
            message gives the path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> gradient = np.array([[3.0, 0.0], [0.0, 0.4]])
        >>> gx.orthogonalize()([gradient])[0].round(2)
        array([[0.71, 0.  ],
               [0.  , 0.69]])
        >>> gx.orthogonalize(10, "polar_express", scale=None)([gradient])[0].round(4)
        array([[1., 0.],
               [0., 1.]])

    References:
        Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024;
        Amsel, Persson, Musco and Gower, The Polar Express, 2025 (`"polar_express"`);
        Liu et al., Muon is scalable for LLM training, 2025 (`scale="rms"`).
    """
    each = polynomials(coefficients, steps)
    over = units.check("orthogonalize", axes, pairs=True)
    for name, value, known in (("scale", scale, SCALES), ("dtype", dtype, _DTYPES), ("like", like, _EPSILONS)):
        if not (value is None or isinstance(value, str)) or value not in known:
            raise ValueError(f"orthogonalize: {name} must be one of {', '.join(map(repr, known))}, got {value!r}")

    def orthogonal(g: Tree) -> Tree:
        g.check_real("orthogonalize", "the iteration is for real matrices")
        if not g.chosen:
            return g
        g = g.dense()
        sides = units.sides("orthogonalize", over, g)
        check_whole(g, "orthogonalize", "not the matrix")
        unit, sizes = _normalized(g, sides, like), _sizes(g, sides, SCALES[scale])
        for size in dict.fromkeys(sizes):
            own = [place for place, each_size in enumerate(sizes) if each_size == size]
            last = tuple(size * part for part in each[-1])
            some, over_them = [unit[place] for place in own], [sides[place] for place in own]
            made = g.backend.of_matrices(newton_schulz, some, over_them, dtype, coefficients=(*each[:-1], last))
            unit = put(unit, own, made)
        return g.given(unit)

    return stateless(orthogonal)


def polynomials(given: Any, steps: int) -> tuple[Polynomial, ...]:
    """Return the coefficients of each step.

    Raises:
        TypeError: not numbers.
        ValueError: an unknown name, or not three numbers for a step.
    """
    found = KNOWN.get(given) if isinstance(given, str) else given
    if isinstance(found, (list, tuple)) and not any(isinstance(part, (list, tuple)) for part in found):
        found = (found,)
    if not isinstance(found, (list, tuple)) or not all(isinstance(p, (list, tuple)) and len(p) == 3 for p in found):
        forms = f"{', '.join(map(repr, KNOWN))}, three numbers (a, b, c), or a tuple of them, one per step"
        kind = ValueError if isinstance(given, (str, list, tuple)) else TypeError
        raise kind(f"orthogonalize: coefficients must be {forms}; got {given!r}")
    rows = [(_coefficient(a), _coefficient(b), _coefficient(c)) for a, b, c in found]
    return tuple((rows + rows[-1:] * steps)[:steps])


def _coefficient(given: Any) -> float:
    checked = number("orthogonalize", "a coefficient", given)
    if not static(checked) or not math.isfinite(checked):
        raise ValueError(f"orthogonalize: coefficients must be finite Python numbers, got {given!r}")
    return float(checked)


def _normalized(g: Tree, sides: Sequence[matrices.Sides], like: str | None) -> list[Array]:
    """Divide each active matrix by its norm; half precision becomes float32."""
    axes = [(*inputs, *outputs) for inputs, outputs in sides]

    def inverse(_: Any, norm: Norm) -> Array:
        return g.backend.compute(_inverse, norm.value, like=like)

    stacked = any(len(own) < len(g.leaves[i].shape) for i, own in zip(g.chosen, axes, strict=True))
    return (g.scaled_over(axes, 2.0, inverse) if stacked else g.scaled(inverse(None, g.norms()))).wide()


@formulas.by_number
def _inverse(xp: Any, norm: Array, *, like: str | None) -> Array:
    """1 / n, guarded as in a library."""
    eps = _EPSILONS[like]
    return formulas.inverse(xp, xp.where(norm < eps, eps, norm) if like == "torch" else norm + eps)


def _sizes(g: Tree, sides: Sequence[matrices.Sides], size: Callable[[float, float], float]) -> list[float]:
    """Return the factor of each active leaf, from the sizes of its matrices' sides."""
    counts = ([g.backend.count(g.leaves[i], side) for side in own] for i, own in zip(g.chosen, sides, strict=True))
    return [size(*pair) for pair in counts]


# --- the norms of neurons --------------------------------------------------------------------------------------------


class NeuronsState(NamedTuple):
    """State of `normalize_neurons`: the root of the moving average of each neuron's squared norm.

    In float32 or float64, with input axes of length one.
    """

    norms: Any


@factory(decay=unit_interval)
def normalize_neurons(decay: Scalar = 0.95, *, axes: Any = None) -> GradientTransformation:
    r"""Divide each neuron of a matrix by the root mean square of its last norms, and keep the matrix's norm.

    A neuron is one output of a matrix g, with all its inputs: :math:`g_u`. Its average becomes
    ``v = decay * v + (1 - decay) * norm(g_u) ** 2``, and the neuron ``g_u / sqrt(v)``, times one factor for all:

    .. math:: v_u \leftarrow d\,v_u + (1 - d) \lVert g_u \rVert^2, \quad
        g_u \leftarrow \frac{\lVert g \rVert}{\lVert h \rVert} h_u, \quad h_u = g_u / \sqrt{v_u}

    Place it after `orthogonalize`, with the same `axes`: this is NorMuon, and the factor of `scale` stays. With
    ``scale="rms"``, the root mean square of the elements is near the paper's 0.2. Averages start at zero. Means in
    place of sums of squares, or averages without the bias of their start, give the same, since the norm is kept. The
    paper and the authors' code also add a small number to the root. Here the magnitude does not matter, unless
    norms of a matrix and their averages are 1e300 times apart. A matrix with a NaN or infinite element becomes NaN; a
    norm that is not finite leaves its average unchanged.

    Args:
        decay: Weight d of the old average, from 0 to 1: a number, a 0-d array or a schedule. Zero: all neurons get one
            norm.
        axes: Input axes of the matrix, as in `orthogonalize`. Default: rows are outputs, as in PyTorch; required for
            gradients with more than two axes.

    Returns:
        A transform for gradients with at least two axes and real floating dtype. Its state has one number per neuron,
        in float32 (float64 for float64 gradients).

    Raises:
        TypeError: `decay` is not a number. On use: a gradient is complex or integer; the message gives its path.
        ValueError: `decay` is outside [0, 1]. On use, and in `init`: a gradient is a vector or a number, or its axes
            are unknown. On use: the matrix is split by ``across(..., split="leaves")``. The message gives the path.

    Example:
        >>> import numpy as np
        >>> import gradxform as gx
        >>> tx = gx.normalize_neurons()
        >>> gradient = np.array([[3.0, 0.0], [0.0, 0.4]])
        >>> updates, state = tx.update([gradient], tx.init([gradient]))
        >>> updates[0].round(2)  # at first, all neurons have one norm
        array([[2.14, 0.  ],
               [0.  , 2.14]])

    References:
        Li, Liu, Liang, Chen and Zhao, NorMuon: making Muon more efficient and scalable, 2025; the norm is kept as in
        the authors' code.
    """
    over = units.check("normalize_neurons", axes, pairs=True)

    def inputs_of(g: Tree) -> list[tuple[int, ...]]:
        return [inputs for inputs, _ in units.sides("normalize_neurons", over, g)]

    def rule(g: Tree, state: NeuronsState, _: Context) -> tuple[Tree, NeuronsState]:
        g.check_real("normalize_neurons", "the factors are for real matrices")
        if not g.chosen:
            return g, state
        g, weights, backend = g.dense(), shares(g, decay), g.backend
        inputs, outputs = zip(*units.sides("normalize_neurons", over, g), strict=True)
        check_whole(g, "normalize_neurons", "not the matrix")
        leaves = [g.leaves[i] for i in g.chosen]
        found, averages = align.of_state(g, state.norms, "normalize_neurons: the averages", inputs)
        old = backend.alongside(found, leaves)
        new = backend.elementwise(_one, [old], ())

        def factor(places: Sequence[int], norm: Norm) -> Array:
            before, own, ones, along = ([row[p] for p in places] for row in (old, inputs, new, outputs))
            of, most = ([leaves[p] for p in places], own), float(np.finfo(backend.dtype(ones[0])).max)
            average, kept, divided = backend.compute(
                _average, norm.value, backend.norms_over(before, own, math.inf), *weights, most=most
            )
            new[:] = put(new, places, backend.multiply_over(ones, own, kept, [True] * len(places)))
            whole, rest = (backend.norms_over([x], along, 2.0, of) for x in (norm.value, divided))
            return backend.compute(_keeping, average, whole, rest)

        return g.scaled_over(inputs, 2.0, factor), NeuronsState(averages.replaced(g, new))

    return stateful(NeuronsState, rule, lambda fresh: NeuronsState(fresh.zeros(inputs_of)))


def _one(xp: Any, x: Array) -> Array:
    return xp.ones_like(x)


def _average(xp: Any, norm: Array, old: Array, share: Array, decay: Array, *, most: float) -> tuple[Array, ...]:
    """The root of the average with one more square, what of it the state holds, and the norm divided by it."""
    one = xp.materialize(xp.sqrt(share) * xp.where(xp.isfinite(norm), norm, old))
    other = xp.materialize(xp.sqrt(decay) * old)
    larger = xp.where(one > other, one, other)
    unit = xp.materialize(xp.where(larger > 0.0, larger, 1.0))
    total = xp.materialize((one / unit) ** 2 + (other / unit) ** 2)
    root = xp.materialize(formulas.safe_root(xp, total, 2) * unit)
    return root, xp.where(root < most, root, most), xp.materialize(_divided(xp, norm, root))


def _keeping(xp: Any, average: Array, whole: Array, rest: Array) -> Array:
    """The factors of neurons that keep their matrix's norm."""
    return _divided(xp, _divided(xp, whole, rest), average)


def _divided(xp: Any, x: Array, by: Array) -> Array:
    return x / xp.where(by > 0.0, by, 1.0)
