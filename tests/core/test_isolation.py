"""No framework is imported unless the user does, and missing frameworks do not matter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import ROOT, python

import gradxform as gx

FRAMEWORKS = {"jax", "optax", "tensorflow", "keras", "torch"}


@pytest.mark.parametrize("first", ["", "import torch"])
def test_an_import_and_an_update_in_numpy_load_nothing_else(first: str) -> None:
    """Neither a framework, nor what records."""
    code = f"""
import sys
{first}
had = set(sys.modules)
import numpy, gradxform as gx
def new(*others): return sorted({{*{FRAMEWORKS!r}, *others}} & (set(sys.modules) - had))
print(new("gradxform.recording", "safetensors"))
gx.clip_norm(1.0)([numpy.ones(3)])
print(new())
"""
    assert python("-c", code).stdout.split("\n")[:2] == ["[]", "[]"]


def test_every_adapter_is_listed() -> None:
    assert {"jax", "keras", "mlx", "numpy", "tensorflow", "torch"} <= set(dir(gx))


@pytest.mark.parametrize("missing", ["jax", "tensorflow", "torch", "keras", "mlx"])
def test_a_missing_framework_is_named_with_what_to_install(missing: str) -> None:
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Absent())
import numpy as np, gradxform as gx
assert gx.clip_norm(1.0)(np.array([3.0, 4.0])).round(9).tolist() == [0.6, 0.8]
try:
    gx.{missing}
except ImportError as error:
    print(error)
"""
    found = python("-c", code)
    assert f"gradxform[{missing}]" in found.stdout, found.stderr


@pytest.mark.parametrize("family", ["clipping", "scaling", "combining"])
def test_transforms_do_not_know_of_backends(family: str) -> None:
    """Transforms that only scale use the flat view, never a backend or a formula."""
    source = (ROOT / "gradxform/transforms" / f"{family}.py").read_text()
    assert "import" in source
    assert not re.search(r"gradxform\.(backend|numerics(?! import Array\n))|gradxform import", source)  # but a type


def test_import_costs_at_most_50_ms_over_numpy(tmp_path: Path) -> None:
    code = "import numpy, time; t = time.process_time(); import gradxform; print(time.process_time() - t)"
    # The first run writes bytecode. Processor time, because other processes may hold the CPU.
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert any(float(python("-c", code, **kept).stdout) < 0.05 for _ in range(5))
