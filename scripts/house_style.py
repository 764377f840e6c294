#!/usr/bin/env python3
"""Counts the breaches of those house rules in CONTRIBUTING.md that no lint checks.

`scripts/house_style.py [RULE ...]` prints the places of each hit (all rules without one), and a line with the
totals. Tests do not count.

`scripts/house_style.py --check` is the part of `make check`. It ends with status 1 where a rule has more hits
than scripts/house-style-counts.json allows. The numbers may only fall: `UPDATE_HOUSE_STYLE=1
scripts/house_style.py --check` writes the lower ones. Names of types that are defined twice are listed in
TYPE_NAMES, each with its one meaning. Standard library only."""

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "scripts/house-style-counts.json"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
# Names that several files define on purpose, each with the one meaning that it has in all of them.
TYPE_NAMES = {
    "Certificate": "the door's certificate: with the feature `tls`, or without",
    "Client": "the connection to the Hub: with the feature `tls`, or without",
    "RequestSpan": "with the feature `traces`, or without",
    "ResponseBody": "the Hub's answer: with the feature `tls`, or without",
    "Settings": "in a model's file: the fields of config.json that only this architecture has",
    "TlsStream": "the door's stream with TLS: with the feature `tls`, or without",
    "Traces": "with the feature `traces`, or without",
    "Workload": "the work on which a benchmark measures",
}
TESTS = re.compile(r"(^|/)((\w+_)?tests?|testing|examples|benches|fuzz)(/|\.rs$)")
VISIBILITY = r"(?:pub(?:\([^)]*\))? )?"
TEST_MODULE = re.compile(
    rf"#\[cfg\((?:test|all\(test)[^\n]*\n(?:#\[[^\n]*\n)*{VISIBILITY}mod \w+ \{{\n.*?^\}}", re.M | re.S
)
# The declaration of a module whose file is compiled for tests only.
TEST_FILE = re.compile(rf"#\[cfg\((?:test|all\(test)[^\n]*\n(?:#\[[^\n]*\n)*{VISIBILITY}mod (\w+);")
# A comment, a string, or a character: their words are not code.
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|r(#*)\".*?\"\1|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\\n]|\\[^\n])'", re.S)
# An associated type is not a definition of its own: it is indented.
TYPE_DEFINITION = re.compile(
    rf"^(?: *{VISIBILITY}(?:unsafe )?(?:struct|enum|union|trait)|{VISIBILITY}type) (\w+)", re.M
)
FUNCTION = re.compile(rf"^( *){VISIBILITY}(?:const )?(?:async )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", re.M)


def blank(match: re.Match[str]) -> str:
    """As many empty lines, so that lines keep their numbers."""
    return "\n" * match.group().count("\n")


@dataclass(frozen=True)
class Source:
    file: str
    text: str

    @cached_property
    def code(self) -> str:
        """The text without tests, comments and strings."""
        return NOT_CODE.sub(lambda match: '""' + blank(match), TEST_MODULE.sub(blank, self.text))

    def line(self, offset: int) -> int:
        return self.code.count("\n", 0, offset) + 1

    @property
    def crate(self) -> str:
        return self.file.split("/src/")[0]

    @property
    def module_path(self) -> list[str]:
        """The module, and those that it is in."""
        names = self.module.split("::")
        return ["::".join(names[:count]) for count in range(1, len(names) + 1)]

    @property
    def module(self) -> str:
        """`crate::files::hub` of core/src/files/hub.rs."""
        inside = re.sub(r"(^|/)(mod|lib|main)\.rs$|\.rs$", "", self.file.split("/src/", 1)[1])
        return "::".join(["crate", *filter(None, inside.split("/"))])


@dataclass(frozen=True)
class Hit:
    rule: str
    place: str
    words: str


def sources() -> list[Source]:
    # While a merge has conflicts, git lists a file several times.
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = sorted(file for file in set(listed.stdout.splitlines()) if "/src/" in file and not TESTS.search(file))
    found = [Source(file, (ROOT / file).read_text()) for file in files if (ROOT / file).exists()]
    tests = {(it.crate, f"{it.module}::{name}") for it in found for name in TEST_FILE.findall(it.text)}
    return [it for it in found if not any((it.crate, module) in tests for module in it.module_path)]


# Rules that a search in the code finds.
SHAPES = {
    "named-closure": re.compile(r"\blet (?:mut )?\w+(?:: [^=\n]+)? =\s+(?:move )?\|"),
    "option-filter": re.compile(r"\.filter\(\|_\| "),
    "constructor-of": re.compile(r"\bfn of\b"),
    "max-word": re.compile(r"\b(?:\w+_)?(?:most|longest)(?:_\w+)?\b"),
    "one-word-function": re.compile(r"\bfn [a-z0-9]+\b"),
}
# A parameter whose type is a tuple without a name, alone or behind a reference or in a slice.
TUPLE = re.compile(r"[(,]\s*\(?[\w, ]+\)?: &?(?:mut )?(?:\[)?\((?!\)|dyn )")


def parameters_at(code: str, start: int) -> str:
    """The text from the first parenthesis behind `start` to the one that closes it."""
    start = code.find("(", start)
    depth = 0
    for end in range(start, len(code)):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        if depth == 0:
            return code[start : end + 1]
    return code[start:]


def long_functions(source: Source) -> Iterator[tuple[int, str]]:
    lines = source.code.splitlines()
    for match in FUNCTION.finditer(source.code):
        # A trait's method may have no body.
        body = re.compile(r"[;{]").search(source.code, match.end() + len(parameters_at(source.code, match.end())))
        if not body or body.group() == ";":
            continue
        start = source.line(match.start(2))
        ends = (number for number in range(start, len(lines)) if lines[number].startswith(match[1] + "}"))
        length = next(ends, start) - start + 2
        if length > MAX_FUNCTION_LINES:
            yield start, f"{match[2]} has {length} lines"


def hits_in(source: Source) -> Iterator[Hit]:
    for rule, shape in SHAPES.items():
        for match in shape.finditer(source.code):
            yield Hit(rule, f"{source.file}:{source.line(match.start())}", " ".join(match.group().split()))
    for function in FUNCTION.finditer(source.code):
        for match in TUPLE.finditer(parameters_at(source.code, function.end())):
            place = f"{source.file}:{source.line(function.start(2))}"
            yield Hit("tuple-parameter", place, f"{function[2]}: {match.group()[1:].strip()}")
    for line, words in long_functions(source):
        yield Hit("long-function", f"{source.file}:{line}", words)
    lines = TEST_MODULE.sub("", source.text).count("\n")
    if lines > MAX_FILE_LINES:
        yield Hit("long-file", source.file, f"{lines} lines without tests")


def type_names(all_sources: list[Source]) -> Iterator[Hit]:
    places = defaultdict(list)
    for source in all_sources:
        for match in TYPE_DEFINITION.finditer(source.code):
            places[match[1]].append(f"{source.file}:{source.line(match.start())}")
    several = {name for name, found in places.items() if len(found) > 1}
    for name in sorted(several - TYPE_NAMES.keys()):
        yield Hit("type-name", places[name][0], f"`{name}` is also defined at {', '.join(places[name][1:])}: name each after its meaning")
    for name in sorted(TYPE_NAMES.keys() - several):
        yield Hit("type-name", "scripts/house_style.py", f"`{name}` has one definition at most: remove it from TYPE_NAMES")


def use_paths(code: str) -> Iterator[str]:
    """Each path that begins with `crate::`, `super::` or `self::`, those in braces one by one."""
    for match in re.finditer(r"\b((?:crate|super|self)(?:::\w+)*)(?:::\{)?", code):
        if match.group().endswith("{"):
            yield from in_braces(match[1], code, match.end())
        elif "::" in match[1] or match[1] == "super":
            yield match[1]


def in_braces(prefix: str, code: str, start: int) -> Iterator[str]:
    depth, word = 0, ""
    for at in range(start, len(code)):
        char = code[at]
        if char == "}" and depth == 0:
            break
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0 and char == ",":
            yield f"{prefix}::{word.strip()}"
            word = ""
        elif depth == 0:
            word += char
        # Of nested braces, the module before them is enough.
        elif char == "{":
            word = word.rstrip(":")
    if word.strip():
        yield f"{prefix}::{word.strip()}"


def imports(source: Source, modules: dict[str, str], exports: dict[str, dict[str, str]]) -> set[str]:
    """The files of the crate that this file names, other than modules above it that only lead to others."""
    found = set()
    code = re.sub(r"^pub(?:\([^)]*\))? use .*?;", "", source.code, flags=re.M | re.S)
    code = re.sub(r"\bpub\([^)]*\)", "pub", code)
    for path in use_paths(code):
        parts = path.split(" as ")[0].strip("}: ").split("::")
        base = source.module.split("::")
        if parts[0] == "crate":
            base, parts = ["crate"], parts[1:]
        while parts and parts[0] in ("super", "self"):
            base = base[:-1] if parts[0] == "super" else base
            parts = parts[1:]
        for part in parts:
            longer = "::".join([*base, part])
            if longer in modules:
                base.append(part)
                continue
            exported = exports.get("::".join(base), {}).get(part)
            base = exported.split("::") if exported else base
            break
        target = modules.get("::".join(base))
        if target and target != source.file:
            found.add(target)
    return found


def re_exports(source: Source) -> dict[str, str]:
    """Names that a module hands on, with the modules that define them."""
    found = {}
    for use in re.finditer(r"^pub(?:\([^)]*\))? use ((?:self::|crate::)?[\w:]+?)::(\w+|\{[^}]*\});", source.code, re.M | re.S):
        module = use[1] if use[1].startswith("crate::") else f"{source.module}::{use[1].removeprefix('self::')}"
        for name in re.findall(r"\w+", use[2]):
            found[name] = module
    return found


def circles(all_sources: list[Source]) -> Iterator[Hit]:
    """The largest set of files of a crate that reach each other by imports; two files count as none."""
    by_crate = defaultdict(list)
    for source in all_sources:
        by_crate[source.crate].append(source)
    for files in by_crate.values():
        modules = {source.module: source.file for source in files}
        exports = {source.module: re_exports(source) for source in files}
        edges = {source.file: imports(source, modules, exports) for source in files}
        largest = max((circle for circle in strong_components(edges)), key=len)
        if len(largest) > 1:
            for file in sorted(largest):
                yield Hit("circle", file, "imports " + ", ".join(sorted(edges[file] & largest)))


def strong_components(edges: dict[str, set[str]]) -> list[set[str]]:
    def reachable(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for target in edges[todo.pop()] - seen:
                seen.add(target)
                todo.append(target)
        return seen

    reach = {file: reachable(file) for file in edges}
    return [{file} | {other for other in reach[file] if file in reach[other]} for file in edges]


def main() -> int:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    all_sources = sources()
    hits = [hit for source in all_sources for hit in hits_in(source)]
    hits += [*type_names(all_sources), *circles(all_sources)]
    if "--check" in sys.argv:
        return check(hits)
    for hit in hits:
        if not arguments or hit.rule in arguments:
            print(f"{hit.place}: {hit.rule}: {hit.words}")
    functions = sum(len(FUNCTION.findall(source.code)) for source in all_sources)
    lines = sum(TEST_MODULE.sub("", source.text).count("\n") for source in all_sources)
    print(dict(Counter(hit.rule for hit in hits)), f"in {lines} lines with {functions} functions")
    return 0


def check(hits: list[Hit]) -> int:
    counts = Counter(hit.rule for hit in hits)
    allowed: dict[str, int] = json.loads(COUNTS.read_text())
    for rule in sorted(counts):
        if counts[rule] > allowed.get(rule, 0):
            print(f"{counts[rule]} hits of `{rule}`, and {allowed.get(rule, 0)} are allowed: scripts/house_style.py {rule}")
    if os.environ.get("UPDATE_HOUSE_STYLE") == "1":
        lower = {rule: min(counts[rule], limit) for rule, limit in allowed.items()}
        COUNTS.write_text(json.dumps({rule: number for rule, number in lower.items() if number}, indent=2, sort_keys=True) + "\n")
    return int(any(number > allowed.get(rule, 0) for rule, number in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
