"""How the site is built."""

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
