"""Sphinx's configuration of this site. `make docs` builds it; nothing here or in the pages needs the network."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The checkout, before any asynctile that is installed, and the extension that writes the reference.
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from asynctile import __version__  # noqa: E402

project = "asynctile"
author = "the asynctile authors"
copyright = author
release = version = __version__
html_title = f"asynctile {release}"

extensions = ["myst_parser", "asynctile_docs"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "_ext"]

# A link to a name of asynctile must lead somewhere. Types of other projects are named and not linked.
nitpicky = True
nitpick_ignore_regex = [(r"py:\w+", r"(?!asynctile\b).*")]

add_module_names = False
python_display_short_literal_types = True
maximum_signature_line_length = 60
toc_object_entries_show_parents = "hide"
smartquotes = False
highlight_language = "text"
option_emphasise_placeholders = False

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
html_show_copyright = html_show_sphinx = False
html_domain_indices = False
# Contrast of 4.5 to 1 and more on each theme's background, comments included.
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
