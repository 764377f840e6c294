"""The prose check (`scripts/prose.py`): each rule finds its shape and leaves good sentences alone."""

import json
import sys

import pytest
from server import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import prose  # noqa: E402


def found(name: str, source: str) -> list[tuple[int, str]]:
    return [(hit.line, hit.rule) for hit in prose.hits(ROOT / name, source)]


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("What nobody waits for is dropped.", "headless-what"),
        ("It counts the tokens of what is left.", "headless-what"),
        ("Takes so many bytes.", "so-many"),
        ("An origin that is none is refused.", "is-none"),
        ("A list of which the first is best.", "of-which"),
        ("Its scores are those of the server.", "those-of"),
        ("It runs beside the server.", "beside"),
        ("It is taken in the place of the file.", "in-the-place-of"),
        ("The outputs that are asked for.", "is-got"),
        ("The texts that stand in it.", "stands"),
        ("word " * 23, "long-line"),
    ],
)
@pytest.mark.parametrize("name", ["x.md", "x.rs", "x.py", "x.sh"])
def test_a_shape_is_found(name, sentence, rule):
    opening = {"x.md": "", "x.rs": "/// ", "x.py": "# ", "x.sh": "# "}[name]
    assert found(name, f"{opening}{sentence}\n") == [(1, rule)]


@pytest.mark.parametrize(
    "sentence",
    [
        "The error says what is wrong, and what to do.",
        "What does it cost?",
        'Asked "What is it?", it answers.',
        "So many texts wait that a request is refused.",
        "There are none.",
        "Ten files, none of which is large.",
        "It takes its place.",
        "The client was asked for its key.",
        "This stands for the query.",
        "`what nobody waits for`",
    ],
)
def test_a_good_sentence_is_left_alone(sentence):
    assert found("x.md", sentence + "\n") == []


def test_a_shape_is_found_across_lines_and_behind_code_and_not_in_code():
    assert found("x.rs", "// It is a list\n// of which none is left.\n") == [(2, "of-which")]
    assert found("x.rs", "/// It is a list of\n/// which none is left.\n") == [(1, "of-which")]
    assert found("x.rs", "let a = 1; // It stands in a line.\n") == [(1, "stands")]
    assert found("x.rs", 'let a = "// It stands in a line";\n') == []
    assert found("x.py", 'def f():\n    """Asks.\n\n    It stands in a line."""\n') == [(4, "stands")]
    assert found("x.py", 'a = "It stands in a line"\n') == []
    assert found("x.md", "```\nIt stands in a line\n```\n# It stands in a heading\n\n| It stands in a cell |\n") == [(6, "stands")]


def test_a_table_and_a_long_word_may_be_wider():
    assert found("x.md", "| " + "word " * 40 + "|\n") == []
    assert found("x.md", "https://" + "x" * 150 + "\n") == []


def test_counts_may_only_fall(tmp_path, monkeypatch, capsys):
    counts = tmp_path / "counts.json"
    monkeypatch.setattr(prose, "COUNTS", counts)
    counts.write_text(json.dumps({"core": {"stands": 2, "beside": 1}}), encoding="utf-8")
    hit = prose.Hit("core/x.rs", 1, "stands", "")
    assert prose.check([hit, hit]) == 0
    assert prose.check([hit, hit, hit]) == 1 and "core: stands: 3 instead of at most 2" in capsys.readouterr().out
    assert prose.check([prose.Hit("router/src/x.rs", 1, "stands", "")]) == 1
    monkeypatch.setenv("UPDATE_PROSE", "1")
    assert prose.check([hit]) == 0 and json.loads(counts.read_text()) == {"core": {"stands": 1}}
    assert prose.check([hit, hit]) == 1 and json.loads(counts.read_text()) == {"core": {"stands": 1}}
