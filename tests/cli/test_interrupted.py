"""Ctrl-C in every command: one line, exit status 130, nothing half-written. So too in the middle of a recording."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gradxform as gx

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to groups of processes"),
    pytest.mark.slow(reason="starts every command and lets it work for seconds"),
]

COMMANDS = {
    "demo": ["demo", "--frameworks", "torch", "--steps", "100000"],
    "parity": ["parity"],
    "bench": ["bench", "--full", "--frameworks", "numpy"],
    "report": ["report", "--chain", "clip_norm(1.0)"],
    "compare": ["compare", "a", "b", "--report", "page.html", "--picture", "compare.png"],
}
RECORDING = """
import numpy as np, gradxform as gx
recorder = gx.record("run")
for step in range(1_000_000):
    recorder(step, gradients={str(i): np.full(100_000, step, np.float32) for i in range(20)})
"""

REPLACED = """
import contextlib, time, weakref
import gradxform.cli.console
from gradxform.__main__ import main

def interrupt(*_):
    raise KeyboardInterrupt

def app():
    {body}

gradxform.cli.app = app
main()
"""
DROPPED = "kept = set()\n    noticed = weakref.ref(kept, interrupt)\n    "
SWALLOWED = {
    "in a callback of a weak reference": DROPPED + "del kept; time.sleep(60)",
    "in a quiet part": DROPPED + "with gradxform.cli.console.quiet(): del kept; time.sleep(60)",
    "in an extension module's import": "raise ImportError('initialization failed') from KeyboardInterrupt()",
}

LISTENING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""Runs a command that hears Ctrl-C where a shell told its background jobs not to. Forking here would warn in JAX."""


def interrupted(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """Run a command, and press Ctrl-C after some seconds, and again until it ends: what is imported may swallow it."""
    listening = [sys.executable, "-c", LISTENING, *command]
    with subprocess.Popen(listening, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            time.sleep(seconds)
            assert process.poll() is None, process.communicate()
            for _ in range(60):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _, errors = process.communicate(timeout=1)
                    break
        finally:
            process.kill()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_a_command(arguments: list[str], tmp_path: Path) -> None:
    if arguments[0] == "compare":
        for name in "ab":
            recorder, rng = gx.record(tmp_path / name), np.random.default_rng(0)
            for step in range(300):
                recorder(step, gradients={str(i): rng.standard_normal(9, np.float32) for i in range(800)})
    before = sorted(os.listdir(tmp_path))
    code, errors = interrupted([sys.executable, "-m", "gradxform", *arguments], tmp_path, 3.0)
    assert (code, errors) == (130, "gradxform: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("body", SWALLOWED.values(), ids=SWALLOWED)
def test_where_something_else_catches_it(body: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", REPLACED.format(body=body)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (130, "gradxform: interrupted\n")


def test_a_recording_holds_whole_steps(tmp_path: Path) -> None:
    code, errors = interrupted([sys.executable, "-c", RECORDING], tmp_path, 3.0)
    assert code != 0 and errors.rstrip().endswith("KeyboardInterrupt")
    files = sorted(os.listdir(tmp_path / "run"))
    assert files and all(name.endswith(".safetensors") and not name.startswith(".") for name in files)
    assert gx.compare(tmp_path / "run", tmp_path / "run").within
