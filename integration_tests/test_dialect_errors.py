"""Refusals in the dialects of other servers: the status, the exact sentence, and the form of the body.

`test_errors.py` has the errors of text-embeddings-inference's routes, over gRPC too.
"""

import pytest
from server import Server

RERANKER, EMBEDDER = "tied-bf16", "embedding-last"
FLAGS = ("--max-rerank-texts", "8", "--max-client-batch-size", "4", "--payload-limit", "100000", "--max-input-length", "600")
KINDS = {400: "Empty", 422: "Validation", 424: "Backend"}


def form(path: str, message: str, status: int, kind: str) -> dict:
    """The body of a route's error."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return {
        "/rerank": {"error": message, "error_type": kind},
        "/vertex": {"error": message, "error_type": kind},
        "/v1/rerank": {"message": message, "detail": message},
        "/v1/embed": {"message": message, "detail": message},
        "/v2/embed": {"id": None, "message": message},
        "/score": {"error": error},
        "/embeddings": {"message": message, "code": status, "type": kind, "error": error, "detail": message},
    }[path.replace("/v1/embeddings", "/embeddings")]


def check(server: Server, path: str, body: object, status: int, message: str, kind: str | None = None) -> None:
    sent = {"data": body, "headers": {"content-type": "application/json"}} if isinstance(body, bytes) else {"body": body}
    answer = server.post(path, **sent)
    content = answer.json()
    if path == "/v2/embed":
        assert len(content["id"]) == 36
        content["id"] = None
    assert (answer.status_code, content) == (status, form(path, message, status, kind or KINDS[status]))


def part(kind: str, *others: dict) -> dict:
    return {"content": [{"type": kind, "text": "a"}, *others]}


TYPES = "`float`, `float32`, `base64`, `float16`, `int8`, `uint8`, `binary`, `ubinary`"
ONE_PART = "`inputs[0].content` must be one part of the type `text`"
COHERE = [
    ({}, 422, "the request does not say what to embed: send `texts`, a list of texts"),
    ({"texts": ["a"], "inputs": []}, 422, "the request has both `texts` and `inputs`: send one of them"),
    ({"texts": []}, 400, "`texts` cannot be empty"),
    ({"texts": ["a", ""]}, 400, "`texts` cannot be empty; the index of this input is 1"),
    ({"texts": ["a"], "embedding_types": []}, 400, "`embedding_types` cannot be empty"),
    ({"images": ["data:image/png;base64,AA=="]}, 422, "`images` is not supported: this model reads text only; send `texts`"),
    ({"texts": ["a"], "input_type": "image"}, 422, "`input_type` `image` is not supported: this model reads text only"),
    ({"inputs": [part("image_url")]}, 422, ONE_PART),
    ({"inputs": [part("text", {"type": "text", "text": "b"})]}, 422, ONE_PART),
    ({"inputs": [{"content": []}]}, 422, ONE_PART),
    ({"texts": ["a"], "max_tokens": 5}, 422, "`max_tokens` is not supported: a text is cut where it is too long for the model, as `truncate` says"),
    (b'{"embedding_types":["int4"],"texts":["a"]}', 422, f"invalid request: `embedding_types[0]`: unknown variant `int4`, expected one of {TYPES} at line 1 column 26"),
    (b'{"texts":["a"],"truncate":"end"}', 422, "invalid request: `truncate`: unknown variant `end`, expected one of `NONE`, `START`, `END` at line 1 column 31"),
    ({"texts": ["7" * 600], "truncate": "NONE"}, 422, "a text of `texts` is too long: it has 601 tokens, and may have 600; send less, or have it cut with `truncate`"),
    (b'{"inputs":[[[{"type":"text","text":"a"}]]]}', 422, "invalid request: `inputs[0]`: invalid type: sequence, expected an object at line 1 column 11"),
    (b'{"inputs":[{"content":[["text","a"]]}]}', 422, "invalid request: `inputs[0].content[0]`: invalid type: sequence, expected an object at line 1 column 23"),
    ({"texts": ["a"], "output_dimension": 41}, 422, "`output_dimension` should be smaller than the maximum embedding dimension. It is 40; given: 41"),
]


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
@pytest.mark.parametrize(("body", "status", "message"), COHERE)
def test_in_coheres_words(served, path, body, status, message):
    check(served(EMBEDDER, *FLAGS), path, body, status, message)


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_another_kind_of_model_in_coheres_words(served, path):
    check(served(RERANKER, *FLAGS), path, {"texts": ["a"]}, 424, "Model is not an embedding model; it is a re-ranker: POST /rerank")


PAIRS = "Send `queries` and `documents`, `queries` and `items`, `data_1` and `data_2` or `text_1` and `text_2`"
LENGTHS = "Input lengths must be either 1:1, 1:N or N:N. Given:"
VLLM = [
    ({"text_1": ["q", "r"], "text_2": ["a", "b", "c"]}, 422, f"{LENGTHS} 2:3"),
    ({"text_1": ["q", "r"], "text_2": "a"}, 422, f"{LENGTHS} 2:1"),
    ({"text_1": "q", "text_2": []}, 400, "`text_2` cannot be empty"),
    ({"data_1": [], "data_2": "a"}, 400, "`data_1` cannot be empty"),
    ({"queries": ["q", " "], "items": ["a", "b"]}, 400, "`queries` cannot be empty"),
    ({"queries": "q", "documents": ["a"] * 9}, 422, "batch size 9 > maximum allowed batch size 8; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum"),
    ({"query": "q", "items": ["a"], "label_token_ids": [1, 2]}, 422, "`label_token_ids` is not supported: a pair has one score, that of the model's own answer"),
    ({"query": "q", "documents": ["a"]}, 422, f"the request does not say which pairs to score: its fields are `query`, `documents`. {PAIRS}: is `query` meant as `queries`?"),
    ({"queries": "q", "documents": ["a"], "text_2": ["a"]}, 422, f"the request names its pairs in two ways: its fields are `queries`, `documents`, `text_2`. {PAIRS}"),
    ({"text_1": "q", "text_2": ["a"], "min_score": 0.5}, 422, "`min_score` is for re-ranking: on this route, every pair gets its score"),
]


@pytest.mark.parametrize(("body", "status", "message"), VLLM)
def test_pairs_in_vllms_words(served, body, status, message):
    check(served(RERANKER, *FLAGS), "/score", body, status, message)


OPENAI = [
    (b'{"input":"a","model":5}', 422, "Validation", "invalid request: `model`: invalid type: integer `5`, expected a string at line 1 column 22"),
    (b'{"input":"a"', 400, "Validation", "the request body is not JSON: EOF while parsing an object at line 1 column 12"),
    (b'{"input":"a","encoding_format":3}', 400, "Validation", "invalid request: `encoding_format`: expected a text, one of those that this field takes"),
    (b"[]", 422, "Validation", "the request body is not a JSON object"),
    (b"a" * 200_000, 413, "Validation", "the request body has more than 100000 bytes: send less, or raise `--payload-limit`"),
]


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_in_openais_words(served, path):
    server = served(RERANKER, *FLAGS)
    for body, status, kind, message in OPENAI:
        check(server, path, body, status, message, kind)
    answer = server.post(path, data=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and set(answer.json()) == {"message", "code", "type", "error", "detail"}
    answer = server.get(path)
    assert (answer.status_code, answer.headers["allow"].lower()) == (405, "post")
    assert answer.json() == form(path, f"`{path}` takes POST, not GET", 405, "Validation")


def test_an_unknown_route_is_told_the_nearest(served):
    server = served(RERANKER, "--aip-predict-route", "/v1/models/m:predict")
    for path, advice in (
        ("/v1/model/m:predict", "did you mean `POST /v1/models/m:predict`?"),
        ("/v1/completions", "`GET /docs` lists the routes"),
    ):
        answer = server.post(path, {})
        assert (answer.status_code, answer.json()) == (404, form("/embeddings", f"no such route `{path}`: {advice}", 404, "Validation"))
    answer = server.post("/rerang?x=1", {})
    assert answer.json() == form("/rerank", "no such route `/rerang`: did you mean `POST /rerank`?", 404, "Validation")
    long = server.get("/" + "a" * 5000)
    assert long.status_code == 404 and len(long.text) < 300


TOO_LONG = "must have less than 600 tokens. Given: 601"
EMBEDDINGS = [
    ({"encoding_format": "int8", "output_dtype": "binary"}, "contradicts another field"),
    ({"input_type": "image"}, "`input_type` `image` is not supported"),
    ({"late_chunking": True}, "`late_chunking` is not supported"),
    ({"prompt": "q: "}, "`prompt` is not supported"),
    ({"truncate_prompt_tokens": 5}, "at least the 600 tokens"),
    ({"truncate": "MIDDLE"}, "expected true, false, `NONE`, `START` or `END`"),
    ({"normalized": False, "output_dtype": "int8"}, "length"),
    ({"input": "7" * 600, "truncate": "NONE"}, TOO_LONG),
    ({"input": "7" * 600, "truncation": False}, TOO_LONG),
]


@pytest.mark.parametrize(("fields", "words"), EMBEDDINGS)
def test_fields_of_voyage_jina_and_vllm_for_embeddings(served, fields, words):
    answer = served(EMBEDDER, *FLAGS).post("/v1/embeddings", {"input": "a", **fields})
    assert answer.status_code == 422 and words in answer.json()["message"], answer.text


GOOD = {"query": "q", "texts": ["a"]}
TOO_MANY = "batch size 5 > maximum allowed batch size 4; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum"
INSTANCES = [
    ([GOOD, {"query": "q", "texts": []}], 400, "`texts` cannot be empty (in `instances[1]`)"),
    ([{"query": "q", "texts": []}, {"query": "", "texts": ["a"]}], 400, "`texts` cannot be empty (in `instances[0]`)"),
    ([GOOD, GOOD, {"inputs": [["q", "a"]] * 5}], 422, f"{TOO_MANY} (in `instances[2]`)"),
    ([GOOD, {"input": "a"}], 422, "missing field `inputs` (in `instances[1]`)"),
    ([GOOD, {"query": "q", "texts": ["a", 3]}], 422, "invalid type: integer `3`, expected a string: `texts[1]` (in `instances[1]`)"),
    (["a"], 422, "expected an object, the body of another route (in `instances[0]`)"),
]


@pytest.mark.parametrize(("instances", "status", "message"), INSTANCES)
def test_the_instance_that_is_wrong_is_named(served, instances, status, message):
    check(served(RERANKER, *FLAGS), "/vertex", {"instances": instances}, status, message)


def test_instances_are_a_list(served):
    message = "invalid request: `instances`: invalid type: map, expected a sequence at line 1 column 13"
    check(served(RERANKER, *FLAGS), "/vertex", b'{"instances":{}}', 422, message)


CHOICES = "Send `query` and one of `texts` (answered as by text-embeddings-inference), `documents` (as by Cohere, Jina, vLLM and Voyage), `input` (as by Mixedbread) or `passages` (as by NVIDIA's NIM)"
NOTHING = "the request does not say what to rank:"
MANY = ", ".join(f"`f{number:02}`" for number in range(12))
NOBODYS = [
    ({}, f"{NOTHING} it has no fields. {CHOICES}"),
    ({"query": "q", "docs": ["a"]}, f"{NOTHING} its fields are `query`, `docs`. {CHOICES}: is `docs` meant as `documents`?"),
    ({"query": "q", "Passages": ["a"], "top_n": 1}, f"{NOTHING} its fields are `query`, `Passages`, `top_n`. {CHOICES}: is `Passages` meant as `documents`?"),
    ({"query": "q", "text": ["a"]}, f"{NOTHING} its fields are `query`, `text`. {CHOICES}: is `text` meant as `texts`?"),
    ({"q": "q"}, f"{NOTHING} its fields are `q`. {CHOICES}: is `q` meant as `query`?"),
    ({"x" * 50: 1}, f"{NOTHING} its fields are `{'x' * 40}`. {CHOICES}"),
    ({f"f{number:02}": 1 for number in range(14)}, f"{NOTHING} its fields are {MANY}, …. {CHOICES}"),
    ({"query": "q", "texts": ["a"], "documents": ["a"]}, f"the request has both `texts` and `documents`, which belong to two dialects. {CHOICES}"),
    ({"query": "q", "input": ["a"], "documents": ["a"]}, f"the request has both `documents` and `input`, which belong to two dialects. {CHOICES}"),
    ({"query": "q", "passages": ["a"], "documents": ["a"]}, f"the request has both `documents` and `passages`, which belong to two dialects. {CHOICES}"),
    ({"query": "q", "texts": True, "input": None, "documents": ["a"]}, f"the request has both `texts` and `documents`, which belong to two dialects. {CHOICES}"),
]


@pytest.mark.parametrize(("body", "message"), NOBODYS)
def test_a_body_that_is_nobodys_or_two_dialects_is_told_what_was_understood(served, body, message):
    for path in ("/rerank", "/v1/rerank"):
        check(served(RERANKER, *FLAGS), path, body, 422, message)


NO_TEXT = "has no `text`: only text is ranked, as a string or in a field `text`"
LIST = "a list of strings or of objects with `text`"
# Other fields of a body with `documents`.
DOCUMENTS = [
    ({"mm_processor_kwargs": {}}, "`mm_processor_kwargs` is not supported: only text is ranked"),
    ({"relevant_spans": {"enabled": True}}, "`relevant_spans` is not supported: documents get a score and no spans"),
    ({"truncate_prompt_tokens": 0}, "`truncate_prompt_tokens` must be -1 or at least 1. Given: 0"),
    ({"truncate_prompt_tokens": -2}, "`truncate_prompt_tokens` must be -1 or at least 1. Given: -2"),
    ({"documents": [{"text": "a"}, {"title": "b"}]}, "`documents[1]` is an object without `text`: give it one, or name the fields to rank in `rank_fields`"),
    ({"documents": [{"text": 3}]}, "`documents[0]` has a `text` that is not a string"),
    ({"documents": [{"title": "b", "none": None}], "rank_fields": ["name", "none"]}, "`documents[0]` has none of the fields that `rank_fields` names"),
    ({"documents": ["a", {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, f"`documents[1]` {NO_TEXT}"),
    ({"documents": [{"image": "x"}]}, f"`documents[0]` {NO_TEXT}"),
    ({"top_n": -1}, "invalid request: `top_n`: invalid value: integer `-1`"),
    ({"top_k": 1.5}, "invalid request: `top_k`: invalid type: floating point `1.5`"),
    ({"max_tokens_per_doc": -1}, "invalid request: `max_tokens_per_doc`: invalid value"),
    ({"truncate": "end"}, "invalid request: `truncate`: expected true, false, `NONE`, `START` or `END`"),
    ({"truncation_side": "middle"}, "invalid request: `truncation_side`: unknown variant `middle`"),
    ({"documents": {"content": []}}, f"invalid request: `documents`: invalid type: map, expected {LIST}"),
    ({"documents": ["a", 1]}, "invalid request: `documents[1]`: invalid type: integer `1`, expected a string or an object with `text`"),
    ({"query": ["q"]}, "invalid request: `query`: invalid type: sequence, expected a string"),
    ({"query": {"image": "x"}}, "invalid request: `query`: missing field `text`"),
    ({"query": {"text": "q", "video": "x"}}, "invalid request: `query`: images, videos and sounds are not supported"),
    ({"model": 3}, "invalid request: `model`: invalid type: integer `3`, expected a string"),
]


@pytest.mark.parametrize(("more", "message"), DOCUMENTS)
def test_what_would_change_the_answer_and_is_not_computed_is_refused_by_name(served, more, message):
    answer = served(RERANKER, *FLAGS).post("/v1/rerank", {"query": "q", "documents": ["a"], **more})
    found = answer.json()["message"]
    # A mistake in a value has its line and column at the end.
    assert found.startswith(message) if message.startswith("invalid request") else found == message, found
    assert (answer.status_code, answer.json()) == (422, form("/v1/rerank", found, 422, "Validation"))
