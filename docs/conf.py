"""How the site is built: ``make docs``, which turns docs/ into docs/_build/html."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import ooc_cudnn

project = "ooc_cudnn"
author = "the ooc_cudnn authors"
release = version = ooc_cudnn.__version__

extensions = [
    "sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "sphinx_copybutton", "links",
    "command_help",
]  # fmt: skip
# What the button copies runs as it is: no prompts, and no results.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]

# Pages are Markdown, and links in them work in the repository too: to headings as it makes anchors.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = True
# What the doors to other packages import: their docstrings are read without it.
autodoc_mock_imports = ["lightning", "monai", "nnunetv2", "pytorch_lightning"]
# Notebooks are shown as they were stored: tests run them.
nb_execution_mode = "off"

# Docstrings: types are in the text. A word in single backquotes is a link where it names something.
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_param = False  # types are sentences, not names of classes
napoleon_use_rtype = False
# Explicit roles and references must lead somewhere; types in docstrings are prose.
nitpicky = True
nitpick_ignore_regex = [("py:(class|obj|exc)", ".*")]

html_theme = "furo"
html_title = f"ooc_cudnn {release}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3d6b00", "color-brand-content": "#3d6b00"},
    "dark_css_variables": {"color-brand-primary": "#9bd34a", "color-brand-content": "#9bd34a"},
}
html_show_sphinx = False
