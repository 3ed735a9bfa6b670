"""The reference's number formats (quadruple precision and longdouble) against fractions."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import assert_right
from trees import first
from typer.testing import CliRunner

from gradxform.cli import app
from gradxform.proof import extended
from gradxform.proof.cases import ordinary_and_hard
from gradxform.proof.extended import narrowed, number
from gradxform.proof.registry import Row

BITS = {np.float16: (11, -24), ml_dtypes.bfloat16: (8, -133), np.float32: (24, -149), np.float64: (53, -1074)}
"""The mantissa bits of a dtype, and the exponent of its smallest number."""


@pytest.fixture(params=["quad", "longdouble"])
def numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "longdouble":
        if np.finfo(np.longdouble).nmant < 63:
            pytest.skip("NumPy's longdouble is float64 here")
        monkeypatch.setitem(sys.modules, "numpy_quaddtype", None)
    extended.kind.cache_clear()
    yield request.param
    extended.kind.cache_clear()


def exactly(value: Any) -> Fraction:
    part, exponent = np.frexp(value)
    total = Fraction(0)
    while part != 0:
        total += Fraction(float(part))
        part = part - float(part)
    return total * Fraction(2) ** int(exponent)


def test_the_bits(numbers: str) -> None:
    assert extended.bits() == (113 if numbers == "quad" else np.finfo(np.longdouble).nmant + 1)


@pytest.mark.parametrize("dtype", BITS)
def test_no_number_is_lost(dtype: Any, numbers: str) -> None:
    bits, least = BITS[dtype]
    rng = random.Random(0)
    for _ in range(200):
        x = np.ldexp(float(rng.getrandbits(bits)), rng.choice([least, least + 3, -bits])).astype(dtype)
        assert exactly(number(x)) == Fraction(float(x))
        assert narrowed(number(-x), dtype) == -x
    odd = np.array([-0.0, np.inf, np.nan]).astype(dtype)
    assert narrowed(number(odd), dtype).tobytes() == odd.tobytes()


@pytest.mark.parametrize("dtype", BITS)
def test_rounded_once(dtype: Any, numbers: str) -> None:
    """Numbers halfway between two others, or too near for float64 to tell; many are subnormal."""
    bits, least = BITS[dtype]
    rng = random.Random(0)
    for _ in range(400):
        exponent = rng.choice([least, least, least + 5, -bits])
        whole = rng.getrandbits(rng.randint(0, bits)) if exponent == least else rng.getrandbits(bits) | 1 << (bits - 1)
        beside = rng.choice([-1.0, 0.0, 1.0]) * 2.0 ** -rng.randint(2, extended.bits() - bits)
        value = np.ldexp(number(whole) + 0.5 + beside, exponent)
        right = round(whole + Fraction(1, 2) + Fraction(beside)) * Fraction(2) ** exponent
        assert exactly(value) == (whole + Fraction(1, 2) + Fraction(beside)) * Fraction(2) ** exponent
        assert float(narrowed(value, dtype)) == float(right)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_arithmetic(name: str, numbers: str) -> None:
    operation, rng = getattr(operator, name), np.random.default_rng(0)
    a, b = rng.standard_normal((2, 100)) * 2.0 ** rng.integers(-60, 60, (2, 100))
    for got, x, y in zip(operation(number(a), number(b)), a, b, strict=True):
        right = operation(Fraction(x), Fraction(y))
        assert abs(exactly(got) - right) <= abs(right) / 2 ** extended.bits()


def test_functions(numbers: str) -> None:
    for x in np.random.default_rng(0).uniform(0.1, 9.0, 50):
        unit = Fraction(4, 2 ** extended.bits())
        assert abs(exactly(np.sqrt(number(x))) ** 2 / Fraction(x) - 1) <= unit
        assert abs(exactly(number(x) ** (1 / number(3))) ** 3 / Fraction(x) - 1) <= 4 * unit
        assert abs(exactly(np.exp(np.log(number(x)))) / Fraction(x) - 1) <= 4 * unit


def test_complex_numbers(numbers: str) -> None:
    with np.errstate(invalid="ignore"):
        sizes = extended.size(number(np.array([3e307 + 4e307j, 3e-324 + 4e-324j, -3j, complex(np.inf, 1)])))
    assert narrowed(sizes, np.float64).tolist() == [np.abs(3e307 + 4e307j), 5e-324, 3.0, np.inf]
    z = np.array([1.5 - 0.0j, complex(np.inf, np.nan)], np.complex64)
    assert narrowed(number(z), np.complex64).tobytes() == z.tobytes()


@pytest.mark.parametrize("row", first(), ids=str)
def test_right_results(row: Row, numbers: str) -> None:
    for dtype in ("float64", "complex128"):
        if dtype in row.dtypes:
            assert_right(row, ordinary_and_hard(row, dtype), "numpy", "eager")


@pytest.fixture
def only_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "numpy_quaddtype", None)
    monkeypatch.setattr(np, "longdouble", np.float64)
    extended.kind.cache_clear()
    yield
    extended.kind.cache_clear()


@pytest.mark.parametrize("row", [row for row in first() if not row.tx.stateful], ids=str)
def test_float64_is_the_reference_where_nothing_is_wider(row: Row, only_float64: None) -> None:
    for dtype in ("float16", "float32", "complex64"):
        if dtype in row.dtypes:
            assert_right(row, ordinary_and_hard(row, dtype), "numpy", "eager")


@pytest.mark.parametrize("command", ["parity", "report"])
def test_commands_say_how_exact_the_reference_is(command: str, only_float64: None, tmp_path: Path) -> None:
    gradients = tmp_path / "gradients.npz"
    np.savez(gradients, w=np.float32([3.0, 4.0]))

    def printed() -> str:
        options = ["--chain", "clip_norm(1.0)", "--gradients", str(gradients), "--frameworks", "numpy"]
        done = CliRunner().invoke(app, [command, *options])
        assert done.exit_code == 0, done.output
        return done.output

    found = printed()
    assert "53 bits" in found
    assert "gradxform[exact]" in found
    sys.modules.pop("numpy_quaddtype")
    extended.kind.cache_clear()
    assert "113 bits" in printed()
