"""Short programs, as each community writes them, assert what their authors care about."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import INDUCTOR, PROCESSES, TRAINS, XLA, python, slow

NOISY = ("DeprecationWarning", "FutureWarning", "UserWarning:lightning", "UserWarning:torch")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in NOISY]
FOLDER = Path(__file__).parent

PROGRAMS = {
    "accelerate_loop": ("torch", "accelerate"),
    "huggingface_trainer": ("torch", "transformers"),
    "jax_equinox": ("jax", "optax", "equinox"),
    "jax_haiku": ("jax", "optax", "haiku"),
    "jax_linen": ("jax", "optax", "flax"),
    "jax_nnx": ("jax", "optax", "flax"),
    "keras_fit": ("keras", "tensorflow"),
    "keras_train_step": ("keras", "tensorflow"),
    "lightning_module": ("torch", "lightning"),
    "mlx_train": ("mlx",),
    "tensorflow1_saver": ("tensorflow",),
    "tensorflow_two_optimizers": ("keras", "tensorflow"),
    "torch_amp": ("torch",),
    "torch_compile": ("torch",),
    "torch_ddp": ("torch",),
    "torch_schedulers": ("torch",),
}
"""Each program and its imports."""
OWN_PROCESSES = ("tensorflow1_saver", "torch_ddp")
"""Programs that change the process: TensorFlow's behaviour, process groups."""


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a temporary folder, and restore the global settings of Keras and Accelerate."""
    monkeypatch.chdir(tmp_path)
    yield
    if keras := sys.modules.get("keras"):
        keras.config.set_dtype_policy("float32")
    if accelerate := sys.modules.get("accelerate"):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def test_the_programs_are_those_of_the_folder_and_short() -> None:
    others = ("test_", "typed")
    files = {path.stem: path for path in FOLDER.glob("*.py") if not path.stem.startswith(others)}
    assert files.keys() == PROGRAMS.keys()
    assert max(len(path.read_text().splitlines()) for path in files.values()) < 40


@slow(XLA, name=("jax_equinox", "jax_haiku", "jax_linen"))
@slow(INDUCTOR, name="torch_compile")
@slow(TRAINS, name=("keras_fit", "huggingface_trainer"))
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in OWN_PROCESSES])
def test_a_program(name: str) -> None:
    for package in PROGRAMS[name]:
        pytest.importorskip(package)
    importlib.import_module(name).main()


@slow(PROCESSES)
@pytest.mark.parametrize("name", OWN_PROCESSES)
def test_a_program_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    for package in PROGRAMS[name]:
        pytest.importorskip(package)
    python(FOLDER / f"{name}.py", cwd=tmp_path)


@pytest.mark.parametrize("kind", [DeprecationWarning, FutureWarning])
def test_a_deprecated_call_from_this_library_is_an_error(kind: type[Warning]) -> None:
    code = "import warnings\nwarnings.warn('old', kind)"
    exec(code, {"__name__": "another_library", "kind": kind})
    with pytest.raises(kind, match="old"):
        exec(code, {"__name__": "gradxform_torch.kernels", "kind": kind})
