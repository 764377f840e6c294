"""`eval`, `compare` and `calibrate` of the Python package: right numbers; one sentence for a wrong file."""

import json
import math
import os
import sys
from pathlib import Path

import pytest
from server import BINARY, DEMO, ROOT, Server

sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("TEXT_EMBEDDINGS_ROUTER", str(BINARY))

np = pytest.importorskip("numpy")
pytest.importorskip("ir_measures", reason="the extra `eval` is not installed")
from text_embeddings_router.evaluation import calibrate, command, decisions  # noqa: E402
from text_embeddings_router.evaluation.questions import QuestionsError, read  # noqa: E402

CASES = json.loads((Path(__file__).parent / "trained_cases.json").read_text(encoding="utf-8"))


REQUESTS = 'te_request_count{method="batch"}'


@pytest.fixture(scope="module")
def demo() -> Server:
    with Server(DEMO) as server:
        yield server


@pytest.fixture
def cases(tmp_path) -> Path:
    """The ten cases that were written by hand. The right text is last: the worst order."""
    file = tmp_path / "cases.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for case in CASES:
            texts = [text for at, text in enumerate(case["texts"]) if at != case["best"]] + [case["texts"][case["best"]]]
            out.write(json.dumps({"query": case["query"], "documents": texts, "relevant": [len(texts) - 1]}) + "\n")
    return file


def folder(path: Path, **files: str) -> Path:
    """A BEIR folder of two queries and three documents, with other content for the named files."""
    path.mkdir()
    contents = {
        "corpus": '{"_id": "d1", "title": "Mars", "text": "is red"}\n{"_id": "d2", "text": "bread"}\n{"_id": "d3", "text": "flour"}\n',
        "queries": '{"_id": "q1", "text": "red planet"}\n{"_id": "q2", "text": "flour bread"}\n',
        "qrels": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td3\t2\nq2\td2\t1\n",
        "run": "q1 Q0 d2 1 3.5 x\nq1 Q0 d1 2 1 x\nq2 Q0 d1 1 2 x\nq2 Q0 d3 2 1 x\n",
    }
    for name, content in {**contents, **files}.items():
        ending = {"qrels": "qrels.tsv", "run": "run.txt"}.get(name, f"{name}.jsonl")
        (path / ending).write_bytes(content.encode("utf-8", "surrogateescape"))
    return path


def test_the_forms_of_questions_say_the_same(tmp_path):
    beir = folder(tmp_path / "beir")
    found = read(beir, run=beir / "run.txt")
    assert found.candidates == {"q1": ["d2", "d1"], "q2": ["d1", "d3"]}
    assert found.grades == {"q1": {"d1": 1}, "q2": {"d3": 2, "d2": 1}} and found.documents["d1"] == "Mars is red"
    trec = folder(tmp_path / "trec", qrels="q1 0 d1 1\nq2 0 d3 2\nq2 0 d2 1\n")
    assert read(trec, run=beir / "run.txt").grades == found.grades
    # BM25 finds the texts with the words of the query.
    assert {query: sorted(rows[:2]) for query, rows in read(beir, top=2).candidates.items()}["q2"] == ["d2", "d3"]
    hotpot = [{"question": "red?", "context": [["Mars", ["is red.", " Yes."]], ["Bread", ["is baked."]]], "supporting_facts": [["Mars", 0]]}]
    (tmp_path / "hotpot.json").write_text(json.dumps(hotpot))
    found = read(tmp_path / "hotpot.json")
    assert found.documents == {"0-0": "Mars is red. Yes.", "0-1": "Bread is baked."} and found.grades["0"] == {"0-0": 1, "0-1": 0}


WRONG = {
    "a qrels line of three columns": ({"qrels": "q1 0 d1 1\nq2 d3 2\n"}, "qrels.tsv, line 2: has 3 columns instead of 4"),
    "an unknown document": ({"qrels": "q1 0 d9 1\n"}, "qrels.tsv, line 1: names the document 'd9', which is not in documents"),
    "a document twice": ({"corpus": '{"_id": "d1", "text": "a"}\n' * 2}, "corpus.jsonl, line 2: has the id 'd1' a second time"),
    "a grade that is no number": ({"qrels": "q1 0 d1 NaN\n"}, "qrels.tsv, line 1: has 'NaN' where a number must be"),
    "a score that is no number": ({"run": "q1 Q0 d1 1 nan x\n"}, "run.txt, line 1: has 'nan' where a number must be"),
    "NaN in JSON": ({"queries": '{"_id": "q1", "text": "a", "x": NaN}\n'}, "queries.jsonl, line 1: is not JSON: NaN is not a number"),
    "mixed ends of lines": ({"qrels": "q1 0 d1 1\r\nq2 0 d3 2\n"}, "qrels.tsv, line 2: its end of line differs"),
    "an empty split": ({"qrels": "query-id\tcorpus-id\tscore\n"}, "qrels.tsv: has no judgements"),
    "nothing relevant": ({"qrels": "q1 0 d1 0\n"}, "no question has a relevant document"),
    "bytes that are no text": ({"corpus": '{"_id": "d1", "text": "\udcff"}\n'}, "corpus.jsonl, line 1: is not UTF-8"),
    "no text": ({"corpus": '{"_id": "d1"}\n'}, "corpus.jsonl, line 1: has no text `text`"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_told_with_file_and_line(case, tmp_path, capsys):
    files, expected = WRONG[case]
    beir = folder(tmp_path / "beir", **files)
    with pytest.raises(QuestionsError) as raised:
        read(beir, run=beir / "run.txt")
    assert expected in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(SystemExit) as ended:
        command.run("eval", [str(beir), "--run", str(beir / "run.txt"), "--url", "http://127.0.0.1:1"])
    assert str(ended.value) == f"Error: {raised.value}"


def test_eval_measures_what_the_server_ranks_and_goes_on_after_an_interruption(demo, cases, tmp_path, capsys):
    out = tmp_path / "out"
    command.run("eval", [str(cases), "--url", demo.url, "--out", str(out)])
    shown = capsys.readouterr().out
    ranks = []
    for line in cases.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        order = [entry["index"] for entry in demo.rerank(case["query"], case["documents"])]
        ranks.append(order.index(case["relevant"][0]) + 1)
    by_hand = sum(1 / math.log2(rank + 1) for rank in ranks) / len(ranks)
    [row] = [line for line in shown.splitlines() if demo.url in line]
    assert float(row.split()[1]) == pytest.approx(by_hand, abs=1e-4), shown
    assert float(row.split()[2]) == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks), abs=1e-4), shown
    assert " yes " in row and "as it came in" in shown
    assert (out / "report.html").read_text().count("<svg") == 2
    [answers], [run] = out.glob("*.jsonl"), out.glob("*.run")
    assert len(run.read_text().splitlines()) == sum(len(case["texts"]) for case in CASES)
    # Two answers are lost, one of them cut in the middle.
    lines = answers.read_text().splitlines()
    answers.write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:20])
    before, complete = demo.metrics()[REQUESTS], run.read_text()
    command.run("eval", [str(cases), "--url", demo.url, "--out", str(out)])
    assert sorted(run.read_text().splitlines()) == sorted(complete.splitlines())
    assert demo.metrics()[REQUESTS] == before + 2
    assert len(answers.read_text().splitlines()) == len(CASES)


def test_compare_finds_no_difference_to_itself_and_some_to_bfloat16(demo, cases, tmp_path, capsys):
    page = tmp_path / "page.html"
    command.run("compare", [str(cases), "--url", demo.url, "--url", demo.url, "--out", str(page)])
    shown = dict(line.strip().rsplit("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line.strip())
    values = {name.strip(): value.strip() for name, value in shown.items()}
    assert values["largest difference of a score"] == "0" and values["questions with another first text"] == "0"
    command.run("compare", [str(cases), "--url", demo.url, "--model", DEMO, "--dtype", "int8", "--out", str(page)])
    shown = capsys.readouterr().out
    assert "largest difference of a score       0\n" not in shown and page.is_file()


def test_calibration_recovers_the_law_of_the_scores():
    generator = np.random.default_rng(3)
    scores = generator.normal(size=20_000) * 4
    labels = generator.random(20_000) < 1 / (1 + np.exp(-(scores / 2 - 1)))
    groups = np.arange(20_000) // 10
    found, held_out = calibrate.fit(scores, labels, groups)
    assert found["temperature"] == pytest.approx(2, rel=0.05) and found["offset"] == pytest.approx(-1, abs=0.05)
    assert np.abs(held_out - 1 / (1 + np.exp(-(scores / 2 - 1)))).max() < 0.03
    at = calibrate.threshold(scores, labels, 0.9, None)
    assert labels[scores >= at].mean() >= 0.9
    at = calibrate.threshold(scores, labels, None, 0.8)
    assert labels[scores >= at].sum() / labels.sum() == pytest.approx(0.8, abs=1e-3)
    assert calibrate.threshold(scores, labels, 1.01, None) is None
    low, high = calibrate.interval(scores, labels, groups, None, 0.8)
    assert low < at < high < low + 0.5


def test_calibrate_writes_a_file_that_names_the_model_and_the_data(demo, cases, tmp_path, capsys):
    file = tmp_path / "calibration.json"
    command.run("calibrate", [str(cases), "--url", demo.url, "--out", str(file), "--recall", "0.8"])
    found = json.loads(file.read_text())
    assert found["model_id"] == DEMO and found["arithmetic"] == "float32"
    assert found["data"]["pairs"] == sum(len(case["texts"]) for case in CASES) and found["data"]["relevant"] == len(CASES)
    assert found["temperature"] > 0 and found["log_loss"] < found["log_loss_of_the_rate_alone"]
    assert [sorted(row)[1] for row in found["thresholds"]] == ["precision", "probability"]
    assert "sigmoid(raw / " in capsys.readouterr().out and file.with_suffix(".html").is_file()


def test_decisions_get_a_temperature_for_each_type_that_the_server_takes(demo, tmp_path, capsys):
    generator, rows = np.random.default_rng(5), []
    for number in range(12):
        rows.append({"type": "choice", "instructions": f"Which of {number}?", "criteria": {"red": None, "blue": None}})
        rows.append({"type": "noul", "instructions": f"It is {number}."})
    answers = {"choice": ["red", "blue"], "noul": [True, False]}
    lines = [{"state": f"Text {at // 2}.", "question": row, "answer": generator.choice(answers[row["type"]]).item()} for at, row in enumerate(rows)]
    file, out = tmp_path / "tickets.jsonl", tmp_path / "calibration.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command.run("calibrate", [str(file), "--url", demo.url, "--out", str(out)])
    found = json.loads(out.read_text())
    assert set(found["decisions"]) == {"choice", "noul"} and found["data"]["questions"] == 24
    with Server(DEMO, "--calibration", str(out)) as server:
        temperatures = server.get("/info").json()["calibration"]["decisions"]
        assert temperatures == {kind: found["decisions"].get(kind, {}).get("temperature", 1) for kind in ("choice", "score", "noul")}
        with pytest.raises(SystemExit, match="calibrated already"):
            command.run("calibrate", [str(file), "--url", server.url, "--out", str(out)])
    for change, sentence in [({"answer": "pink"}, "line 1: `answer` 'pink' is not"), ({"question": 1}, "line 1: `question` needs a `type`")]:
        file.write_text(json.dumps(lines[0] | change) + "\n")
        with pytest.raises(SystemExit, match=sentence):
            command.run("calibrate", [str(file), "--url", demo.url, "--out", str(out)])


def test_a_temperature_is_found_again():
    generator, rows, right = np.random.default_rng(1), [], []
    for _ in range(3000):
        logits = generator.normal(size=generator.integers(2, 6)) * 4
        powers, softer = np.exp(logits), np.exp(logits / 3)
        rows.append(powers / powers.sum())
        right.append(int(generator.choice(len(logits), p=softer / softer.sum())))
    found = decisions.fit(rows, right, [place // 3 for place in range(3000)])
    assert found["temperature"] == pytest.approx(3, rel=0.1)
    assert found["log_loss"] < found["log_loss_of_chance"] < found["log_loss_uncalibrated"]


def test_without_a_server_or_with_too_many_the_usage_says_so(cases, capsys):
    for name, given, sentence in [
        ("eval", [], "name a server with --url, or a model with --model"),
        ("compare", ["--url", "a"], "needs two servers by --url, or by --model and --dtype, not 1"),
        ("calibrate", ["--url", "a", "--url", "b"], "calibrates one server, by --url or --model, not 2"),
    ]:
        with pytest.raises(SystemExit) as ended:
            command.run(name, [str(cases), *given])
        assert ended.value.code == 2 and sentence in capsys.readouterr().err
