"""Configuration of the documentation (`make docs`): offline, warnings are errors, every page with code and every example is run."""

import os
import re
import sys
import warnings
from pathlib import Path

import matplotlib

import retrace_sde

HERE = Path(__file__).parent

matplotlib.use("agg")
# Pages are executed in separate processes, which inherit these; warnings of a kernel about its ports are irrelevant.
os.environ.setdefault("OMP_NUM_THREADS", "1")
profile = HERE / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text('c.IPKernelApp.log_level = "ERROR"\n')
os.environ["IPYTHONDIR"] = str(profile.parent)

# Public modules (rt.simulate, rt.plots, …) under the names that autodoc imports.
for name in retrace_sde._MODULES:
    sys.modules[f"retrace_sde.{name}"] = getattr(retrace_sde, name)

project = "ReTrace"
author = "The ReTrace developers"
version = release = retrace_sde.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "**.ipynb", "results/quick/[ft]*"]  # the quick README holds them all
html_theme = "pydata_sphinx_theme"
html_title = "ReTrace"
html_static_path = ["_static"]
html_css_files = ["retrace.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "start": [], "changelog": []}
project_copyright = "the ReTrace developers, MIT licence"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress and compilation messages

default_role = "literal"
napoleon_google_docstring = False
napoleon_use_rtype = False
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
autodoc_default_options = {
    "members": True,
    "exclude-members": "set_fit_request, set_score_request",  # scikit-learn's, documented there
}

warnings.filterwarnings("ignore", category=retrace_sde.ReTraceWarning)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 1e6,  # build times depend on the machine
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "write_computation_times": False,  # that page loads scripts from the network
}


def _as_on_the_site(app, name, text):
    """Adapt links of pages to their place on the site."""
    found = text[0].replace("](../SECURITY.md)", "](security.md)")
    found = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](gallery/\1)", found)
    text[0] = found


def setup(app):
    """For Sphinx."""
    app.connect("source-read", _as_on_the_site)
