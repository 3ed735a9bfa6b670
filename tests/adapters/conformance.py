"""What every adapter does: cases over a small driver, with `update` on NumPy arrays and plain optimizers as the oracle.

A driver trains parameters, given by path, with one way to use gradxform; what it cannot do is declared in its class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import optree
import pytest
from support import STATEFUL, array, assert_sums, assert_ulp, bits
from trees import Momentum

import gradxform as gx
from gradxform.backend import lookup

Leaves = dict[str, Any]
SHAPES = {"body/b": (4,), "body/w": (2, 3), "head": (), "last": (3,)}
FROZEN = "body/*"
CHAIN = gx.chain(gx.clip_value(3.0), gx.clip_global_norm(2.0), gx.trace(0.5))


class Driver:
    """One way to train parameters; each instance is a run with an optimizer and, unless None, a transformation."""

    name: ClassVar[str]
    framework: ClassVar[str]
    on_updates: ClassVar[bool] = False
    stateful: ClassVar[bool] = True
    optimizers: ClassVar[Sequence[str]] = ("momentum", "adamw")
    """Besides "sgd", whose step subtracts the gradient."""
    none: ClassVar[bool] = True
    """Other leaves may lack gradients in each step."""
    empty: ClassVar[type[Exception] | None] = None
    """The error of a step whose gradients are all None; such a step does nothing if there is no error."""
    refuses_nothing: ClassVar[bool] = False
    """Gradients come in a container, which may be empty by mistake."""
    none_left: ClassVar[type[Exception] | None] = None
    """The error if all parameters have gradients and all are stopped."""
    sparse: ClassVar[bool] = False
    dtypes: ClassVar[Sequence[str]] = ("float16", "bfloat16", "float32")
    saves: ClassVar[bool] = True
    sets: ClassVar[bool] = True
    """The state can be replaced with NumPy's."""
    scales: ClassVar[Sequence[str]] = ()
    """Ways to scale the loss by 1024."""
    compiles_scaling: ClassVar[bool] = False
    skips: ClassVar[bool] = True
    """Steps can be left out."""
    losses: ClassVar[bool] = True
    """Steps take a loss."""
    checks_first: ClassVar[bool] = False
    """Patterns are checked before the first step."""
    by_identity: ClassVar[bool] = False
    has_paths: ClassVar[bool] = False
    transforms: ClassVar[Sequence[str] | None] = None
    """Only these, if the others take long to compile."""
    exact: ClassVar[bool] = True
    """No compiler fuses the optimizer's arithmetic."""

    def __init__(self, tx: Any, params: Leaves, optimizer: str = "sgd", **how: Any) -> None:
        """Start a run. `tx` may be a lambda of the variables.

        `how` has a pattern of what is `frozen`, a function `around` the transformation (and the optimizer if that is
        inside), and a way to `scale` the loss.
        """
        raise NotImplementedError

    def step(self, gradients: Leaves, **loss: Any) -> None:
        """Take a step with gradients before loss scaling; sparse ones are (rows, values); `value` may be its loss."""
        raise NotImplementedError

    def read(self) -> Leaves:
        """The parameters."""
        raise NotImplementedError

    def assign(self, params: Leaves) -> None:
        """Set the parameters."""
        raise NotImplementedError

    @property
    def handle(self) -> Any:
        """What has the state, for gx.metrics, gx.has_updated and gx.paths."""
        return self.state

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """Return NumPy's answer to a question about the handle."""
        return optree.tree_map(np.asarray, question(self.handle))

    @property
    def traces(self) -> int:
        """How often the step was traced."""
        return 1

    state: Any

    def flush(self, **loss: Any) -> None:
        """Apply what an unfinished window holds."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write parameters, state and the optimizer's state."""
        raise NotImplementedError

    def load(self, folder: Path) -> None:
        """Read them."""
        raise NotImplementedError


def assembled(tx: Any, variables: Any, how: dict[str, Any]) -> Any:
    """The transformation of a run whose optimizer is outside of it."""
    tx = tx(variables) if getattr(tx, "__name__", "") == "<lambda>" else tx
    tx = how["around"](gx.identity()) if "around" in how else tx
    return gx.chain(gx.freeze(how["frozen"]), tx) if "frozen" in how else tx


# --- parameters, gradients, and the oracle ---------------------------------------------------------------------------

ZEROS: Leaves = {path: np.zeros(shape, np.float32) for path, shape in SHAPES.items()}
ONES: Leaves = {path: np.ones(shape, np.float32) for path, shape in SHAPES.items()}
TABLES = gx.chain(gx.clip_zscore(1.0, 0.9, 2, per_leaf=True), gx.clip_percentile(50.0, 3, per_leaf=True))
NOWHERE = gx.masked(gx.chain(TABLES, gx.add_noise(0.1, 3), gx.accumulate(gx.trace(0.5), 2)), lambda path, leaf: False)
TRANSFORMS: dict[str, Any] = {
    "chain": gx.chain(gx.clip_norm(3.0), gx.clip_global_norm(2.0), gx.scale(-0.1)),
    "freeze": gx.chain(gx.freeze("body/b"), gx.clip_global_norm(1.0)),
    "parameters": gx.chain(gx.clip_adaptive(0.5, axes=()), gx.add_decayed_weights(0.5)),
    **STATEFUL,
    "masks": gx.masked(gx.chain(gx.clip_norm(3.0), gx.masked(gx.trace(0.5), "**/w")), "body/**"),
    "masks, freeze": gx.chain(gx.freeze("body/b"), gx.trace(0.5), gx.clip_global_norm(1.0)),
    "masks, accumulate": gx.measure(gx.masked(gx.accumulate(gx.identity(), 2), "**/w")),
    "masks, skip": gx.skip_nonfinite(gx.masked(gx.accumulate(gx.identity(), 2), "**/w")),
    "masks, nowhere": NOWHERE,
    "of a user": gx.chain(gx.clip_norm(2.0), Momentum(0.5)),
    "partition": gx.partition({"body/w": gx.ema(0.5), "head": gx.stop()}, default=gx.clip_norm(0.5)),
    "schedules": gx.chain(gx.trace(0.5, nesterov=True), gx.clip_norm(lambda t: 2.0 + t), gx.scale(lambda t: 0.5**t)),
    "several": gx.chain(gx.masked(gx.trace(0.9), "body/b"), gx.skip_nonfinite(gx.ema(0.9))),
}


def drawn(step: int, name: str = "", none: Sequence[str] = (), dtype: Any = np.float32) -> Leaves:
    """The gradients of a step, infinite in the second one for transforms that skip such steps."""
    rng = np.random.default_rng(step)
    found: Leaves = {path: np.asarray(rng.standard_normal(shape) * (1 + step), dtype) for path, shape in SHAPES.items()}
    if ("skip_nonfinite" in name or name == "several") and step == 1:
        found["body/w"][1, 1] = np.inf
    return found | dict.fromkeys(none)


def assert_equal(found: Any, wanted: Any, what: Any) -> None:
    """Assert that counters and flags are equal."""
    assert_ulp(found, wanted, 0, what)


def agree(found: Any, wanted: Any, what: Any = "") -> None:
    """Assert that two frameworks made the same sums, whose terms are of the size of a leaf's largest number."""

    def term(leaf: Any) -> Any:
        sizes = np.abs(array(leaf))
        return np.full(sizes.shape, sizes[np.isfinite(sizes)].max(initial=0.0))

    assert_sums(found, wanted, optree.tree_map(term, wanted), further=1, times=2, what=what)


class Oracle:
    """The parameters that "sgd" gives with `update` on NumPy arrays."""

    def __init__(self, tx: Any, params: Leaves, driver: type[Driver]) -> None:
        self.tx, self.params, self.sign = tx, params, -1 if driver.on_updates else 1
        self.state = tx.init(params)

    def step(self, gradients: Leaves, /, **beside: Any) -> Leaves:
        given = {path: None if g is None else np.asarray(self.sign * g, g.dtype) for path, g in gradients.items()}
        return self.moved(*self.tx.update(given, self.state, self.params, **beside))

    def flush(self) -> Leaves:
        return self.moved(*gx.flush(self.tx, self.state, self.params))

    def moved(self, updates: Any, state: Any) -> Leaves:
        self.state = state
        made = {path: self.sign * update for path, update in updates.items() if update is not None}
        return {path: np.asarray(p - made[path]) if path in made else p for path, p in self.params.items()}


def by_path(state: Any) -> Leaves:
    """The leaves of a state."""
    backend, state = lookup.backend("numpy"), gx.to_numpy(state)
    return dict(zip(backend.paths(state), backend.flatten(state)[0], strict=True))


def assert_state(found: Any, wanted: Any) -> None:
    found, wanted = by_path(found), by_path(wanted)
    assert found.keys() == wanted.keys()
    for path, leaf in wanted.items():
        if leaf is None:
            assert found[path] is None, path
        else:
            inexact = leaf.dtype.kind not in "iub"
            assert not inexact or found[path].dtype == leaf.dtype, path
            (agree if inexact else assert_equal)([found[path]], [leaf], path)


# --- the cases -------------------------------------------------------------------------------------------------------

Kind = type[Driver]


def assert_alike(exact: bool, found: Leaves, wanted: Leaves) -> None:
    """Assert the same bits, or numbers that differ by the fused arithmetic of a compiled optimizer."""
    assert not exact or bits(found) == bits(wanted)
    for path, value in wanted.items():
        np.testing.assert_allclose(found[path], value, rtol=0, atol=2e-6, err_msg=path)


CASES: dict[str, tuple[Callable[..., None], Callable[[Kind], bool]]] = {}


def case(name: str, on: Callable[[Kind], bool] = lambda driver: True) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        CASES[name] = function, on
        return function

    return decorate


def pairs(drivers: Sequence[Kind]) -> list[Any]:
    """The cases of each driver, by name."""
    return [(each.name, name) for each in drivers for name, (_, on) in CASES.items() if on(each)]


def stateful(driver: Kind) -> bool:
    return driver.stateful


for _name, _tx in TRANSFORMS.items():

    @case(
        f"transform, {_name}",
        lambda driver, name=_name, tx=_tx: (
            (driver.stateful or not tx.stateful) and name in (driver.transforms or (name,))
        ),
    )
    def _(driver: Kind, folder: Path, name: str = _name, tx: Any = _tx) -> None:
        """Each step, and the state after them, are those of `update` on NumPy arrays."""
        start = ONES if name == "parameters" else ZEROS
        run, oracle = driver(tx, start), Oracle(tx, start, driver)
        for i in range(5):
            gradients = drawn(i, name, ["last"])
            run.assign(start)
            run.step(gradients)
            agree(run.read(), oracle.step(gradients), i)
        assert run.traces == 1
        if driver.stateful and not (driver.on_updates and tx is NOWHERE):  # which ignores updates that it leaves alone
            assert_state(run.state, oracle.state)


@case("optimizers", lambda driver: not driver.on_updates)
def _(driver: Kind, folder: Path) -> None:
    """Each optimizer receives what `update` gives: it trains as without a transformation on these gradients."""
    tx = CHAIN if driver.stateful else gx.clip_global_norm(2.0)
    for optimizer in driver.optimizers:
        run, plain, oracle = driver(tx, ONES, optimizer), driver(None, ONES, optimizer), Oracle(tx, ZEROS, driver)
        for i in range(4):
            run.step(drawn(i))
            plain.step({path: -value for path, value in oracle.step(drawn(i)).items()})
        assert bits(run.read()) != bits(ONES)
        for path, value in plain.read().items():
            np.testing.assert_allclose(run.read()[path], value, rtol=2e-6, atol=2e-6)


@case("optimizers of updates", lambda driver: driver.on_updates)
def _(driver: Kind, folder: Path) -> None:
    """Each step moves parameters by what `update` gives for the updates that the optimizer makes alone."""
    limits = gx.chain(gx.clip_rms(0.05), gx.clip_adaptive(0.04, axes="torch"))
    for tx in (gx.chain(gx.clip_global_norm(0.1), gx.trace(0.5)), limits, gx.cautious()):
        for optimizer in driver.optimizers:
            run, plain, oracle = driver(tx, ONES, optimizer), driver(None, ONES, optimizer), Oracle(tx, ONES, driver)
            for i in range(4):
                oracle.params = run.read()
                plain.assign(oracle.params)
                for each in (run, plain):
                    each.step(drawn(i))
                made = {path: oracle.params[path] - new for path, new in plain.read().items()}
                descent = {path: -gradient for path, gradient in drawn(i).items()}  # the direction of such updates
                wanted = oracle.step(made, **({"gradients": descent} if "gradients" in tx.traits.needs else {}))
                for path, value in run.read().items():
                    np.testing.assert_allclose(value, wanted[path], rtol=2e-6, atol=2e-6)


@case("unchanged")
def _(driver: Kind, folder: Path) -> None:
    """What stays within its limits changes no bit of the training."""
    for optimizer in driver.optimizers:
        runs = [driver(tx, ONES, optimizer) for tx in (None, gx.chain(gx.clip_norm(1e9), gx.clip_global_norm(1e9)))]
        for i in range(4):
            for run in runs:
                run.step(drawn(i))
        assert bits(runs[0].read()) != bits(ONES)
        assert_alike(driver.exact, runs[1].read(), runs[0].read())


@case("None", lambda driver: driver.none)
def _(driver: Kind, folder: Path) -> None:
    """Leaves without gradients neither move nor count, and a step without any gradient does nothing."""
    tx = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5)) if driver.stateful else gx.clip_global_norm(1.0)
    run, oracle = driver(tx, ZEROS), Oracle(tx, ZEROS, driver)
    for i, none in enumerate(([], ["head"], ["body/b", "last"], list(SHAPES), [])):
        run.assign(ZEROS)
        gradients = drawn(i, none=none)
        if len(none) < len(SHAPES):
            run.step(gradients)
            agree(run.read(), oracle.step(gradients), i)
        elif driver.empty is not None:
            with pytest.raises(driver.empty):
                run.step(gradients)
        else:
            before = bits(run.state) if driver.stateful else None
            run.step(gradients)
            assert bits(run.read()) == bits(ZEROS)
            assert not driver.stateful or bits(run.state) == before
    if driver.stateful:
        assert_state(run.state, oracle.state)


@case("no gradients at all", lambda driver: driver.refuses_nothing)
def _(driver: Kind, folder: Path) -> None:
    """A container without gradients, such as an iterator that is used up, is an error and no step."""
    run = driver(gx.clip_global_norm(1.0), ONES)
    with pytest.raises(ValueError, match=f"({driver.framework}|keras).*: there are no"):
        run.step({})
    assert bits(run.read()) == bits(ONES)


@case("all that have gradients are stopped")
def _(driver: Kind, folder: Path) -> None:
    """Such a step does nothing; a transformation that stops all parameters may be an error, which names them."""
    run = driver(gx.freeze(FROZEN), ONES)
    run.step(drawn(0, none=["head", "last"]))
    assert bits(run.read()) == bits(ONES)
    run = driver(gx.stop(), ONES)
    if driver.none_left is None:
        run.step(drawn(0))
        assert bits(run.read()) == bits(ONES)
    else:
        with pytest.raises(driver.none_left, match="body/b, body/w, head"):
            run.step(drawn(0))


@case("sparse", lambda driver: driver.sparse)
def _(driver: Kind, folder: Path) -> None:
    """A sparse gradient with a row given twice counts as its dense equal."""
    rows, values = np.array([2, 0, 2]), np.float32([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
    start = {"other": np.zeros(2, np.float32), "table": np.zeros((4, 2), np.float32)}
    txs = [gx.clip_norm(1.0), gx.chain(gx.trace(0.5), gx.clip_norm(9.0)), gx.clip_zscore(0.5, warmup=1)]
    txs += [gx.accumulate(gx.identity(), 2), gx.clip_percentile(40.0, window=2), gx.ema(0.5)]
    for tx in txs if driver.stateful else txs[:1]:
        run, oracle = driver(tx, start), Oracle(tx, start, driver)
        for factor in (np.float32(1.0), np.float32(-3.0), np.float32(0.5)):
            dense = np.zeros((4, 2), np.float32)
            np.add.at(dense, rows, values * factor)
            other = np.float32([factor, 1.0])
            run.assign(start)
            run.step({"other": other, "table": (rows, values * factor)})
            agree(run.read(), oracle.step({"other": other, "table": dense}))
        if driver.stateful:
            assert_state(run.state, oracle.state)


@case("frozen")
def _(driver: Kind, folder: Path) -> None:
    """Frozen parameters keep every bit, whatever their gradients; the others train as if they were alone."""
    tx = gx.chain(gx.clip_global_norm(1.0), gx.trace(0.5)) if driver.stateful else gx.clip_global_norm(1.0)
    body = {path: value for path, value in ONES.items() if path.startswith("body/")}
    rest = {path: value for path, value in ONES.items() if path not in body}
    body["body/b"] = np.float32([0.1, -0.0, 1e-40, -3.3])
    for optimizer in driver.optimizers or ("sgd",):
        run, alone = driver(tx, body | rest, optimizer, frozen=FROZEN), driver(tx, rest, optimizer)
        for i in range(4):
            gradients = drawn(i)
            gradients["body/w"][0] = [np.nan, np.inf, 1.0]
            run.step(gradients)
            alone.step({path: gradients[path] for path in rest})
        found = run.read()
        assert bits({path: found[path] for path in body}) == bits(body)
        assert bits(alone.read()) != bits(rest)
        assert_alike(driver.exact, {path: found[path] for path in rest}, alone.read())


LEFT_OUT: dict[str, tuple[Callable[[Any], Any], float, list[bool]]] = {
    "skip_nonfinite": (lambda inner: gx.skip_nonfinite(inner), np.inf, [True, False, True, False, True]),
    "skip_large": (lambda inner: gx.chain(gx.skip_large(inner, 90.0)), 100.0, [True, False, True, False, True]),
    "nested": (lambda inner: gx.measure(gx.chain(gx.skip_nonfinite(inner))), np.nan, [True, False, True, False, True]),
    "accumulate": (lambda inner: gx.accumulate(inner, 2), 1.0, [False, True, False, True]),
}

for _name in LEFT_OUT:

    @case(f"left out, {_name}", lambda driver: driver.stateful and driver.skips)
    def _(driver: Kind, folder: Path, name: str = _name) -> None:
        """A step that is not due leaves parameters and optimizer alone, and metrics say so; zeros would move."""
        around, factor, due = LEFT_OUT[name]
        for optimizer in ["sgd"] if driver.on_updates else driver.optimizers:  # which has no state to spoil
            run, plain, waiting = driver(None, ONES, optimizer, around=around), driver(None, ONES, optimizer), []
            for i, applied in enumerate(due):
                gradients = drawn(i)
                if not applied:
                    gradients["body/w"] *= np.float32(factor)
                    waiting = [gradients]
                before = bits(run.read())
                run.step(gradients)
                assert (bits(run.read()) != before) is applied
                assert bool(run.ask(gx.has_updated)) is applied
                assert name != "nested" or bool(run.ask(gx.metrics)["applied"]) is applied
                if applied:
                    summed = [gradients, *(waiting if name == "accumulate" else [])]
                    means = {p: np.float32(np.mean([np.float64(g[p]) for g in summed], axis=0)) for p in SHAPES}
                    plain.step(means)
            if not driver.on_updates:
                assert_alike(driver.exact, run.read(), plain.read())


FLUSHED = {
    "alone": gx.accumulate(gx.trace(0.5), 4),
    "in a chain": gx.chain(gx.freeze("head"), gx.trace(0.5), gx.accumulate(gx.clip_norm(1.0), 4), gx.scale(0.5)),
    "in masks": gx.partition({"body/**": gx.accumulate(gx.clip_global_norm(1.0), 4)}, default=gx.trace(0.5)),
    "skipped": gx.measure(gx.skip_nonfinite(gx.chain(gx.freeze("**/w"), gx.accumulate(gx.identity(), 4)))),
}
for _name, _tx in FLUSHED.items():

    @case(f"flush, {_name}", stateful)
    def _(driver: Kind, folder: Path, name: str = _name, tx: Any = _tx) -> None:
        """An unfinished window is applied as its mean, and is empty afterwards; the next window is whole."""
        run, oracle = driver(tx, ZEROS), Oracle(tx, ZEROS, driver)
        for _ in range(2):
            for i in range(7):
                run.assign(ZEROS)
                run.step(drawn(i))
                agree(run.read(), oracle.step(drawn(i)), i)
            for held in (True, False):
                run.assign(ZEROS)
                run.flush()
                agree(run.read(), oracle.flush())
                assert_state(run.state, oracle.state)
                assert (bits(run.read()) != bits(ZEROS)) is held
                assert name == "in masks" or bool(run.ask(gx.has_updated)) is held


@case("the loss", lambda driver: driver.stateful and driver.skips and driver.losses)
def _(driver: Kind, folder: Path) -> None:
    """A step whose loss spikes is left out, a window is flushed with its loss, and no loss is an error."""
    of_loss = functools.partial(gx.skip_spikes, threshold=3.0, window=4, of="loss")
    run, moves = driver(None, ONES, (*driver.optimizers, "sgd")[0], around=of_loss), []
    for loss in (1.0, 2.0, 9.0, 2.0):
        before = bits(run.read())
        run.step(drawn(0), value=np.float32(loss))
        moves.append(bits(run.read()) != before)
    assert moves == [True, True, False, True]
    with pytest.raises(ValueError, match=r"needs the loss.*value=loss"):  # one loss is for one step
        run.step(drawn(0))
    run = driver(gx.accumulate(of_loss(gx.identity()), 3), ONES)
    run.step(drawn(0), value=np.float32(2.0))
    assert bits(run.read()) == bits(ONES)
    run.flush(value=np.float32(2.0))
    assert bits(run.read()) != bits(ONES)


@case("nothing to flush", stateful)
def _(driver: Kind, folder: Path) -> None:
    """No window is an error; that of `gx.flush` for an adapter names the method that the driver calls."""
    run = driver(CHAIN, ONES)
    with pytest.raises(TypeError, match=r"has no accumulate"):
        run.flush()
    assert bits(run.read()) == bits(ONES)
    if driver.handle is not Driver.handle:
        with pytest.raises(TypeError, match=r"\.flush\("):
            gx.flush(run.handle)


@case("saved and resumed", lambda driver: driver.saves)
def _(driver: Kind, folder: Path) -> None:
    """A run that another program continues gives the same bits."""
    names = ("accumulate", "add_noise", "clip_percentile, per leaf", "schedules", "skip_nonfinite", "several")
    optimizer = (*driver.optimizers, "sgd")[0]
    for name in names:
        run, other = (driver(TRANSFORMS[name], start, optimizer) for start in (ONES, ZEROS))
        for i in range(3):
            run.step(drawn(i, name, ["last"]))
        (folder / name).mkdir()
        run.save(folder / name)
        other.step(drawn(7, none=["last"]))
        other.load(folder / name)
        for i in range(3, 6):
            for each in (run, other):
                each.step(drawn(i, name, ["last"]))
        assert bits(run.read()) == bits(other.read())
        assert bits(by_path(run.state)) == bits(by_path(other.state))


@case("a state from elsewhere", lambda driver: driver.sets)
def _(driver: Kind, folder: Path) -> None:
    """A state of NumPy goes on; one that does not fit is refused and changes nothing."""
    tx = gx.chain(gx.clip_norm(3.0), gx.trace(0.5), gx.measure(gx.identity()))
    run, oracle = driver(tx, ZEROS), Oracle(tx, ZEROS, driver)
    oracle.step(drawn(0))
    run.step(drawn(3))
    run.state = gx.to_numpy(oracle.state)
    run.assign(ZEROS)
    run.step(drawn(1))
    agree(run.read(), oracle.step(drawn(1)))
    before, trace = bits(by_path(run.state)), oracle.state[1].trace
    for wrong, words in (
        ((oracle.state[0], {"trace": {"head": ZEROS["head"]}}, oracle.state[2]), r"the state lacks .*1/trace/body/b"),
        ((oracle.state[0], {"trace": trace | {"head": np.float32([1.0])}}, oracle.state[2]), r"1/trace/head.*shape"),
    ):
        with pytest.raises(ValueError, match=words):
            run.state = wrong
    assert bits(by_path(run.state)) == before
    run = driver(NOWHERE, ZEROS)
    run.step(drawn(0))
    before = bits(by_path(run.state))
    run.state = gx.to_numpy(run.state)
    assert bits(by_path(run.state)) == before


@case("loss scaling", lambda driver: bool(driver.scales))
def _(driver: Kind, folder: Path) -> None:
    """The transformation sees unscaled gradients; a step with infinite ones changes neither weights nor state."""
    for way in driver.scales:
        for optimizer in driver.optimizers:
            run, plain = driver(CHAIN, ONES, optimizer, scale=way), driver(CHAIN, ONES, optimizer)
            for i in range(3):
                run.step(drawn(i))
                plain.step(drawn(i))
            before = bits(run.read()), bits(by_path(run.state))
            assert_alike(driver.exact and not driver.compiles_scaling, run.read(), plain.read())
            assert_alike(driver.exact and not driver.compiles_scaling, by_path(run.state), by_path(plain.state))
            if way != "factor":
                bad = drawn(3)
                bad["body/w"][1, 1] = np.inf
                run.step(bad)
                assert (bits(run.read()), bits(by_path(run.state))) == before, (way, optimizer)
                run.step(drawn(4))
                assert bits(run.read()) != before[0] and bits(by_path(run.state)) != before[1]


@case("metrics", stateful)
def _(driver: Kind, folder: Path) -> None:
    """They are of the step that they are read after, say whether it applied, and count norms of a warm-up."""
    tx = gx.chain(gx.measure(gx.chain(gx.clip_zscore(), gx.clip_global_norm(1.0))), gx.accumulate(gx.identity(), 2))
    for way in (None, *driver.scales):
        run, oracle = driver(tx, ZEROS, scale=way), Oracle(tx, ZEROS, driver)
        for i in range(3):
            run.step(drawn(i))
            oracle.step(drawn(i))
            wanted = gx.metrics(oracle.state)
            found = run.ask(gx.metrics)
            assert_ulp(found, wanted, 1)
            assert found["clip_global_norm/norm_before"] == pytest.approx(gx.global_norm(drawn(i)), rel=1e-6)
            assert found["clip_zscore/count"] == i + 1
            assert bool(run.ask(gx.has_updated)) is bool(found["applied"]) is (i == 1)


@case("dtypes", stateful)
def _(driver: Kind, folder: Path) -> None:
    """Results have the dtypes of their gradients, states those of sums."""
    tx = gx.chain(gx.trace(0.5), gx.clip_norm(1.0))
    for name in driver.dtypes:
        dtype = np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)
        start = {path: np.asarray(value, dtype) for path, value in ZEROS.items()}
        run, oracle = driver(tx, start), Oracle(tx, start, driver)
        for i in range(2):
            gradients = drawn(i, dtype=dtype)
            run.assign(start)
            run.step(gradients)
            assert_ulp(run.read(), oracle.step(gradients), 1 if dtype.itemsize == 2 else 2, name)
        assert_state(run.state, oracle.state)
        run = driver(gx.accumulate(gx.identity(), 2), start)  # whose mean is its sum's own array
        for _ in range(2):
            run.step(dict.fromkeys(SHAPES) | {"last": np.asarray([1.0, 2.0, -3.0], dtype)})
        np.testing.assert_array_equal(np.complex64(run.read()["last"]), [-1.0, -2.0, 3.0])


@case("a pattern that matches nothing")
def _(driver: Kind, folder: Path) -> None:
    for tx in (gx.freeze("nowhere/**"), gx.chain(gx.clip_norm(1.0), gx.masked(gx.scale(0.5), ["head", "nowhere/**"]))):
        with pytest.raises(ValueError, match=r"'nowhere/\*\*' matches no path; the paths are 'body/b'"):
            run = driver(tx, ZEROS)
            if not driver.checks_first:
                run.step(drawn(0))


@case("variables chosen by identity", lambda driver: driver.by_identity)
def _(driver: Kind, folder: Path) -> None:
    run = driver(lambda variables: gx.freeze([variables["head"], variables["last"], "body/w"]), ONES)
    run.step(drawn(0))
    moved = {path: bits(value) != bits(ONES[path]) for path, value in run.read().items()}
    assert moved == {"body/b": True, "body/w": False, "head": False, "last": False}
    if driver.stateful:
        run = driver(lambda variables: gx.masked(gx.trace(0.5), variables["head"]), ZEROS)
        oracle = Oracle(gx.masked(gx.trace(0.5), "head"), ZEROS, driver)
        run.step(drawn(0))
        oracle.step(drawn(0))
        assert_state(run.state, oracle.state)
    others: list[Any] = []
    driver(lambda variables: others.append(variables["head"]) or gx.identity(), ONES)
    with pytest.raises(ValueError, match="have no gradient"):
        driver(lambda variables: gx.freeze(others[0]), ONES).step(drawn(0))


@case("paths", lambda driver: driver.has_paths)
def _(driver: Kind, folder: Path) -> None:
    run = driver(gx.trace(0.5), ZEROS)
    run.step(drawn(0))
    assert gx.paths(run.handle) == list(SHAPES)


@case("no transformation")
def _(driver: Kind, folder: Path) -> None:
    for tx in (0.5, object(), gx.clip_norm):
        with pytest.raises(TypeError):
            driver(tx, ZEROS).step(drawn(0))


def check(drivers: Sequence[Kind], driver: str, name: str, folder: Path) -> None:
    """Run a case."""
    (kind,) = [each for each in drivers if each.name == driver]
    CASES[name][0](kind, folder)
