#!/usr/bin/env python3
"""Writes a new version everywhere: `scripts/version.py 0.3.0`, then `make docs`.

The workspace's Cargo.toml has the version. Without an argument, this names each file that differs from it and
fails. Needs only Python 3.11.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Files that name the version in a text of their own, because the program that reads them cannot ask Cargo.
FILES = [
    "Cargo.toml",
    "Dockerfile",
    "Dockerfile-cuda",
    "docker-bake.hcl",
    "deploy/compose/compose.yaml",
    "deploy/helm/Chart.yaml",
    "docs/migrating.md",
]
NAMED = re.compile(
    r'(?P<before>text-embeddings-router:|^ARG VERSION=|^variable "VERSION" \{ default = "|^version = "|^version: |^appVersion: )'
    r"(?P<version>\d+\.\d+\.\d+)",
    re.MULTILINE,
)


def main() -> int:
    current = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    wanted = sys.argv[1] if sys.argv[1:] else current
    wrong = []
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = [match["version"] for match in NAMED.finditer(text)]
        if not found or any(version != wanted for version in found):
            wrong.append(name)
        if sys.argv[1:]:
            (ROOT / name).write_text(NAMED.sub(rf"\g<before>{wanted}", text), encoding="utf-8")
    if wrong and not sys.argv[1:]:
        print(f"not version {wanted}, as in Cargo.toml: {', '.join(wrong)}; `scripts/version.py {wanted}` writes it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
