"""Build the files of a version into dist/ and prove them: `make release`. Nothing is uploaded.

The sdist and the wheel are built from two fresh clones of the last commit and must be equal, byte for byte. Each extra
is installed into an empty environment and runs its line of the README's first example. Beside them come SHA256SUMS,
the versions that were installed (constraints.txt), and an SBOM of the library without extras (CycloneDX, JSON).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
CACHE = ROOT / ".cache"
WHEELS = CACHE / "wheels"
"""Everything that pip downloads, once for all environments."""
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
TOOLS = ["build", "hatchling", "twine", "cyclonedx-bom"]
LARGEST = 500_000
"""Size limit of the wheel in bytes."""
ALONE = {"gradxform", "numpy", "optree", "typing_extensions"}
"""What `pip install gradxform` brings; typing_extensions is optree's."""

GRADIENTS = "import numpy as np; grads = {'w': np.array([300.0])}"
EXAMPLES = {
    "": ("", "import numpy as np; grads = {'w': np.array([300.0], np.float16)}"),
    "jax": ("JAX", "import jax.numpy as jnp, optax; grads = {'w': jnp.array([300.0])}"),
    "tensorflow": (
        "TensorFlow",
        "import tensorflow as tf; grads_and_vars = [(tf.constant([300.0]), tf.Variable([1.0]))]; "
        "grads, optimizer = [grads_and_vars[0][0]], tf.keras.optimizers.SGD()",
    ),
    "torch": (
        "PyTorch",
        "import torch; model = torch.nn.Linear(2, 1); model(torch.full((1, 2), 300.0)).sum().backward(); "
        "grads = [p.grad for p in model.parameters()]",
    ),
    "keras,tensorflow": ("Keras", "import keras; grads = [keras.ops.ones(2)]"),
    "mlx": ("", "import mlx.core as mx; grads = {'w': mx.array([300.0])}"),
    "record": ("", f"{GRADIENTS}; import gradxform; gradxform.record('a')(0, gradients=grads)"),
    "compare": ("", f"{GRADIENTS}; import gradxform; [gradxform.record(run)(0, gradients=grads) for run in 'ab']"),
    "cli": ("", f"{GRADIENTS}; np.savez('gradients.npz', **grads)"),
    "exact": ("", f"{GRADIENTS}; from gradxform.proof.extended import bits; assert bits() == 113"),
}
"""By extra: the word that marks its line in the README's first example, and what the example takes as given."""
COMMANDS = {
    "compare": ["compare a b --report compare.html --picture compare.png"],
    "cli": ["report --chain clip_norm(5.0) --gradients gradients.npz", "parity --frameworks numpy"],
}
"""Commands that run after the example, by extra."""
BESIDE = {"mlx": ["mlx[cpu]"] if sys.platform == "linux" else []}
"""On Linux, MLX asks users to choose a build."""


def run(*command: str | Path, **options: object) -> str:
    """Run a command; its output is printed if it fails, and returned."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return str(done.stdout)


def environment(folder: Path) -> Path:
    """Return the Python of an empty environment."""
    venv.create(folder, clear=True, with_pip=True)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> str:
    """Run pip."""
    return run(python, "-m", "pip", "--disable-pip-version-check", *arguments)


def built(tools: Path, scratch: Path) -> list[Path]:
    """Build twice; return the first files, which equal the second."""
    if changed := run("git", "status", "--porcelain", cwd=ROOT):
        sys.exit(f"commit or remove these first; a release is built from the last commit:\n{changed}")
    date = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    sums = []
    for name in ("first", "second"):
        clone, out = scratch / f"{name}-clone", scratch / name
        run("git", "clone", "--quiet", ROOT, clone)
        # `build` makes the wheel from the sdist, so the sdist is complete.
        run(
            tools,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            out,
            clone,
            env={**os.environ, "SOURCE_DATE_EPOCH": date},
        )
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())})
    if sums[0] != sums[1]:
        sys.exit(f"two builds of one commit differ: {sums}")
    return sorted((scratch / "first").iterdir())


def check_wheel(wheel: Path) -> None:
    """Check that the wheel is pure Python and small."""
    names = zipfile.ZipFile(wheel).namelist()
    if compiled := [
        name for name in names if not name.endswith((".py", ".md", "py.typed")) and "dist-info" not in name
    ]:
        sys.exit(f"{wheel.name} has files that are not Python: {compiled}")
    if not wheel.name.endswith("-py3-none-any.whl") or wheel.stat().st_size > LARGEST:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size} bytes; it must be pure Python, of at most {LARGEST}")


def example(extra: str) -> str:
    """Return the README's first example with the line of an extra."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    word, given = EXAMPLES[extra]
    lines = block[1].splitlines() if block else []
    common = [line for line in lines if line.startswith(("import gradxform", "tx =", "clipped ="))]
    own = [line for line in lines if word and re.search(rf"# {word}\b", line)]
    if len(common) != 3 or len(own) != bool(word):
        sys.exit(f"README.md: the first example has no line for {extra or 'NumPy'}, marked '# {word}'")
    return "\n".join([given, *common, *own, "print(clipped)"])


def prove(extra: str, wheel: Path, folder: Path) -> set[str]:
    """Install the wheel with an extra into an empty environment and run its example; return what was installed."""
    python = environment(folder)
    before = set(pip(python, "list", "--format=freeze").split())
    target = f"{wheel}[{extra}]" if extra else str(wheel)
    pip(python, "install", "--quiet", "--no-index", "--find-links", WHEELS, target, *BESIDE.get(extra, []))
    pins = set(pip(python, "list", "--format=freeze").split()) - before
    names = {pin.partition("==")[0] for pin in pins}
    if not extra and names != ALONE:
        sys.exit(f"pip install gradxform brought {sorted(names)}, not {sorted(ALONE)}")
    out = run(
        python, "-c", example(extra), cwd=folder, env={**os.environ, "PYTHONPATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    for command in COMMANDS.get(extra, ()):
        run(folder / "bin" / "gradxform", *command.split(), cwd=folder)
    print(f"[{extra}] {len(pins)} packages; the README's example printed {out.strip().splitlines()[-1]}", flush=True)
    return pins


def main() -> None:
    """Build, check, install, write dist/."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    tools = environment(CACHE / "release")
    pip(tools, "install", "--quiet", *TOOLS)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        files = built(tools, scratch)
        wheel = next(path for path in files if path.suffix == ".whl")
        run(tools, "-m", "twine", "check", "--strict", *files)
        check_wheel(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size} bytes, twice the same", flush=True)
        extras = ",".join(extra for extra in EXAMPLES if extra)
        beside = [one for several in BESIDE.values() for one in several]
        pip(tools, "download", "--quiet", "-c", CONSTRAINTS, "--dest", WHEELS, f"{wheel}[{extras}]", *beside)
        pins: set[str] = set()
        for extra in EXAMPLES:
            pins |= prove(extra, wheel, scratch / "installed")
            if not extra:
                bom = scratch / f"{wheel.name.rpartition('-py3')[0]}.cdx.json"
                command = ["-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-file", bom]
                run(tools, *command, "--pyproject", ROOT / "pyproject.toml", scratch / "installed" / "bin" / "python")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for path in (*files, bom):
            shutil.copy(path, DIST)
    pinned = sorted(pin for pin in pins if not pin.startswith("gradxform=="))
    (DIST / "constraints.txt").write_text("\n".join(pinned) + "\n", encoding="utf-8")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print(*sorted(path.name for path in DIST.iterdir()), "are in dist/; nothing was uploaded", sep="\n")


if __name__ == "__main__":
    main()
