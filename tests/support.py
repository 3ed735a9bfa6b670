"""Helpers of the tests: frameworks and modes, slow cases, arrays of any framework, assertions, processes."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from trees import STATELESS, first, least

import gradxform as gx
from gradxform.backend import lookup
from gradxform.proof import cases, parity
from gradxform.proof.conformance import right_numbers
from gradxform.proof.judge import judge
from gradxform.proof.registry import Row
from gradxform.proof.ulp import apart, budget
from gradxform.testing import max_ulp

assert_right = right_numbers
"""Assert that all runs of a group of `proof.cases` are within the budget of the reference."""
shared_group, shared_mixed = functools.cache(cases.ordinary_and_hard), functools.cache(cases.mixed)
"""Groups of `proof.cases` that frameworks and modes share in a process, so that their reference is computed once."""


@functools.cache
def shared_pairs(row: Row, *dtypes: str) -> cases.Group:
    """The same for two leaves, which may be of two dtypes; of more, three leaves of the first beside such pairs."""
    if len(dtypes) <= 2:
        return cases.ordinary_and_hard(row, "+".join(dtypes), like=least(*dtypes))
    pairs = [shared_group(row, dtypes[0]).runs]
    pairs += [shared_pairs(row, *dtypes[i : i + 2]).runs for i in range(1, len(dtypes), 2)]
    runs = {}
    for name in dict.fromkeys(itertools.chain(*pairs)):  # dtypes that do not hold an edge case have zeros
        names = name, name.removesuffix(", the leaves turned"), "zeros"
        steps, params = zip(*(pair[next(filter(pair.get, names))] for pair in pairs), strict=True)
        runs[name] = cases.Run(list(map(list, zip(*steps, strict=True))), list(params))
    return cases.Group("+".join(dtypes), "small", runs)


ROOT = Path(__file__).parent.parent
FRAMEWORKS = lookup.installed()
MODES = [(name, mode) for name in FRAMEWORKS for mode in ("eager", "compiled") if (name, mode) != ("numpy", "compiled")]
MOST = [where for where in MODES if where != ("torch", "compiled")]
"""Without inductor, which takes seconds for each function; test_table.py compiles the same formulas there."""
EVERYWHERE = [*FRAMEWORKS, *(name for name in ("mlx",) if importlib.util.find_spec(name))]
"""With MLX, whose rows of the table are in test_backend_conformance.py."""
EVERY_MODE = [*MODES, *((name, mode) for name in EVERYWHERE[len(FRAMEWORKS) :] for mode in ("eager", "compiled"))]
INF, NAN = float("inf"), float("nan")
MIGRATED_FROM = ("tensorflow", "keras", "torch", "optax")
"""The pages of docs/migrating whose code test_migration.py runs."""
OTHERS = ("norm=", "scale", "freeze", "partition", "normalize", "clip_norm(0.0)")
NORM_CLIPS = [row for row in STATELESS if "norm" in row.expression and not any(w in row.expression for w in OTHERS)]
"""Rows that return gradients within their limits bit-identically."""

STATEFUL = {
    "accumulate": gx.accumulate(gx.trace(0.5), 2),
    "add_noise": gx.add_noise(0.1, 3),
    "clip_adagc, per leaf": gx.clip_adagc(1.1, 0.5, warmup=1, max_norm=3.0),
    "clip_percentile": gx.clip_percentile(50.0, 3),
    "clip_percentile, per leaf": gx.clip_percentile(50.0, 3, per_leaf=True),
    "clip_spikes": gx.clip_spikes(1.5, 0.5, warmup=1),
    "clip_zscore": gx.clip_zscore(1.0, 0.9, 2),
    "clip_zscore, per leaf": gx.clip_zscore(1.0, 0.9, 2, per_leaf=True),
    "ema": gx.ema(0.5),
    "ema, a schedule": gx.ema(lambda t: 0.5 / (1.0 + t)),
    "error_feedback": gx.error_feedback(gx.trace(0.5)),
    "grokfast": gx.grokfast(0.5),
    "mars": gx.mars(0.5, 0.5, max_norm=5.0),
    "measure": gx.measure(gx.clip_norm(1.0)),
    "normalize_neurons": gx.masked(gx.normalize_neurons(0.5), lambda path, leaf: len(leaf.shape) > 1),
    "schedule": gx.scale_by_schedule(lambda t: 1.0 / (1.0 + t)),
    "skip_large": gx.skip_large(gx.trace(0.5), 5.0),
    "skip_nonfinite": gx.skip_nonfinite(gx.ema(0.5), 2),
    "skip_spikes": gx.skip_spikes(gx.trace(0.5), 0.5, 4),
    "trace": gx.trace(0.5),
}
"""Every stateful transform."""

# --- why cases are slow
INDUCTOR = "torch.compile takes seconds for each function; eager mode, and each transform compiled once, stay quick"
XLA = "XLA takes seconds for each function; the other frameworks, and simpler functions, stay quick"
PEERS = "compiles other libraries' functions as well; in JAX, each formula of a global norm stays quick"
PROCESSES = "starts Python processes that import a framework each"
TRAINS = "trains a network"
PAGES = "trains, compiles in several frameworks, or runs another library's long example"
SESSION = "builds a large TF1 graph; smaller ones, and tf.function, stay quick"
EAGER = "in eager mode JAX compiles each operation by itself; NumPy, PyTorch and jit stay quick"
MILLION = "compiles for a million elements; NumPy, PyTorch, jit and eager TensorFlow stay quick"
TRACES = "TensorFlow takes a second to compile each; tests of the table, NaN among them, stay quick under tf.function"
GRAPHS = "TensorFlow takes seconds to trace each; other functions under tf.function, and jit, stay quick"
PLAIN = "the table compiled once more; with its fast paths, and without them in eager mode, it stays quick"
FAKE = "PyTorch takes seconds for hundreds of tensors without memory; a clip, a chain and a state stay quick"
OPERATIONS = "calls a library of pure Python for each operation; plain transforms stay quick"
CHAINS = "compiles a random chain in three frameworks; two others stay quick"
RUNS = "two training runs for each; a third of the faults, and clean pairs of each network and optimizer, stay quick"
DTYPES_ALIKE = "the same kernels in another dtype, of which the table has each transform; one dtype stays quick"
FUSED = "MLX hands each fused loop to a C++ compiler"
LARGE = "reads tens of millions of elements several times"


def slow(reason: str, where: Callable[..., bool] | None = None, **parameters: Any) -> pytest.MarkDecorator:
    """Leave cases of a test to `make test-slow`: all, or those with these parameters, or those that `where` chooses.

    A parameter is a value, its text, or a tuple of either. `where` takes parameters of the test by name. Several marks
    add up; a mark that no case matches is an error.
    """
    return pytest.mark.slow_case(reason, where, parameters)


by_inductor = slow(INDUCTOR, framework="torch", mode="compiled")


def by_graph(test: Any) -> Any:
    """The same, but inductor generates no code: what torch.compile traced is run by the operations of eager mode."""
    return by_inductor(pytest.mark.usefixtures("graph_alone")(test))


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def is_slow_case(mark: pytest.Mark, given: dict[str, Any]) -> bool:
    """Whether a test with the given parameters is one of the cases of a mark."""
    _, where, parameters = mark.args
    for name, wanted in parameters.items():
        if not any(given[name] is value or str(given[name]) == str(value) for value in _tuple(wanted)):
            return False
    return where is None or where(**{name: given[name] for name in inspect.signature(where).parameters})


def built(expression: str) -> gx.GradientTransformation:
    """Build a transform from an expression of the registry, which may contain a lambda."""
    return eval(expression, vars(gx))


def f16(*values: float) -> Any:
    """Make a float16 vector."""
    return np.array(values, np.float16)


def f32(*values: float) -> Any:
    """Make a float32 vector."""
    return np.array(values, np.float32)


def tensors(framework: str, tree: Any) -> Any:
    """Convert the leaves of a tree from NumPy arrays to a framework's."""
    return optree.tree_map(lookup.backend(framework).from_numpy, tree)


def array(leaf: Any) -> Any:
    """Convert an array of any framework to NumPy's."""
    backend = lookup.owner(leaf)
    found = np.asarray(leaf) if backend is None else backend.to_numpy(leaf)
    assert found.dtype != object, f"{type(leaf).__name__} is not an array"
    return found


def arrays(tree: Any) -> list[Any]:
    """Convert the leaves of a tree to NumPy arrays, without None."""
    return list(map(array, optree.tree_leaves(tree)))


def in_mode(framework: str, mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, compiled if the mode requires it."""
    found = function if mode == "eager" else lookup.backend(framework).compile(function)
    assert found is not None, f"{framework} has no compiler"
    return found


def without_generated_code(patch: pytest.MonkeyPatch) -> None:
    """Let torch.compile trace the whole graph as usual, and run it by the operations of eager mode."""
    import torch

    patch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def traced(
    framework: str, function: Callable[..., Any], calls: Iterable[Any], static: tuple[int, ...] = ()
) -> tuple[int, list[Any]]:
    """How often a compiled function is traced for some arguments, and its results; JAX is told what is no array."""
    traces: list[int] = []

    def noted(*given: Any) -> Any:
        traces.append(1)
        return function(*given)

    def backend(graph: Any, _: Any) -> Any:  # torch.compile repeats the side effects of what it traced
        traces.append(1)
        return graph.forward

    if framework == "torch":
        import torch

        torch.compiler.reset()
        run = torch.compile(function, backend=backend, fullgraph=True)
    elif framework == "jax":
        import jax

        run = jax.jit(noted, static_argnums=static)
    else:
        run = in_mode(framework, "compiled", noted)
    results = [run(*given) for given in calls]
    return len(traces), results


def call(framework: str, mode: str, function: Callable[..., Any], *trees: Any) -> Any:
    """Convert trees of NumPy arrays to a framework's arrays and call a function with them."""
    return in_mode(framework, mode, function)(*(tensors(framework, tree) for tree in trees))


def _pairs(found: Any, wanted: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield path and NumPy arrays of each pair of leaves; plain numbers take the dtype of the result."""
    leaves, structure = optree.tree_flatten(found)
    for path, new, old in zip(structure.paths(), leaves, structure.flatten_up_to(wanted), strict=True):
        got = array(new)
        yield path, got, array(old) if hasattr(old, "dtype") else np.asarray(old, got.dtype)


def bits(tree: Any) -> Any:
    """Replace each leaf with its dtype, shape and bits, for comparison."""

    def of(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
        found = array(leaf)
        return found.dtype.name, found.shape, found.tobytes()

    return optree.tree_map(of, tree)


def assert_bits(found: Any, wanted: Any) -> None:
    """Assert that two trees have the same structure, and their leaves the same dtypes, shapes and bits."""
    assert optree.tree_structure(found) == optree.tree_structure(wanted)
    for path, got, right in _pairs(found, wanted):
        assert bits(got) == bits(right), (path, got, right)


def assert_ulp(found: Any, wanted: Any, ulp: float = 2, what: Any = "") -> None:
    """Assert that two trees agree within some ULP, half precision within 1, float64 within 16; 0 has signs of zero."""
    for path, got, right in _pairs(found, wanted):
        assert max_ulp(got, right) <= budget(right.dtype, ulp), (what, path, got, right)
        signs = [np.signbit(np.stack([x.real, x.imag]).astype(np.float64)) for x in (got, right)]
        assert ulp or np.all(np.isnan(right) | (signs[0] == signs[1])), (what, path, got, right)


def assert_sums(found: Any, wanted: Any, term: Any, further: float = 0, times: float = 1, what: Any = "") -> None:
    """Assert that sums of arrays are within their budget: ULP of the largest term, which is given in the same tree.

    `further`: the ULP that steps of a sum add; `times`: 2 between two frameworks.
    """
    for (path, got, right), size in zip(_pairs(found, wanted), arrays(term), strict=True):
        allowed = times * (budget(right.dtype, 2, True) + further)
        distance = apart(got, right, np.abs(np.broadcast_to(size, right.shape)).astype(np.float64))
        assert np.all(distance <= allowed), (what, path, float(distance.max()), got, right)


def furthest(found: Any, wanted: Any, expression: str = "") -> float:
    """The largest distance of two lists of arrays in ULP; of the largest number, if a transform sums or multiplies."""
    both = [(np.asarray(array(a)), np.asarray(array(b))) for a, b in zip(found, wanted, strict=True)]
    sizes = [np.abs(b)[np.isfinite(b)].max(initial=0.0) for _, b in both]
    sums = Row(expression).sums or "orthogonalize" in expression  # whose budget is for the norm of a matrix
    term = float(max(sizes, default=0.0)) if sums else 0.0
    full = [np.full(b.shape, term * (1 + 1j) if b.dtype.kind == "c" else term) for _, b in both]
    return max((float(apart(a, b, t).max(initial=0.0)) for (a, b), t in zip(both, full, strict=True)), default=0.0)


def assert_expected(found: Any, wanted: parity.Expected, what: Any = "") -> None:
    """Assert that leaves by path are within the budget of the reference."""
    verdict = judge(found, wanted, "numpy", Row("the reference's"))
    assert not (verdict.over or verdict.wrong), (what, verdict)


def assert_close(found: Any, wanted: Any, rtol: float = 0.0, atol: float = 4 * 2.0**-23) -> None:
    """Assert that two trees of finite numbers agree to a tolerance, by default 4 ULP of float32 at one."""
    assert optree.tree_structure(found) == optree.tree_structure(wanted)
    for path, got, right in _pairs(found, wanted):
        assert np.isfinite(got).all(), path
        np.testing.assert_allclose(got, right, rtol=rtol, atol=atol, err_msg=str(path))


def each_transform_once(given: Sequence[Row], reason: str) -> list[Any]:
    """Rows as parameters; only the first row of each transform is quick."""
    slow = (pytest.mark.slow(reason=reason),)
    return [pytest.param(row, marks=() if row in first() else slow, id=str(row)) for row in given]


def without_addresses(value: Any) -> str:
    """Return a repr that is the same in every process, for test ids."""
    return re.sub(r" at 0x\w+", "", repr(value))


def environment(**variables: str) -> dict[str, str]:
    """Return the environment for a process that imports the package, its backends and the tests."""
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "backends", "tests"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": path, **variables}


def python(*arguments: str | Path, check: bool = True, cwd: Path = ROOT, **variables: str) -> Any:
    """Run Python in a process, and assert that it succeeds."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment(**variables), capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done


def rows(page: str, header: str) -> list[list[str]]:
    """Return the cells of the page's table with a given header (with or without outer bars)."""
    line = header if header.startswith("|") else f"| {header} |"
    found = re.search(rf"^{re.escape(line)}\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, header
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def parameter(gradient: Any, dtype: Any = None) -> Any:
    """Make a PyTorch parameter of zeros with a gradient."""
    import torch

    gradient = None if gradient is None else torch.as_tensor(gradient, dtype=dtype)
    made = torch.nn.Parameter(torch.zeros(2) if gradient is None else torch.zeros(gradient.shape, dtype=gradient.dtype))
    made.grad = gradient
    return made


def one_sentence(message: str, *words: str) -> None:
    """Assert that a message is one sentence on one line, has at most 250 characters, and contains all these words."""
    for word in words:
        assert word in message, message
    assert len(message) <= 250, message
    assert "\n" not in message and not re.search(r"[.!?] +[A-Z]", message), message


CODE = re.compile(
    r"(?<![\w.'\"([{/=])(?:[a-z_]+(?:, [a-z_]+)* = )?(?:([a-z]+)[\w.]*\(|\[(?=[a-z]+ for )|\{(?=[a-z.]+: ))"
)


def run_advice(message: str, names: Callable[[], dict[str, Any]]) -> list[str]:
    """Run each call and comprehension that a message says to write, and return them.

    Left out: signatures, code with an ellipsis, of another framework's adapter, or which begins with no known name.
    """
    ran = []
    for start in CODE.finditer(message):
        rest, own = message[start.end() - 1 :] + " ", names()
        opened = itertools.accumulate((c in "([{") - (c in ")]}") for c in rest)
        end = next((i for i, deep in enumerate(opened, 1) if not deep and rest[i : i + 1] != "("), 0)
        code = message[start.start() : start.end() - 1] + rest[:end]
        adapter = re.search(r"gx\.(jax|keras|mlx|numpy|tensorflow|torch)\.", code)
        known = start[1] in (None, "list", *own) and (adapter is None or adapter[1] in own)
        if known and "..." not in code and " *, " not in code:
            exec(code, own)
            ran.append(code)
    return ran
