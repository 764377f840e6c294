"""Models with a classification head: with one or two labels, they score like the causal model that they were
made from; with more, their labels have transformers' scores."""

import models
import pytest
from reference_data import CASES, EXPECTED, IDS, LOGITS
from reference_data import fields as rerank_fields
from server import Server, refusal

RAW_TOLERANCE = 1e-4
LABELS = ["contradiction", "neutral", "entailment"]
CAUSAL = "untied-f16"
# Without the flag, the two-label head is a classifier.
RERANKERS = {"seq-cls-1": (), "seq-cls-2": ("--model-type", "reranker")}
POSITIVE = {"seq-cls-1": "LABEL_0", "seq-cls-2": "yes"}


def raw_of(logits: list[float]) -> float:
    """The log-odds of the positive class."""
    return logits[0] if len(logits) == 1 else logits[1] - logits[0]


def by_server() -> list[tuple[str, int, str]]:
    """Model, longest input and name of each case, sorted by server."""
    rows = [(model, CASES[name]["max_length"], name) for model in RERANKERS for name in LOGITS[model]]
    return sorted(rows, key=lambda row: row[:2])


@pytest.fixture(scope="module")
def reranker(served):
    """Gives a server whose head scores pairs."""
    return lambda model, longest=8192: served(model, *RERANKERS[model], "--max-input-length", str(longest))


@pytest.mark.parametrize(("model", "longest", "name"), by_server())
def test_a_conversion_scores_as_the_causal_form(reranker, model, longest, name):
    server, case = reranker(model, longest), CASES[name]
    body = {"query": case["query"], "texts": [case["document"]], **rerank_fields(case)}
    answer = server.post("/rerank", body | {"raw_scores": True})
    assert answer.status_code == 200, answer.text
    (rank,) = answer.json()
    assert rank["score"] == pytest.approx(EXPECTED[CAUSAL][name]["raw"], abs=RAW_TOLERANCE, rel=0)
    assert rank["score"] == pytest.approx(raw_of(LOGITS[model][name]["logits"]), abs=RAW_TOLERANCE, rel=0)
    assert int(answer.headers["x-compute-tokens"]) == IDS[name]["length"]
    (rank,) = server.post("/rerank", body).json()
    assert rank["score"] == pytest.approx(EXPECTED[CAUSAL][name]["score"], abs=1e-5)


@pytest.mark.parametrize("model", RERANKERS)
def test_a_batch_scores_as_the_causal_form_over_http(served, reranker, model):
    causal = served(CAUSAL)
    query = CASES["english-1"]["query"]
    texts = [CASES[name]["document"] for name in LOGITS[model] if CASES[name]["max_length"] == 8192]
    expected = causal.scores(query, texts)
    assert len(texts) > 40 and max(expected) - min(expected) > 1
    assert reranker(model).scores(query, texts) == pytest.approx(expected, abs=2e-5)
    instruction = "Find the text that names a planet."
    expected = causal.scores(query, texts, instruction=instruction)
    assert reranker(model).scores(query, texts, instruction=instruction) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("model", RERANKERS)
def test_a_pair_is_labelled_by_the_positive_class(reranker, model):
    server, case = reranker(model), CASES["korean-1"]
    pair = {"inputs": [case["query"], case["document"]]}
    expected = EXPECTED[CAUSAL]["korean-1"]
    assert server.post("/predict", pair).json() == [
        {"score": pytest.approx(expected["score"], abs=1e-5), "label": POSITIVE[model]}
    ]
    raw = server.post("/predict", pair | {"raw_scores": True}).json()
    assert raw == [{"score": pytest.approx(expected["raw"], abs=RAW_TOLERANCE), "label": POSITIVE[model]}]
    for function, answer in (("none", raw), ("sigmoid", server.post("/predict", pair).json())):
        parameters = {"function_to_apply": function, "top_k": 1}
        assert server.post("/predict", pair | {"parameters": parameters}).json() == answer
    assert set(server.get("/info").json()["model_type"]) == {"reranker"}


@pytest.mark.parametrize(
    "labels", [["no", "yes"], ["False", "TRUE"], ["Irrelevant", "Relevant"], ["negative", "positive"], ["0", "1"]], ids=str
)
@pytest.mark.parametrize("turned", [False, True])
def test_the_positive_class_is_found_by_its_name(tmp_path, labels, turned):
    folder = models.copy("seq-cls-2", tmp_path)
    if turned:
        labels = labels[::-1]
    names = {"id2label": {str(index): label for index, label in enumerate(labels)}}
    models.edit_json(folder / "config.json", **names, label2id={label: index for index, label in enumerate(labels)})
    with Server(folder, *RERANKERS["seq-cls-2"]) as server:
        (score,) = server.scores(CASES["english-1"]["query"], [CASES["english-1"]["document"]])
    expected = EXPECTED[CAUSAL]["english-1"]["raw"]
    # The rows of the head do not move: with the names swapped, the other row is the positive class.
    assert score == pytest.approx(-expected if turned else expected, abs=RAW_TOLERANCE)


@pytest.mark.parametrize("labels", [["good", "bad"], ["yes", "true"]], ids=str)
def test_a_positive_class_that_is_not_clear_is_refused(tmp_path, labels):
    folder = models.copy("seq-cls-2", tmp_path)
    models.edit_json(folder / "config.json", id2label={str(index): label for index, label in enumerate(labels)})
    line = refusal(folder, *RERANKERS["seq-cls-2"])
    assert "id2label" in line and "config.json" in line, line


class TestClassifier:
    """A classifier with three labels."""

    @pytest.fixture
    def classifier(self, served) -> Server:
        return served("seq-cls-3")

    def expected(self, row: dict, field: str) -> list[dict]:
        both = zip(LABELS, row[field], strict=True)
        ordered = sorted(both, key=lambda pair: -pair[1])
        return [{"score": pytest.approx(score, abs=RAW_TOLERANCE), "label": label} for label, score in ordered]

    @pytest.mark.parametrize("name", LOGITS["seq-cls-3"])
    def test_logits_and_probabilities_are_transformers(self, classifier, name):
        row = LOGITS["seq-cls-3"][name]
        inputs = row["inputs"] if len(row["inputs"]) == 2 else row["inputs"][0]
        answer = classifier.post("/predict", {"inputs": inputs})
        assert answer.json() == self.expected(row, "scores")
        assert int(answer.headers["x-compute-tokens"]) == len(row["ids"])
        assert sum(label["score"] for label in answer.json()) == pytest.approx(1, abs=1e-6)
        assert classifier.post("/predict", {"inputs": inputs, "raw_scores": True}).json() == self.expected(row, "logits")

    @pytest.mark.parametrize("flags", [(), ("--max-batch-requests", "2"), ("--threads", "1")], ids=str)
    def test_a_batch_of_texts_and_pairs(self, served, flags):
        server, rows = served("seq-cls-3", *flags), list(LOGITS["seq-cls-3"].values())
        for path in ("/predict", "/", "/invocations"):
            answer = server.post(path, {"inputs": [row["inputs"] for row in rows], "raw_scores": True})
            assert answer.json() == [self.expected(row, "logits") for row in rows]

    def test_info_names_the_labels(self, classifier):
        names = {"id2label": {str(index): label for index, label in enumerate(LABELS)}}
        names["label2id"] = {label: index for index, label in enumerate(LABELS)}
        assert classifier.get("/info").json()["model_type"] == {"classifier": names}

    def test_requests_for_other_kinds_of_models_are_refused(self, classifier):
        for path, body, kind in (
            ("/rerank", {"query": "q", "texts": ["a"]}, "model is not a re-ranker model"),
            ("/embed", {"inputs": "a"}, "Model is not an embedding model"),
        ):
            answer = classifier.post(path, body)
            assert answer.status_code == 424
            assert answer.json() == {"error": f"Backend error: {kind}; it is a classifier: POST /predict", "error_type": "Backend"}

    def test_two_labels_are_a_classifier(self, served):
        server = served("seq-cls-2")
        assert set(server.get("/info").json()["model_type"]) == {"classifier"}
        labels = {label["label"]: label["score"] for label in server.post("/predict", {"inputs": "a"}).json()}
        assert set(labels) == {"no", "yes"} and sum(labels.values()) == pytest.approx(1, abs=1e-6)
