"""How the site is built: `make docs`."""

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

import gradxform

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))


def versions():
    """The libraries with which the pages are built, for the footer."""
    modules = {"PyTorch": "torch"}
    names = ("NumPy", "JAX", "optax", "TensorFlow", "Keras", "PyTorch", "MLX")
    found = {name: importlib.util.find_spec(modules.get(name, name.lower())) for name in names}
    return ", ".join(f"{name} {importlib.metadata.version(modules.get(name, name))}" for name in names if found[name])


project = "gradxform"
author = "the gradxform authors"
release = version = gradxform.__version__
copyright = f"{author}, Apache-2.0. gradxform {release}; the examples of these pages ran with {versions()}."
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "mathml",
    "names",
    "tables",
    "llms",
]
nitpicky = True
default_role = "literal"
exclude_patterns = ["_build", "numbers/tables"]  # included in the pages of numbers

html_theme = "furo"
html_title = "gradxform"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/logo.svg"
html_theme_options = {"navigation_with_keys": True, "sidebar_hide_name": False}
html_show_sphinx = False
html_copy_source = html_show_sourcelink = False
html_math_renderer = "mathml"
html_domain_indices = False
pygments_style, pygments_dark_style = "friendly", "native"

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # docs/notebooks, in an empty folder; a cell that raises fails the build
nb_execution_in_temp = nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"
nb_merge_streams = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
napoleon_custom_sections = [("Source", "References")]
