"""The site: `make docs`. Offline; a warning is an error; every page with code and every example is run."""

import os
import warnings

import matplotlib

import retrace_sde

matplotlib.use("agg")
# Pages and examples are run in processes of their own, which see this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

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
exclude_patterns = ["_build", "api/*.inc", "**.ipynb", "results/**/*.json", "gallery/*.py.md5"]
suppress_warnings = [
    "toc.empty_glob",  # pages that a study writes, and that may not be there yet
    "config.cache",  # the gallery's settings hold a function
]

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
html_sidebars = {"index": [], "start": []}
project_copyright = "the ReTrace developers, MIT licence"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_execution_show_tb = True
nb_merge_streams = True

default_role = "literal"
napoleon_google_docstring = False
napoleon_use_rtype = False
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "inherited-members": False}

warnings.filterwarnings("ignore", category=retrace_sde.ReTraceWarning)
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 0,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "remove_config_comments": True,
}
