"""Expressions of strangers: an error of one line or a transformation, soon, and nothing is evaluated."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gradxform as gx
from gradxform.core.transform import factories

HOSTILE = {
    "parentheses": "(" * 100_000,
    "nested": "chain(" * 3000 + "identity()" + ")" * 3000,
    "signs": f"scale({'-' * 100_000}1)",
    "digits": f"scale({'9' * 1_000_000})",
    "power": "scale(2**10**9)",
    "repetition": "scale('a'*10**9)",
    "comprehension": "chain(*[identity() for _ in range(10**9)])",
    "null": "scale(1)\0",
    "surrogate": "scale('\ud800')",
    "direction": "\u202escale(1)",
    "import": "__import__('os').system('true')",
    "attribute": "scale.__globals__",
    "format": "scale(f'{1}')",
    "lambda": "scale(lambda: 1)",
    "assignment": "scale(x := 1)",
    "statements": "scale(1); scale(2)",
    "twice": "scale(factor=1, factor=2)",
    "pattern": "freeze(re.compile('a{99999999999}'))",
    "nested pattern": f"freeze(re.compile('{'(' * 20_000}'))",
    "long": f"scale({'a' * 1_000_000})",
    "attributes": f"stop(){'.a' * 50000}",
}
OTHERS = [
    "__import__('os').system('x')", "clip_norm(__import__('os').getpid())", "clip_norm(**{})",
    "clip_norm(**{'max_norm': 1.0})", "clip_norm(*[1.0])", "clip_norm(1.0).rule", "clip_norm(1.0)(2)",
    "os.system('x')", "re.sub('a', 'b', 'c')", "re.__loader__('x')", "gx.jax.freeze(1, 2)",
    "gradxform.testing.max_ulp(1, 2)", "(lambda: clip_norm(1.0))()", "[clip_norm(1.0) for _ in (1,)][0]",
    "clip_norm(1.0) if True else stop()", "clip_norm(1.0 + 1.0)", "(x := clip_norm(1.0))", "f'{stop()}'",
    "eval('stop()')", "print(stop())", "float('1.0')", "clip_norm(float('1e400'))", "stop() and stop()",
    "{'a': stop(), **{}}", "masked(stop(), {**{}})", "clip_norm(1j)", "clip_norm(b'1')", "clip_norm(...)",
    "masked(stop(), {'a', 'b'})", "-clip_norm(1.0)", "not stop()", "stop", "1.0", "[stop()]", "", "   ",
    "import os", "stop(", "stop())", "\x00",
]  # fmt: skip


@pytest.mark.parametrize("expression", [*HOSTILE.values(), *OTHERS], ids=[*HOSTILE, *OTHERS])
def test_is_an_error_of_a_few_lines(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.system", lambda command: pytest.fail("it was run"))
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"^parse: ") as caught:
        gx.parse(expression)
    assert len(str(caught.value)) < 2500
    assert time.perf_counter() - start < 5


def test_a_long_chain_is_built_in_linear_time() -> None:
    def seconds(length: int) -> float:
        start = time.process_time()
        assert repr(gx.parse(f"chain({','.join(['scale(0.5)'] * length)})")).count("scale") == length
        return time.process_time() - start

    assert min(map(seconds, [4000] * 3)) < 40 * min(map(seconds, [400] * 5))


NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans(), st.complex_numbers())
WORDS = st.one_of(
    NUMBERS.map(repr), st.text(max_size=20).map(repr), st.sampled_from([*factories, "re.compile", "gx.", "float"])
)
CALLS = st.recursive(
    WORDS,
    lambda parts: st.tuples(WORDS, st.lists(parts, max_size=3)).map(lambda call: f"{call[0]}({', '.join(call[1])})"),
    max_leaves=8,
)


@given(st.one_of(st.text(), CALLS))
@settings(max_examples=300, deadline=None)
@example("clip_norm(1e999)")
@example("scale(-0.0)")
def test_random_expressions_are_transformations_or_clear_errors(expression: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tx = gx.parse(expression)
        except (ValueError, TypeError) as error:
            assert str(error).split(":")[0].split(" ")[0].split("(")[0] in {"parse", *factories}
        else:
            assert gx.parse(repr(tx)) == tx


LIKE = gx.chain(gx.ema(0.5), gx.clip_percentile(50.0, 3)).init({"w": np.ones((2, 3), np.float32)})
PATHS = sorted(gx.to_numpy(LIKE, by_path=True))
ARRAYS = st.one_of(
    st.builds(np.full, st.sampled_from([(), (1,), (2,), (3,), (1, 3), (2, 3), (0,)]), st.floats(width=32)),
    st.builds(np.int32, st.integers(-5, 5)),
    st.just(np.array("text")),
    st.just(np.array(None)),
    st.none(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
)


@given(st.dictionaries(st.one_of(st.sampled_from(PATHS), st.text(max_size=6)), ARRAYS, max_size=8))
@settings(max_examples=300, deadline=None)
def test_random_states_are_read_or_refused(state: dict[str, object]) -> None:
    try:
        found = gx.from_numpy(state, like=LIKE)
    except (ValueError, TypeError) as error:
        assert str(error).startswith("from_numpy")
    else:
        assert sorted(gx.to_numpy(found, by_path=True)) == PATHS
