#!/usr/bin/env python3
"""Finds sentence shapes that readers have to decode, in comments, docstrings and Markdown.

`scripts/prose.py [PATH ...]` prints `file:line: rule: words` for each hit in the given files or folders (the whole
repository without one). `scripts/prose.py --rules` prints each rule with the wording to use instead.

`scripts/prose.py --check` is the part of `make check`: it counts the hits of each rule in each folder, and ends with
status 1 where a count is above the one in scripts/prose-counts.json. Counts may only fall: `UPDATE_PROSE=1
scripts/prose.py --check` writes the lower ones and keeps the others. Standard library only."""

import argparse
import ast
import json
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = ROOT / "scripts/prose-counts.json"
COLUMNS = 110
# Written by programs from words that are checked where they stand in the code; and this file, which quotes the shapes.
SKIPPED = re.compile(r"docs/cli\.md|benches/results/.*|models/tiny-reranker/EVAL\.md|scripts/prose\.py")
SLASHES = {".rs", ".js", ".cu", ".cuh", ".proto"}
HASHES = {".sh", ".toml", ".yaml", ".yml", ".hcl"}
HASH_NAMES = {"Makefile", "Dockerfile", "Dockerfile-cuda"}


@dataclass(frozen=True)
class Rule:
    name: str
    instead: str
    pattern: re.Pattern[str]
    # Whether a match of the pattern in this text is a hit.
    holds: Callable[[re.Match[str]], bool] = lambda match: True


# After these words "what" asks a question ("says what is missing"), which reads well.
ASKING = re.compile(
    r"\b(?:ask|choos|decid|describ|explain|find out|guess|learn|list|matter|print|read|report|sa[yi]|see|show|state|tell|told"
    r"|understand|wonder|kn[eo]w)[a-z]*$|\b(?:about|and|clear|exactly|just|or|out)$"
    # "That is what users see" and "it depends on what users ask" read well, too.
    r"|\b(?:is|are|was|be)(?: also| not)?$|\bdepends? on$",
    re.IGNORECASE,
)


def is_headless(match: re.Match[str]) -> bool:
    """Whether this "what" stands for a noun: not in a question, not in "says what is missing"."""
    before, after = match.string[: match.start()].rstrip(), match.string[match.end() :]
    end = re.search(r"[.?!:][\"”)]*(?:[\s,]|$)", after)
    # A question; or one of a list of subjects: "models: which there are, what each needs".
    if (end and end.group().startswith("?")) or before.endswith((",", ":")):
        return False
    # "Which there are, and what each needs" goes on with a question; of "says what is sent, and what comes back" the
    # first word decides.
    joined = re.sub(r"(?:,? and|,? or)$", "", before)
    if joined != before and re.search(r"\b(?:how|what|where|whether|who|why)\b[^.;]*$", joined, re.IGNORECASE):
        return False
    return not ASKING.search(joined)


RULES = [
    Rule(
        "headless-what",
        'name the thing: "abandoned texts" instead of "what nobody waits for"',
        re.compile(r"\b[Ww]hat (?!if |kind |sort |to |else\b|must hold:)\w+"),
        is_headless,
    ),
    Rule(
        "so-many",
        "the number's name: \"`limit` bytes\" instead of \"so many bytes\"",
        re.compile(r"\b[Ss]o (?:many|much)\b"),
        # "so many that …" counts nothing; it compares.
        lambda match: not re.match(r"[^.;:]* that\b", match.string[match.end() :]),
    ),
    Rule("is-none", '"is not a …", "belongs to no …"', re.compile(r"(?<!\b[Tt]here) (?:is|are|was|were) (?:none|nobody's)\b(?! of)")),
    Rule("of-which", "repeat the noun, or write two sentences", re.compile(r"(?<!all )(?<!both )(?<!each )(?<!many )(?<!most )(?<!none )(?<!one )(?<!some )\bof (?:which|whom)\b")),
    Rule("those-of", "repeat the noun", re.compile(r"\b(?:[Tt]hose|[Tt]hat) of\b")),
    Rule("beside", '"and", "as well as"; for a place "next to"', re.compile(r"\b[Bb]eside\b")),
    Rule("in-the-place-of", '"instead of"', re.compile(r"\b[Ii]n the place of\b")),
    Rule("is-got", '"is fetched", "is", "is requested"', re.compile(r"\b(?:is|are|was|were|be|been|being) (?:got|had|asked for)\b(?! (?:an?|the|its|their|it)\b)")),
    Rule("stands", '"is"', re.compile(r"\b(?:stand|stands|stood) (?:in|at|on|behind|before|under|there|above|below|after)\b(?! (?:its|their) own)")),
]
LONG_LINE = "long-line"
INSTEAD = {rule.name: rule.instead for rule in RULES} | {LONG_LINE: f"wrap at {COLUMNS} columns"}


@dataclass(frozen=True)
class Hit:
    path: str
    line: int
    rule: str
    words: str


# A line of a file's prose: its number, its words, and the whole line as it is in the file.
Line = tuple[int, str, str]


def after_slashes(source: str) -> Iterator[Line | None]:
    """Comments of Rust, JavaScript, CUDA and proto. None ends a paragraph."""
    in_block = is_behind_code = False
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if in_block or text.startswith("/*"):
            in_block = "*/" not in text
            yield number, re.sub(r"^/?\*+/?|\*/.*$", "", text).strip(), line
        elif whole := re.match(r"//[/!]?(.*)", text):
            if is_behind_code:
                yield None
            is_behind_code = False
            yield number, whole[1].strip(), line
        else:
            yield None
            # Behind code; an even number of quotes before it means that it is not in a string.
            tail = re.match(r'((?:[^"]|"[^"]*")*?)\s//\s(.*)', line)
            if tail and '"' not in tail[1].replace('\\"', "")[-1:]:
                is_behind_code = True
                yield number, tail[2], line
                yield None


def after_hashes(source: str) -> Iterator[Line | None]:
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"\s*#+ ?(.*)", line)
        yield (number, match[1], line) if match and not line.startswith("#!") else None


def python(source: str) -> Iterator[Line | None]:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            if lines[token.start[0] - 1].strip() != token.string:
                yield None
            yield token.start[0], token.string.lstrip("# "), lines[token.start[0] - 1]
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            yield None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            text = node.body[0]
            yield None
            for number in range(text.lineno, text.end_lineno + 1):
                yield number, lines[number - 1].strip().strip('"'), lines[number - 1]
    yield None


def markdown(source: str) -> Iterator[Line | None]:
    """All lines but those between `<!-- name -->` and `<!-- /name -->`, which programs write."""
    is_made = False
    for number, line in enumerate(source.splitlines(), 1):
        if mark := re.match(r"<!-- (/|end)?", line):
            is_made = not mark[1]
        yield None if is_made or mark else (number, line.strip(), line)


def prose(path: Path, source: str) -> Iterator[Line | None]:
    if path.suffix == ".md":
        return markdown(source)
    if path.suffix == ".py":
        return python(source)
    if path.suffix in SLASHES:
        return after_slashes(source)
    return after_hashes(source)


def paragraphs(lines: Iterator[Line | None]) -> Iterator[list[tuple[int, str]]]:
    """Sentences that belong together: without code, headings and empty lines; each cell of a table on its own."""
    paragraph: list[tuple[int, str]] = []
    in_code = False
    for line in lines:
        text = line[1] if line else ""
        if text.startswith("```"):
            in_code = not in_code
        starts_new = not text or in_code or text.startswith(("```", "#", "|", "- ", "* ")) or re.match(r"\d+\. ", text)
        if starts_new and paragraph:
            yield paragraph
            paragraph = []
        if line is None:
            in_code = False
        elif not in_code and text.startswith("|"):
            yield from ([(line[0], cell.strip())] for cell in text.split("|") if cell.strip())
        elif text and not in_code and not text.startswith(("```", "#")):
            paragraph.append((line[0], re.sub(r"^(?:[-*]|\d+\.) ", "", text)))
    if paragraph:
        yield paragraph


def hits(path: Path, source: str) -> Iterator[Hit]:
    name = str(path.relative_to(ROOT))
    lines = list(prose(path, source))
    in_code = False
    for line in filter(None, lines):
        in_code ^= line[1].startswith("```")
        # Tables, code and a word that is longer than a line cannot be wrapped.
        can_wrap = not in_code and not line[1].startswith(("|", "```")) and " " in line[1].strip("-* ")[:COLUMNS]
        if len(line[2]) > COLUMNS and can_wrap:
            yield Hit(name, line[0], LONG_LINE, f"{len(line[2])} columns")
    for paragraph in paragraphs(iter(lines)):
        # A name in backticks and the address of a link are no English.
        text = re.sub(r"`[^`]*`|(?<=\])\([^)]*\)", lambda match: "X" * len(match[0]), " ".join(words for _, words in paragraph))
        places = [number for number, words in paragraph for _ in f"{words} "]
        for rule in RULES:
            for match in rule.pattern.finditer(text):
                if rule.holds(match):
                    yield Hit(name, places[match.start()], rule.name, text[max(0, match.start() - 30) : match.end() + 30])


def files(below: list[Path]) -> list[Path]:
    """The files with prose in these files and folders, without built and installed ones."""
    kinds = {".md", ".py"} | SLASHES | HASHES
    found = []
    for start in below:
        for folder, folders, names in os.walk(start) if start.is_dir() else [(start.parent, [], [start.name])]:
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in ("target", "dist", "corpus", "fixtures"))
            found += [Path(folder) / name for name in sorted(names)]
    return [path for path in found if (path.suffix in kinds or path.name in HASH_NAMES) and not SKIPPED.fullmatch(str(path.relative_to(ROOT)))]


def folder(name: str) -> str:
    """The folder that a file's hits are counted in: a crate, or the first part of its path."""
    parts = name.split("/")
    if len(parts) == 1:
        return "."
    return "/".join(parts[:2]) if parts[0] == "backends" and len(parts) > 2 else parts[0]


def check(found: list[Hit]) -> int:
    counted: dict[str, Counter[str]] = {}
    for hit in found:
        counted.setdefault(folder(hit.path), Counter())[hit.rule] += 1
    allowed = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else counted
    above = [
        f"{place}: {rule}: {number} instead of at most {allowed.get(place, {}).get(rule, 0)} (write {INSTEAD[rule]};"
        f" scripts/prose.py {place} lists them)"
        for place, rules in sorted(counted.items())
        for rule, number in sorted(rules.items())
        if number > allowed.get(place, {}).get(rule, 0)
    ]
    if "UPDATE_PROSE" in os.environ:
        kept = {
            place: {rule: min(number, counted.get(place, {}).get(rule, 0)) for rule, number in sorted(rules.items())}
            for place, rules in sorted(allowed.items())
        }
        kept = {place: left for place, rules in kept.items() if (left := {rule: n for rule, n in rules.items() if n})}
        COUNTS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print("\n".join(above) or f"Prose: {len(found)} hits, none more than before")
    return bool(above)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or folders, relative to the repository; all without one")
    parser.add_argument("--rules", action="store_true", help="print the rules")
    parser.add_argument("--check", action="store_true", help="compare the counts with those that are checked in")
    arguments = parser.parse_args()
    if arguments.rules:
        print("\n".join(f"{name}: {instead}" for name, instead in INSTEAD.items()))
        return 0
    below = [Path(path).resolve() for path in arguments.paths] or [ROOT]
    found = [hit for path in files(below) for hit in hits(path, path.read_text(encoding="utf-8"))]
    if arguments.check:
        return check(found)
    for hit in found:
        print(f"{hit.path}:{hit.line}: {hit.rule}: {hit.words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
