"""The example of the README: `examples/korean.json` as the body of a request, and `scripts/demo.py`."""

import json
import re
import subprocess
import sys
import unicodedata

import pytest
from server import BINARY, ROOT, Server, variables

EXAMPLE = ROOT / "examples/korean.json"
BODY = json.loads(EXAMPLE.read_text(encoding="utf-8"))
DEMO = ROOT / "scripts/demo.py"


def demo(*arguments: str) -> subprocess.CompletedProcess:
    # Whatever the terminal's width and encoding are.
    environment = variables({"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"})
    return subprocess.run(
        [sys.executable, str(DEMO), *arguments], capture_output=True, text=True, encoding="utf-8", timeout=60, env=environment
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


def check_table(output: str, server: Server) -> None:
    """The table has every text whole, in the server's order, and no line wider than the terminal."""
    output = output[output.index("\nrank ") :]
    ranks = server.rerank(**BODY)
    rows = re.findall(r"^ *(\d) +([01]\.\d{4}) ", output, re.M)
    assert [int(place) for place, _ in rows] == [1, 2, 3, 4, 5]
    assert [float(score) for _, score in rows] == pytest.approx([rank["score"] for rank in ranks], abs=1.01e-4)
    joined = re.sub(r"\s", "", output)
    places = [joined.index(re.sub(r"\s", "", BODY["texts"][rank["index"]])) for rank in ranks]
    assert places == sorted(places)
    assert max(width(line) for line in output.splitlines()) <= 80


def test_the_demo_says_that_its_model_is_random_and_prints_a_table(server: Server):
    ended = demo("--binary", str(BINARY))
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    first = ended.stdout.splitlines()[0]
    assert "RANDOM" in first and "Qwen/Qwen3-Reranker-0.6B" in first
    check_table(ended.stdout, server)


def test_the_demo_asks_a_running_server(server: Server):
    ended = demo("--url", server.url + "/")
    assert ended.returncode == 0 and "RANDOM" not in ended.stdout, ended.stderr
    check_table(ended.stdout, server)


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
