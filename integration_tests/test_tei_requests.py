"""Sends this server the requests that text-embeddings-inference 1.9.3 was sent, and compares the answers with
TEI's.

Input: `tei_requests.jsonl`, with a request in each line: the entry of `SERVERS` that it was sent to, the
request, and facts of TEI's answer. These are its status (absent: TEI closed the connection), the kind and
text of an error, the sizes of lists and the keys of objects in a success, and some headers. `text` is the
beginning of TEI's text; the rest depends on the model, or on the order of a map. Where this server differs on
purpose, `ours` has the differing fields and `why` the reason, which `docs/wire-compatibility.md` repeats. Ids
and dimensions belong to this repository's model.
"""

import json
from pathlib import Path

import pytest
import requests
from server import ANSWER_LIMIT

ROOT = Path(__file__).resolve().parent
REQUESTS = [json.loads(line) for line in (ROOT / "tei_requests.jsonl").read_text(encoding="utf-8").splitlines()]
KEY = "secret"
LONGEST = ("--max-input-length", "512")
# Model, flags and variables. TEI had the same ones, and a model with inputs of 512 tokens.
SERVERS = {
    "last": ("embedding-last", LONGEST, {}),
    "mean": ("embedding-mean-dense", LONGEST, {}),
    "cls override": ("embedding-last", (*LONGEST, "--pooling", "cls"), {}),
    "key": ("embedding-last", (*LONGEST, "--api-key", KEY), {}),
    "limits": (
        "embedding-last",
        (
            *("--max-client-batch-size", "4", "--payload-limit", "1000", "--served-model-name", "my-model"),
            *("--max-batch-requests", "4", "--max-batch-tokens", "256", "--tokenization-workers", "2"),
        ),
        {},
    ),
    "concurrency 1": ("embedding-last", (*LONGEST, "--max-concurrent-requests", "1"), {}),
    "concurrency 2": ("embedding-last", (*LONGEST, "--max-concurrent-requests", "2"), {}),
    "task sim": ("embedding-last", LONGEST, {"TASK": "sentence-similarity"}),
    "task fe": ("embedding-last", LONGEST, {"TASK": "feature-extraction"}),
    "aip": ("embedding-last", LONGEST, {"AIP_PREDICT_ROUTE": "/v1/ep:predict", "AIP_HEALTH_ROUTE": "/hz"}),
    "default prompt name": ("embedding-last", (*LONGEST, "--default-prompt-name", "query"), {}),
    "default prompt": (
        "embedding-last",
        (*LONGEST, "--default-prompt", "Hi: ", "--auto-truncate", "false"),
        {},
    ),
    "cors": ("embedding-last", (*LONGEST, "--cors-allow-origin", "https://a.example"), {}),
    "cors any": ("embedding-last", (*LONGEST, "--cors-allow-origin", "*"), {}),
    "auto truncate false": ("embedding-last", (*LONGEST, "--auto-truncate", "false"), {}),
}


@pytest.fixture(scope="module")
def started():
    """Gives the server of a name. Requests are sorted by server, so only one server runs at a time."""
    from server import Server

    current: dict[str, Server] = {}

    def get(name: str) -> Server:
        if name not in current:
            for server in current.values():
                server.stop()
            current.clear()
            model, flags, environment = SERVERS[name]
            current[name] = Server(model, *flags, environment=environment)
        return current[name]

    yield get
    for server in current.values():
        server.stop()


def ask(server, request: dict) -> requests.Response:
    """Sends a request exactly as it was sent to TEI."""
    headers = dict(request.get("headers", {}))
    data = request["raw"].encode("latin-1") if "raw" in request else None
    if "body" in request:
        data = json.dumps(request["body"]).encode()
        headers.setdefault("Content-Type", "application/json")
    # requests would normalise a path such as `//embed`, unless it is set on the prepared request.
    prepared = requests.Request(request["method"], server.url, data=data, headers=headers).prepare()
    prepared.url = server.url + request["path"]
    with requests.Session() as session:
        return session.send(prepared, timeout=ANSWER_LIMIT)


def has_shape(value: object, shape: list) -> bool:
    """Whether nested lists have these sizes, from the outermost inwards (None: any size)."""
    if not shape:
        return not isinstance(value, list)
    size, *inner = shape
    return isinstance(value, list) and size in (None, len(value)) and all(has_shape(item, inner) for item in value)


@pytest.mark.parametrize("index", range(len(REQUESTS)), ids=lambda index: "{server}: {label}".format(**REQUESTS[index]))
def test_the_answer_is_that_of_tei(started, index):
    request = REQUESTS[index]
    expected = {**request, **request.get("ours", {})}
    answer = ask(started(request["server"]), request)
    assert answer.status_code == expected["status"], answer.text
    for name, value in request.get("answer_headers", {}).items():
        found = answer.headers.get(name, "")
        if name == "access-control-allow-headers":
            # Ours allows whatever a page asks for.
            assert found == request["headers"].get("Access-Control-Request-Headers", "")
        else:
            assert found.lower() == value.lower(), name
    if answer.status_code >= 400:
        if request["method"] == "HEAD":
            return
        body = answer.json()
        kind = body.get("type") or body["error_type"]
        text = body.get("message", body.get("error"))
        assert text
        if "kind" in expected:
            assert (kind, text[: len(expected["text"])]) == (expected["kind"], expected["text"])
        else:
            # TEI answers with plain text here, or without a body.
            assert kind == ("Unauthorized" if answer.status_code == 401 else "Validation")
    elif "ours" not in request:
        check_success(request, answer)


def check_success(request: dict, answer: requests.Response) -> None:
    """Checks the sizes and keys in a successful answer."""
    if "cost" in request:
        assert ("x-compute-tokens" in answer.headers) == request["cost"]
    if "shape" in request:
        lists = answer.json()
        assert has_shape(lists, request["shape"]), answer.text
        if "keys" in request:
            assert all(list(item) == request["keys"] for items in lists for item in items)
    elif "keys" in request:
        body = answer.json()
        assert set(request["keys"]) <= set(body)
        if "data" in request:
            assert [item["index"] for item in body["data"]] == list(range(request["data"]))
        if "predictions" in request:
            assert [len(prediction) for prediction in body["predictions"]] == request["predictions"]


def test_every_reason_for_a_difference_is_in_the_documentation():
    page = (ROOT.parent / "docs/wire-compatibility.md").read_text(encoding="utf-8").lower()
    reasons = {request["why"] for request in REQUESTS if "ours" in request}
    assert len(reasons) >= 5
    assert [reason for reason in reasons if reason.lower() not in page] == []
