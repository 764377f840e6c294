#!/usr/bin/env python3
"""Checks that a type's name is defined once in the Rust code, so that it has one meaning.

`scripts/type_names.py` prints each struct, enum, union, trait or type alias that has the name of another one.
Tests do not count. It ends with status 1 if such a name is not in ALLOWED. `make check` runs it. Standard
library only."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Names that several files define on purpose, each with the one meaning that it has in all of them.
ALLOWED = {
    "LoadedHead": "a backend's own form of the head that `Head` describes",
    "Settings": "in a model's file: the fields of config.json that only this architecture has",
    "TurnedHeads": "an argument of a GPU kernel's launch, and of the kernel's twin on the CPU",
    "Turns": "an argument of a GPU kernel's launch, and of the kernel's twin on the CPU",
    "Workload": "the work on which a benchmark measures",
}
TESTS = re.compile(r"(^|/)((\w+_)?tests?|testing|examples|benches)(/|\.rs$)")
# An associated type is not a definition of its own: it is indented.
VISIBILITY = r"(?:pub(?:\([^)]*\))? )?"
DEFINITION = re.compile(
    rf"^(?: *{VISIBILITY}(?:unsafe )?(?:struct|enum|union|trait)|{VISIBILITY}type) (\w+)"
)
TEST_MODULE = re.compile(
    rf"#\[cfg\((?:test|all\(test)[^\n]*\n(?:#\[[^\n]*\n)*{VISIBILITY}mod \w+ \{{\n.*?^\}}", re.M | re.S
)


def definitions() -> dict[str, list[str]]:
    """For each name, the places of its definitions as `file:line`."""
    places = defaultdict(list)
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    # While a merge has conflicts, git lists a file several times.
    for file in sorted(set(listed.stdout.splitlines())):
        if TESTS.search(file):
            continue
        # A module of tests becomes as many empty lines, so that the lines after it keep their numbers.
        text = TEST_MODULE.sub(lambda match: "\n" * match.group().count("\n"), (ROOT / file).read_text())
        for number, line in enumerate(text.splitlines(), 1):
            if match := DEFINITION.match(line):
                places[match.group(1)].append(f"{file}:{number}")
    return places


def main() -> int:
    several = {name: places for name, places in definitions().items() if len(places) > 1}
    wrong = sorted(several.keys() - ALLOWED.keys())
    for name in wrong:
        print(f"`{name}` is the name of several types: {', '.join(several[name])}. Name each after its own meaning.")
    for name in sorted(ALLOWED.keys() - several.keys()):
        print(f"`{name}` is the name of one type at most: remove it from ALLOWED in scripts/type_names.py.")
    return 1 if wrong or ALLOWED.keys() - several.keys() else 0


if __name__ == "__main__":
    sys.exit(main())
