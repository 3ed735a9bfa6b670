"""How the site is built."""

import subprocess
import sys
from pathlib import Path

import gradxform

project = "gradxform"
author = "the gradxform authors"
release = version = gradxform.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.doctest"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
html_title = "gradxform"
exclude_patterns = ["_build", "bench.md"]  # speed.md includes it
autodoc_typehints = "none"
napoleon_custom_sections = [("Source", "References")]


def draw_examples(app):
    """Run each example whose picture is missing or older than it."""
    for script in sorted(Path(__file__).parent.glob("examples/*.py")):
        picture = script.parents[1] / "pictures" / f"{script.stem}.png"
        if not picture.exists() or picture.stat().st_mtime < script.stat().st_mtime:
            subprocess.run([sys.executable, str(script)], check=True)


def setup(app):
    app.connect("builder-inited", draw_examples)
