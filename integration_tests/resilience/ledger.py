"""Writes the tests' own results into the table of attacks in docs/hardening.md.

Input: one row for each attack. Output: the rows between two marks in the document. Invariants: with
UPDATE_DOCS=1, a test writes its row; without, the test fails if the document lacks exactly that row. The
numbers in a row must be the same in each run. The first column identifies the row.
"""

import os
from pathlib import Path

from server import ROOT

PAGE = ROOT / "docs/hardening.md"
BEGIN, END = "<!-- begin: resilience -->\n", "<!-- end: resilience -->"


def record(what: str, tried: int, lost: int, holds: str) -> None:
    """Adds a row: the attack, how often it was tried, how many requests of other clients were lost, and what
    protects the server."""
    row = f"| {what} | {tried:,} | {lost or 'nothing'} | {holds} |\n"
    before, rows, after = _parts(PAGE)
    if row in rows:
        return
    assert os.environ.get("UPDATE_DOCS") == "1", f"docs/hardening.md lacks {row}run the test with UPDATE_DOCS=1"
    same = [index for index, old in enumerate(rows) if old.startswith(f"| {what} |")]
    if same:
        rows[same[0]] = row
    else:
        rows.append(row)
    PAGE.write_text(before + BEGIN + "".join(rows) + END + after, encoding="utf-8")


def _parts(page: Path) -> tuple[str, list[str], str]:
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    rows, after = rest.split(END)
    return before, rows.splitlines(keepends=True), after
