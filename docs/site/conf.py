"""Configuration of the documentation's site, which `make docs` builds.

The source folder is the repository, so that links from a page to any file are those that a reader of the repository
follows. Pages are Markdown. References are made from the code while the site is built: no copy can be out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.site.http_calls import render_http_calls
from docs.site.job_keys import render_job_keys
from docs.site.metrics import render_metrics
from docs.site.python_package import render_python_package
from services.version import tiermesh_version

project = "Tiermesh"
version = release = tiermesh_version()
extensions = ["myst_parser", "sphinx_click"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "tests"]
myst_heading_anchors = 4
highlight_language = "none"
default_role = "literal"  # a help text's `word`
html_theme = "furo"
html_title = f"Tiermesh {version}"


def render_tree() -> str:
    """Return the list of a folder's pages for the site's sidebar."""
    return "```{toctree}\n:hidden:\n:glob:\n\n[!R]*\n```\n"


MADE = {
    "docs/decisions/README": render_tree,
    "docs/notes/README": render_tree,
    "docs/operate/metrics": render_metrics,
    "docs/use/http-calls": render_http_calls,
    "docs/use/job-keys": render_job_keys,
    "docs/use/python-reference": render_python_package,
}
"""What makes the rest of a page, by its name."""


def add_what_is_made(_: Sphinx, page: str, source: list[str]) -> None:
    """Append what is made from the code to a page that is read."""
    if page in MADE:
        source[0] += f"\n{MADE[page]()}"


def setup(app: Sphinx) -> None:
    """Connect what is made."""
    app.connect("source-read", add_what_is_made)
