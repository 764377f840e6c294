"""Sphinx's settings for `make site`: the repository's Markdown files as one site with search, in target/site.

What must hold: a file that no list of index.rst names, and a link without a target, end the build.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

project = "text-embeddings-router"
release = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
html_title = f"{project} {release}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
extensions = ["myst_parser"]
root_doc = "docs/site/index"
# Links to other files of the repository become downloads.
include_patterns = [
    "*.md", "benches/results/*.md", "deploy/*/*.md", "docs/**.md", "docs/site/index.rst", "examples/*.md", "integration_tests/reference/*.md",
    "models/**.md", "python/*.md",
]  # fmt: skip
exclude_patterns = [".venv", "dist", "target"]
# Anchors as GitHub makes them.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]


def routes() -> str:
    """A table of the routes for each task, by docs/openapi.json."""
    described = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
    parts = []
    for tag in described["tags"]:
        rows = [
            f"| `{method.upper()} {path}` | {operation.get('summary', '')} |"
            for path, operations in described["paths"].items()
            for method, operation in operations.items()
            if tag["name"] in operation["tags"]
        ]
        parts.append("\n".join([f"## {tag['name']}\n\n{tag.get('description', '')}\n\n| route | |\n|---|---|", *rows]))
    return "\n\n".join(parts)


def complete(_, name: str, text: list[str]) -> None:
    if name == "docs/site/routes":
        text[0] += "\n" + routes()
    elif name.startswith("benches/"):
        # Measurements are read by links only.
        text[0] = "---\norphan: true\n---\n" + text[0]


def setup(app) -> None:
    app.connect("source-read", complete)
