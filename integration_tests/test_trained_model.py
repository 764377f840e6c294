"""The tiny trained re-ranker inside the binary: its scores are transformers', and it ranks the right text
first.

The cases of trained_cases.json were written by hand before the model was trained. None of them is in its
training data.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from reference_data import EXAMPLES, FIXTURES
from server import BINARY, DEMO, Server, run, variables

CASES = json.loads((Path(__file__).parent / "trained_cases.json").read_text(encoding="utf-8"))
EXPECTED = {(row["query"], row["text"]): row for row in json.loads((FIXTURES / "expected/tiny-reranker.json").read_text("utf-8"))}
RAW_TOLERANCE = 1e-4
# The answer of the Korean example must be more probable than the next text by this much.
MARGIN = 0.2


@pytest.fixture(scope="module")
def trained(served) -> Server:
    return served(DEMO)


@pytest.mark.parametrize("case", CASES + EXAMPLES, ids=lambda case: case["query"])
def test_scores_are_those_of_transformers_and_differ(trained, case):
    scores = trained.scores(case["query"], case["texts"])
    expected = [EXPECTED[case["query"], text]["raw"] for text in case["texts"]]
    assert scores == pytest.approx(expected, abs=RAW_TOLERANCE, rel=0)
    probabilities = trained.scores(case["query"], case["texts"], raw_scores=False)
    assert probabilities == pytest.approx([EXPECTED[case["query"], text]["score"] for text in case["texts"]], abs=1e-5)
    assert len({round(score, 3) for score in scores}) == len(scores)


def test_the_expected_scores_are_of_these_pairs():
    assert set(EXPECTED) == {(case["query"], text) for case in CASES + EXAMPLES for text in case["texts"]}


def test_the_coach_of_the_right_years_comes_first_by_a_margin(trained):
    (korean, *_) = EXAMPLES
    first, second, *_ = trained.rerank(**korean)
    assert "스티브 크래그소프" in korean["texts"][first["index"]]
    assert first["score"] > second["score"] + MARGIN


def test_most_cases_written_by_hand_are_ranked_right(trained):
    assert len(CASES) == 10 and {case["language"] for case in CASES} == {"en", "ko", "zh", "ru", "es"}
    firsts = [trained.rerank(case["query"], case["texts"])[0]["index"] for case in CASES]
    wrong = [case["query"] for case, first in zip(CASES, firsts, strict=True) if first != case["best"]]
    assert len(wrong) <= 2, wrong


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_lower_precisions_rank_alike(trained, served, dtype):
    other = served(DEMO, "--dtype", dtype)
    for case in CASES + EXAMPLES:
        exact, rounded = (server.scores(case["query"], case["texts"], raw_scores=False) for server in (trained, other))
        assert max(range(len(exact)), key=exact.__getitem__) == max(range(len(rounded)), key=rounded.__getitem__), case["query"]


def test_the_binary_needs_no_other_file(tmp_path):
    """It runs outside the repository, without a network, and leaves no file behind."""
    alone = shutil.copy(BINARY, tmp_path / "router")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # A directory named `demo` does not count: it would be `./demo`.
    (tmp_path / "demo").mkdir()
    with Server(DEMO, environment={"TMPDIR": str(temporary)}) as server:
        assert server.get("/info").json()["model_id"] == DEMO
        assert list(temporary.iterdir()) == []
    # `download` reads the model like a server, and needs no folder for temporary files.
    environment = variables({"TMPDIR": str(tmp_path / "nowhere")})
    command = [alone, "download", DEMO]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, f"{DEMO}\n"), ended.stderr
    assert os.listdir(temporary) == []


def test_a_server_without_a_model_says_how_to_try_it():
    ended = run()
    assert ended.returncode == 1 and "`BAAI/bge-large-en-v1.5` is the default model" in ended.stderr, ended.stderr
    assert "--model-id demo" in ended.stderr, ended.stderr
