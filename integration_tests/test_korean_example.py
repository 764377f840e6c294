"""The README's example, `examples/korean.json`, as a request body; and `scripts/demo.py`."""

import json
import re
import subprocess
import sys
import unicodedata

import pytest
from reference_data import EXAMPLES
from server import BINARY, DEMO, ROOT, Server, variables

EXAMPLE = ROOT / "examples/korean.json"
BODY = json.loads(EXAMPLE.read_text(encoding="utf-8"))
SCRIPT = ROOT / "scripts/demo.py"


def demo(*arguments: str) -> subprocess.CompletedProcess:
    # Do not depend on the width and encoding of the terminal.
    environment = variables({"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"})
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, encoding="utf-8", timeout=60, env=environment
    )


def width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def test_the_example_is_the_one_of_the_readme():
    assert set(BODY) == {"query", "texts"} and len(BODY["texts"]) == 5
    assert BODY["query"] == "2003년부터 2006년까지 털사 대학교의 미식축구 감독은 누구였나요?"
    (answer,) = [text for text in BODY["texts"] if "크래그소프" in text]
    assert "2003년부터 2006년까지" in answer and BODY["texts"][0] != answer
    assert sum("털사 대학교" in text and text != answer for text in BODY["texts"]) == 1


def test_the_example_is_served(server: Server):
    answer = server.post("/rerank", data=EXAMPLE.read_bytes(), headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    ranks = answer.json()
    assert sorted(rank["index"] for rank in ranks) == [0, 1, 2, 3, 4]
    assert len({rank["score"] for rank in ranks}) == 5
    for rank in ranks:
        (alone,) = server.scores(BODY["query"], [BODY["texts"][rank["index"]]], raw_scores=False)
        assert rank["score"] == pytest.approx(alone, abs=1e-5)
    pairs = server.post("/predict", {"inputs": [[BODY["query"], text] for text in BODY["texts"]]}).json()
    assert [labels[0]["score"] for labels in pairs] == pytest.approx(
        [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])], abs=1e-5
    )


def check_tables(output: str, server: Server) -> None:
    """Checks that each table has all texts, in the server's order, with scores and bars, in 80 columns."""
    tables = output.split("\nquery: ")[1:]
    assert len(tables) == len(EXAMPLES)
    for table, body in zip(tables, EXAMPLES, strict=True):
        ranks = server.rerank(**body)
        table = table[table.index("\nrank ") :]
        rows = re.findall(r"^ *(\d) +([01]\.\d{4}) ([█▏▎▍▌▋▊▉ ]{10})  ", table, re.M)
        assert [int(place) for place, _, _ in rows] == list(range(1, len(ranks) + 1))
        assert [float(score) for _, score, _ in rows] == pytest.approx([rank["score"] for rank in ranks], abs=1.01e-4)
        lengths = [sum(" ▏▎▍▌▋▊▉█".index(character) for character in bar) / 80 for _, _, bar in rows]
        assert lengths == pytest.approx([rank["score"] for rank in ranks], abs=1 / 150)
        joined = re.sub(r"[\s█▏▎▍▌▋▊▉]", "", table)
        places = [joined.index(re.sub(r"\s", "", body["texts"][rank["index"]])) for rank in ranks]
        assert places == sorted(places)
        assert max(width(line) for line in table.splitlines()) <= 80


def test_the_demo_says_how_far_its_model_can_be_trusted_and_prints_tables():
    ended = demo("--binary", str(BINARY))
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    first = ended.stdout.splitlines()[0]
    assert "tiny" in first and "Qwen/Qwen3-Reranker-0.6B" in first
    with Server(DEMO) as server:
        check_tables(ended.stdout, server)


def test_the_demo_asks_a_running_server(server: Server):
    ended = demo("--url", server.url + "/")
    assert ended.returncode == 0 and "tiny" not in ended.stdout, ended.stderr
    check_tables(ended.stdout, server)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--binary", "/nowhere/router"], ["/nowhere/router", "cargo build"]),
        (["--binary", "/bin/false"], ["/bin/false", "exit code 1"]),
        (["--binary", "/bin/true"], ["/bin/true", "exit code 0"]),
        (["--binary", str(BINARY), "--model-id", "/nowhere/model"], ["--model-id /nowhere/model", "exit code 1"]),
        (["--url", "http://127.0.0.1:1"], ["http://127.0.0.1:1", "refused"]),
        (["--url", "nonsense"], ["nonsense"]),
    ],
)
def test_a_demo_that_cannot_run_says_why(arguments, expected):
    ended = demo(*arguments)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert all(word in ended.stderr for word in expected), ended.stderr
