"""Run the commands on the second of two CPU devices: `python device_cases.py jax FOLDER`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TWO = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
QUIET = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "200"}


def main(framework: str, folder: str) -> None:
    """Run parity, the benchmark and the demo; eager kernels see only arrays on that device."""
    from typer.testing import CliRunner

    from gradxform.backend import lookup
    from gradxform.cli import app, device
    from gradxform.cli.bench import run as bench
    from gradxform.cli.bench.timing import Effort
    from gradxform.cli.frameworks import title

    if framework == "tensorflow":
        import tensorflow as tf

        processor = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    place, backend = device.find(framework, "cpu", 1), lookup.backend(framework)
    seen: list[Any] = []

    def watched(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(leaves: Any, *args: Any, **kwargs: Any) -> Any:
            made = kernel(leaves, *args, **kwargs)
            seen.extend(array for arrays in (leaves, made) if isinstance(arrays, list) for array in arrays)
            return made

        return run

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--frameworks", framework, "--device", "cpu:1"])
        assert done.exit_code == 0, done.output
        return done.output

    for name in ("multiply", "norms", "clip"):
        setattr(backend, name, watched(getattr(backend, name)))
    bench.QUICK = bench.QUICK._replace(chains=(3,), effort=Effort(0.0, 1, 1))
    where = f"{title(framework)} on cpu:1"
    assert f"in {where}" in run("parity", "--chain", "chain(clip_value(9.0), clip_norm(1.0))")
    assert f"measured: {where}" in run("bench", "--trees", "mlp", "--out", folder)
    assert where in run("demo", "--steps", "1", "--out", f"{folder}/demo.png")
    eager = [array for array in seen if is_eager(framework, array)]
    assert len(eager) > 20, len(eager)
    for array in eager:
        assert place.lies(array), array
    assert not place.lies(backend.from_numpy(backend.to_numpy(eager[0])))
    print("every array was on cpu:1")


def is_eager(framework: str, array: Any) -> bool:
    """Whether an array has values, i.e. is not traced."""
    if framework == "jax":
        import jax

        return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return hasattr(array, "numpy")


if __name__ == "__main__":
    os.environ |= TWO | QUIET
    sys.path[:0] = [str(ROOT), str(ROOT / "backends")]
    main(*sys.argv[1:])
