"""Run each framework's tests with the oldest or newest versions that pyproject.toml allows.

    python tests/environments.py oldest                # every framework
    python3.13 tests/environments.py newest jax mlx    # two of them, on Python 3.13

Each framework gets its own environment of this Python in .cache/environments, since the oldest versions exclude each
other: TensorFlow 2.18 allows no ml_dtypes 0.5, which the extra record requires. A second run reuses it unless its
requirements changed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".cache" / "environments"
TOOLS = ["pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "rich", "typer", "safetensors", "ml_dtypes"]
EXTRAS = {
    "numpy": [],
    "cli": ["record", "compare", "cli"],
    "exact": ["exact"],
    "jax": ["jax"],
    "tensorflow": ["tensorflow", "keras"],
    "torch": ["torch"],
    "mlx": ["mlx"],
}
COMPANIONS = {
    "jax": ["equinox", "flax", "dm-haiku", "flatbuffers"],
    "torch": ["lightning", "accelerate", "transformers"],
}
"""Libraries of the programs in tests/programs, and of jax.export. pip chooses versions that fit the framework's."""
COMMANDS = ["cli/test_report.py", "cli/test_compare.py", "recording/test_record.py", "comparing/test_comparing.py"]
"""Tests of the commands that need no framework."""
RAISED = {"exact": {"numpy": "2.4"}}
"""Bounds of the library that an extra's own exclude: numpy-quaddtype 1.0 needs NumPy 2.4."""
WITHOUT_GPU = {"tensorflow": "tensorflow-cpu", "mlx": "mlx[cpu]"}
"""Builds of the same version for Linux without a GPU: smaller for TensorFlow, and the only one for MLX."""


def requirements(which: str, framework: str) -> list[str]:
    """Return what pip installs: "oldest" turns each lower bound of the framework and the library into a pin."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*project["dependencies"], *(bound for extra in EXTRAS[framework] for bound in _extra(extra))]
    bounds = [_raised(bound, RAISED.get(framework, {})) for bound in bounds]
    pins = [_portable(bound.replace(">=", "==") if which == "oldest" else bound) for bound in bounds]
    given = {re.split("[=>]", pin)[0] for pin in pins}
    # Without numpy-quaddtype, which excludes the oldest NumPy, the reference takes NumPy's longdouble.
    others = [*TOOLS, *COMPANIONS.get(framework, []), *(["numpy-quaddtype"] if which == "newest" else [])]
    return [*pins, *(name for name in others if name not in given)]


def _raised(bound: str, raised: dict[str, str]) -> str:
    name = bound.partition(">=")[0]
    return f"{name}>={raised[name]}" if name in raised else bound


def _portable(bound: str) -> str:
    name, sign, version = bound.partition("==" if "==" in bound else ">=")
    return (WITHOUT_GPU.get(name, name) if sys.platform == "linux" else name) + sign + version


def made(which: str, framework: str) -> Path:
    """Return the Python of an environment, built if its requirements changed."""
    folder = FOLDER / f"{which}-{framework}-{sys.version_info.major}.{sys.version_info.minor}"
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join([sys.version, *requirements(which, framework)])
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements(which, framework)], check=True)
        subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def tests(framework: str) -> list[str]:
    """Return the table, the suite of adapters, the programs, and a framework's own files; for cli, its commands."""
    if framework == "cli":
        return [f"tests/{file}" for file in COMMANDS]
    if framework == "exact":
        return ["tests/proof/test_extended.py"]
    names = {framework, *(bound.partition(">")[0] for extra in EXTRAS[framework] for bound in _extra(extra))}
    found = [f"tests/{kind}/test*_{name}*.py" for kind in ("adapters", "backends") for name in sorted(names)]
    found += [f"tests/adapters/{name}_cases.py" for name in sorted(names)]
    own = sorted({str(path) for pattern in found for path in ROOT.glob(pattern)})
    shared = ["tests/transforms/test_table.py", "tests/adapters/test_conformance.py", "tests/programs/test_programs.py"]
    return [*shared, *own]


def _extra(name: str) -> list[str]:
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ][name]
    return [bound for bound in found if not bound.startswith("gradxform[")]


def run(which: str, framework: str) -> int:
    """Build an environment and run its tests; return pytest's exit status, or pip's."""
    try:
        python = made(which, framework)
    except subprocess.CalledProcessError as error:
        print(f"{framework}, {which}: the environment was not built: pip gave {error.returncode}", flush=True)
        return error.returncode
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    print(f"{framework}, {which}, Python {sys.version.split()[0]}:", ", ".join(listed.stdout.split()), flush=True)
    options = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--no-header"]
    if which == "oldest":  # old libraries call deprecated functions of new ones; conftest.py still catches our own
        options += ["-W", "ignore::DeprecationWarning"]
    return subprocess.run([python, "-m", "pytest", *options, *tests(framework)], cwd=ROOT, check=False).returncode


def main() -> int:
    """Run the frameworks one after another; the exit status counts the ones that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("oldest", "newest"))
    parser.add_argument("frameworks", nargs="*", metavar="framework", help=f"of {', '.join(EXTRAS)}; default: all")
    given = parser.parse_args()
    if unknown := set(given.frameworks) - EXTRAS.keys():
        parser.error(f"no framework {', '.join(sorted(unknown))}; write one of {', '.join(EXTRAS)}")
    os.environ.pop("PYTHONPATH", None)
    failed = [name for name in given.frameworks or EXTRAS if run(given.which, name)]
    print(f"{given.which}: failed: {', '.join(failed)}" if failed else f"{given.which}: all passed", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
