"""Release checks for `make check`: the built wheel and sdist work in an empty folder, the pages build."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import environments
import make_release
import pytest
from support import ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel and an sdist; return their folder."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, capture_output=True
    )
    return out


def test_the_wheel_holds_every_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    frameworks = ("numpy", "jax", "tensorflow", "torch", "keras", "mlx")
    assert tops == {"gradxform", *(f"gradxform_{framework}" for framework in frameworks)}
    assert all(f"{top}/py.typed" in names for top in tops)


@pytest.mark.timeout(900)  # imports every framework
def test_the_tests_of_the_sdist_are_collected(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (top,) = tmp_path.iterdir()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    assert [name for name in tracked if not (top / name).exists()] == []
    collect = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests"]
    path = os.pathsep.join((str(top), str(top / "backends")))
    run = subprocess.run(
        collect, cwd=top, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr


def test_the_installed_wheel_works_in_an_empty_folder(built: Path, tmp_path: Path) -> None:
    """Run in a separate environment with NumPy and optree only."""
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    packages = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
    subprocess.run([*pip, packages, wheel], check=True)
    for dependency in ("numpy", "optree", "typing_extensions"):
        _link(dependency, packages)
    code = (
        "import numpy as np, gradxform as gx, sys; "
        "assert gx.clip_norm(1.0)(np.array([3.0, 4.0])).round(9).tolist() == [0.6, 0.8]; "
        "assert not {'jax', 'torch', 'tensorflow'} & set(sys.modules); print(gx.__file__)"
    )
    empty = tmp_path / "empty"
    empty.mkdir()
    run = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", code],
        cwd=empty,
        env={"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(packages))


def test_every_extra_is_run_with_its_oldest_versions_and_released_with_an_example() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    users = set(extras) - {"all", "quick", "test", "docs", "dev"}
    assert {extra for several in environments.EXTRAS.values() for extra in several} == users
    assert {extra for several in make_release.EXAMPLES for extra in several.split(",") if extra} == users
    for several in make_release.EXAMPLES:
        compile(make_release.example(several), "README.md", "exec")
    for framework in environments.EXTRAS:
        pins = environments.requirements("oldest", framework)
        assert len(pins) > 8
        assert not any(">" in pin for pin in pins)


def _link(package: str, folder: Path) -> None:
    """Make an installed package, and its shared libraries, visible in a folder."""
    import importlib.util

    origin = importlib.util.find_spec(package)
    assert origin is not None
    assert origin.origin is not None
    path = Path(origin.origin)
    source = path.parent if path.name == "__init__.py" else path
    (folder / source.name).symlink_to(source)
    libraries = source.parent / f"{package}.libs"
    if libraries.is_dir():
        (folder / libraries.name).symlink_to(libraries)
