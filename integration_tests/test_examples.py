"""Every file of `examples/` runs as its head says, and prints the real server's answers."""

import ast
import contextlib
import email.utils
import json
import os
import random
import re
import subprocess
import sys
import time

import programs
import pytest
import requests
from busy_stub import Stub
from server import ANSWER_LIMIT, ROOT, Server

EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(EXAMPLES))
from rag_adapter import Passage, Ranked, Reranker, RerankError, retry_after  # noqa: E402

KEY = "k3y-of-the-server"
QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]
INSTRUCTION = "Given a question, find the passage that states the answer"
# The instruction that each script sends, if any.
SCRIPTS = {
    "rerank_requests.py": None,
    "rerank_cohere.py": INSTRUCTION,
    "rerank_litellm.py": INSTRUCTION,
    "rerank_llama_index.py": None,
    "rerank_haystack.py": None,
    "rerank_langchain.py": None,
}
OTHERS = ("rerank.sh", "rag_adapter.py", "decide_tickets.py", "decide_squad.py")
# Scripts may connect to loopback only, too. A client that tries another host prints that on the error stream.
GUARDED = (
    "import loopback, runpy, sys; loopback.guard(); sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
)
SHOWN = 1e-4


@pytest.fixture
def keyed(served) -> Server:
    return served("tied-bf16", "--api-key", KEY)


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    if name.endswith(".sh"):
        programs.require("curl")
    command = [str(EXAMPLES / name)] if name.endswith(".sh") else [sys.executable, "-c", GUARDED, str(EXAMPLES / name)]
    kept = {variable: os.environ[variable] for variable in ("PATH", "HOME") if variable in os.environ}
    environment = kept | {"PYTHONPATH": str(ROOT / "integration_tests"), "PYTHONIOENCODING": "utf-8"} | variables
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, encoding="utf-8", timeout=ANSWER_LIMIT, env=environment
    )


def scores(server: Server, **fields: object) -> dict[str, float]:
    """The server's score for each document."""
    body = {"query": QUERY, "texts": DOCUMENTS, **fields}
    answer = requests.post(
        f"{server.url}/rerank", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=ANSWER_LIMIT
    )
    return {DOCUMENTS[rank["index"]]: rank["score"] for rank in answer.json()}


def check_lines(output: str, expected: dict[str, float]) -> None:
    """Checks that the output has the two best documents, best first, each with its score."""
    rows = [re.fullmatch(r"(\d\.\d{4})  (.+)", line).groups() for line in output.splitlines()]
    assert [text for _, text in rows] == sorted(expected, key=lambda text: -expected[text])[:2]
    assert [float(score) for score, _ in rows] == pytest.approx([expected[text] for _, text in rows], abs=SHOWN)


def test_every_example_is_listed_and_tested():
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert names == {*SCRIPTS, *OTHERS}
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        assert path.is_dir() or path.name == "README.md" or f"]({path.name})" in index, path.name


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_prints_the_two_best(keyed, name):
    ended = run(name, keyed.url, RERANK_API_KEY=KEY)
    assert ended.returncode == 0 and "socket." not in ended.stderr, ended.stderr
    instruction = {} if SCRIPTS[name] is None else {"instruction": SCRIPTS[name]}
    check_lines(ended.stdout, scores(keyed, **instruction))


@pytest.mark.parametrize("name", [*SCRIPTS, *OTHERS])
def test_an_example_can_be_run_as_its_head_says(name):
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    assert f"examples/{name} http://127.0.0.1:8080" in text and "RERANK_URL" in text and "RERANK_API_KEY" in text
    assert (EXAMPLES / name).stat().st_mode & 0o111


def test_curl(keyed):
    ended = run("rerank.sh", RERANK_URL=keyed.url, RERANK_API_KEY=KEY)
    assert ended.returncode == 0 and ended.stderr == "", ended.stderr
    first, second = map(json.loads, ended.stdout.splitlines())
    expected = scores(keyed)
    assert {row["text"]: row["score"] for row in first} == pytest.approx(expected, abs=1e-5)
    expected = scores(keyed, instruction=INSTRUCTION)
    best = sorted(expected, key=lambda text: -expected[text])[:2]
    assert [row["document"]["text"] for row in second["results"]] == best
    assert [row["relevance_score"] for row in second["results"]] == pytest.approx([expected[text] for text in best], abs=1e-5)


@pytest.mark.parametrize("name", ["rerank_requests.py", "rerank_langchain.py", "rerank.sh", "rag_adapter.py", "decide_tickets.py"])
def test_our_own_examples_show_the_servers_message(keyed, name):
    ended = run(name, keyed.url, RERANK_API_KEY="wrong")
    assert ended.returncode != 0 and "wants its key" in ended.stdout + ended.stderr


def decide(server: Server, state: str, questions: dict, **fields: object) -> dict:
    """The server's answers to questions."""
    body = {"state": state, "questions": questions, **fields}
    answer = requests.post(f"{server.url}/v1/systemone", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=ANSWER_LIMIT)
    return answer.json()["answers"]


def constants(name: str) -> dict[str, object]:
    """The literals that a script assigns to names."""
    script = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
    found = {}
    for line in script.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                found[line.targets[0].id] = ast.literal_eval(line.value)
    return found


def test_tickets_go_to_the_team_that_the_server_is_sure_of(keyed):
    ended = run("decide_tickets.py", keyed.url, RERANK_API_KEY=KEY)
    assert ended.returncode == 0, ended.stderr
    script = constants("decide_tickets.py")
    for line, ticket in zip(ended.stdout.splitlines(), script["TICKETS"], strict=True):
        answers = decide(keyed, ticket, script["QUESTIONS"], options_order="both")
        team = answers["team"]["choice"]
        best = answers["team"]["probabilities"][team]
        route = team if best >= script["SURE"] else f"a person (perhaps {team})"
        rest = f"urgency {answers['urgency']['score']:.1f} of 3; refund {answers['refund']['noul']:.2f}"
        assert line == f"{best:.2f}  {route}; {rest}: {ticket!r}"


def test_right_decisions_are_counted(keyed, tmp_path, monkeypatch):
    words = ["Mars", "Venus", "Earth", "Saturn", "Pluto"]
    answered = [{"question": f"Which is number {index}?", "is_impossible": False, "answers": [{"text": word}]} for index, word in enumerate(words)]
    unanswered = [{"question": f"Where is {word}?", "is_impossible": True, "answers": []} for word in words]
    paragraph = {"context": "Five planets: Mars, Venus, Earth, Saturn, Pluto.", "qas": answered + unanswered}
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [paragraph] * 9}]}))
    monkeypatch.setattr(sys, "argv", ["decide_squad.py", "http://none", str(file)])
    import decide_squad as squad

    for question in paragraph["qas"]:
        made = squad.choice(question, [*words, "red Mars"], random.Random(3))
        if question["is_impossible"]:
            assert made is None and squad.yes_or_no(question)[1] is False
        else:
            options = list(made[0]["criteria"])
            assert made[1] == question["answers"][0]["text"] and made[1] in options and len(options) == 4
            assert made[1] != "Mars" or "red Mars" not in options
    ended = run("decide_squad.py", keyed.url, str(file), RERANK_API_KEY=KEY)
    assert ended.returncode == 0, ended.stderr
    given, both, yes_or_no, order = ended.stdout.splitlines()
    assert re.fullmatch(r"choice of 4, order given: \d+ of 45 right \(guessing: 11\)", given)
    assert re.fullmatch(r"choice of 4, order both: \d+ of 45 right \(guessing: 11\)", both)
    right, count, yes = map(int, re.fullmatch(r"yes or no: (\d+) of (\d+) right \(guessing: 18\); (\d+) times yes", yes_or_no).groups())
    questions = {question["question"]: squad.yes_or_no(question) for question in paragraph["qas"]}
    answers = decide(keyed, paragraph["context"], {text: question for text, (question, _) in questions.items()})
    rights = [(answers[text]["noul"] > 0.5) == truth for text, (_, truth) in questions.items()]
    if len({(answers[text]["noul"] > 0.5) for text in questions}) == 1:
        # Which questions are asked is drawn by lot, but half of them are answerable.
        assert sum(rights) * 2 == len(rights) and right * 2 == count == 36 and yes in (0, count)
    assert 0 <= yes <= count and 0 <= right <= count == 36
    assert re.fullmatch(r"yes or no: an answerable question gets .* in [01]\.\d\d of pairs \(guessing: 0\.50\)", order)


class TestRagAdapter:
    """The adapter, which records its pauses instead of sleeping."""

    passages = [
        Passage(DOCUMENTS[0], {"source": "handbook", "year": 2024}),
        Passage(DOCUMENTS[1], {"source": "forum", "year": None}),
        Passage(DOCUMENTS[2]),
    ]

    def reranker(self, url: str, **options: object) -> tuple[Reranker, list[float]]:
        pauses: list[float] = []
        return Reranker(url, KEY, pause=pauses.append, **options), pauses

    def test_as_a_program(self, keyed):
        ended = run("rag_adapter.py", keyed.url, RERANK_API_KEY=KEY)
        assert ended.returncode == 0 and ended.stderr == "", ended.stderr
        expected = scores(keyed)
        expected[DOCUMENTS[0]] *= 1.2 * 1.1
        expected[DOCUMENTS[2]] *= 1.2
        check_lines(ended.stdout, expected)

    def test_boosts_multiply_and_the_cut_comes_after_them(self, keyed):
        reranker, _ = self.reranker(keyed.url)
        plain = scores(keyed)
        order = sorted(plain, key=lambda text: -plain[text])
        rows = reranker.rank(QUERY, self.passages)
        assert [row.passage.text for row in rows] == order and all(row.score == row.model_score for row in rows)
        assert {row.passage.text: row.score for row in rows} == pytest.approx(plain, abs=1e-5)
        table = [
            ({("source", "forum"): 50.0}, {DOCUMENTS[1]: 50.0}),
            ({("source", "forum"): 50.0, ("year", None): 2.0}, {DOCUMENTS[1]: 100.0}),
            ({("source", "handbook"): 0.001, ("year", 2024): 10.0}, {DOCUMENTS[0]: 0.01}),
            # Neither another value of a key nor a missing key is a match.
            ({("source", "paper"): 50.0, ("author", None): 50.0, ("year", "2024"): 50.0}, {}),
        ]
        for boosts, factors in table:
            expected = {text: score * factors.get(text, 1) for text, score in plain.items()}
            best = sorted(expected, key=lambda text: -expected[text])
            for top_k in (1, 2, 3, 9):
                rows = reranker.rank(QUERY, self.passages, top_k=top_k, boosts=boosts)
                assert [row.passage.text for row in rows] == best[:top_k]
                assert [row.score for row in rows] == pytest.approx([expected[text] for text in best[:top_k]], abs=1e-3, rel=1e-4)
        assert reranker.rank(QUERY, []) == []

    def test_an_instruction_reaches_the_model(self, keyed):
        rows = self.reranker(keyed.url)[0].rank(QUERY, self.passages, instruction=INSTRUCTION)
        assert {row.passage.text: row.score for row in rows} == pytest.approx(scores(keyed, instruction=INSTRUCTION), abs=1e-5)

    def test_a_busy_server_is_asked_again_after_the_pause_that_it_names(self, keyed):
        refusals = [(429, {"Retry-After": "3"}), (503, {"Retry-After": "0"}), (429, {}), (503, {})]
        with Stub(keyed, refusals) as stub:
            reranker, pauses = self.reranker(stub.url)
            rows = reranker.rank(QUERY, self.passages)
        assert {row.passage.text: row.score for row in rows} == pytest.approx(scores(keyed), abs=1e-5)
        assert pauses[:2] == [3, 0]
        # Without `Retry-After`, the longest pause doubles with each attempt, and up to half of it is taken
        # off at random.
        assert 2 <= pauses[2] <= 4 and 4 <= pauses[3] <= 8
        assert len(stub.requests) == 5 and len(set(stub.requests)) == 1

    @pytest.mark.parametrize(
        ("refusals", "attempts", "words", "asked"),
        [
            ([(429, {"Retry-After": "1"})] * 3, 3, ["429", "3 attempt", "overloaded"], 3),
            ([(503, {})] * 2, 2, ["503", "2 attempt", "stopping"], 2),
            ([(429, {"Retry-After": "21"})], 5, ["429", "1 attempt", "overloaded"], 1),
            ([(502, {})], 5, ["502", "1 attempt", "Bad Gateway"], 1),
        ],
    )
    def test_it_gives_up_with_the_servers_message(self, keyed, refusals, attempts, words, asked):
        with Stub(keyed, refusals) as stub:
            reranker, pauses = self.reranker(stub.url, attempts=attempts)
            with pytest.raises(RerankError) as error:
                reranker.rank(QUERY, self.passages)
        assert all(word in str(error.value) for word in words), str(error.value)
        assert len(stub.requests) == asked and len(pauses) == asked - 1

    def test_no_pause_is_longer_than_the_longest(self, keyed):
        with Stub(keyed, [(503, {})] * 6) as stub:
            reranker, pauses = self.reranker(stub.url, attempts=7, longest_pause=5)
            assert isinstance(reranker.rank(QUERY, self.passages)[0], Ranked)
        assert len(pauses) == 6 and max(pauses) <= 5

    @pytest.mark.parametrize(
        ("value", "expected"),
        [("0", 0), ("17", 17), ("", None), ("soon", None), ("-1", None), (email.utils.formatdate(0, usegmt=True), 0)],
    )
    def test_when_to_come_back(self, value, expected):
        answer = requests.Response()
        answer.headers["Retry-After"] = value
        assert retry_after(answer) == expected
        answer.headers["Retry-After"] = email.utils.formatdate(time.time() + 3600, usegmt=True)
        assert 3000 < retry_after(answer) <= 3600

    def test_a_mistake_is_not_repeated(self, served):
        server = served("tied-bf16", "--api-key", KEY, "--max-rerank-texts", "2")
        with Stub(server, []) as stub:
            reranker, pauses = self.reranker(stub.url)
            with pytest.raises(RerankError) as error:
                reranker.rank(QUERY, self.passages)
        assert "422 after 1 attempt" in str(error.value) and "2" in str(error.value)
        assert len(stub.requests) == 1 and pauses == []

    def test_without_a_server_the_connection_fails(self):
        with pytest.raises(requests.ConnectionError):
            self.reranker("http://127.0.0.1:1", timeout=5)[0].rank(QUERY, self.passages)
