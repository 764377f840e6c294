"""Bad input of every kind: the client gets the contract's status and body, and the server serves on."""

import json
import socket
import time

import pytest
import requests
from reference_data import CASES
from server import Background, Server, wait_until

BODY = {"query": "q", "texts": ["a", "b"]}
LONG = CASES["over-default-limit"]["document"]
# Takes seconds, in batches of two texts. No two texts share a prefix.
SLOW = {"query": "q", "texts": [f"{number} {LONG}" for number in range(8)]}
VALIDATION = (422, "Validation")
# The answer to a body that is not JSON.
MALFORMED = (400, "Validation")
EMPTY = (400, "Empty")


@pytest.fixture(autouse=True)
def serves_as_before(server: Server):
    """After each test, the server must give the same answer to a plain request as before it."""
    before = server.scores("q", ["a", "b"])
    yield
    assert server.get("/health").status_code == 200
    assert server.scores("q", ["a", "b"]) == pytest.approx(before, abs=2e-5)


def check_error(answer: requests.Response, status: int, kind: str, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error", "error_type"} and body["error_type"] == kind, body
    assert isinstance(body["error"], str) and 0 < len(body["error"]) < 1000
    assert all(word in body["error"] for word in words), body


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# Path, raw body, expected status and kind, words of the message.
BODIES = {
    "nothing": ("/rerank", b"", MALFORMED, ["JSON"]),
    "not JSON": ("/rerank", b"query=q&texts=a", MALFORMED, ["not JSON"]),
    "cut off": ("/rerank", b'{"query": "q", "texts": ["a"', MALFORMED, ["the request body is not JSON: EOF while parsing a list at line 1 column 28"]),
    "two values": ("/rerank", b'{"query": "q", "texts": ["a"]} {}', MALFORMED, ["JSON", "column 32"]),
    "comma at the end": ("/rerank", b'{"query": "q", "texts": ["a",]}', MALFORMED, ["JSON"]),
    "single quotes": ("/rerank", b"{'query': 'q', 'texts': ['a']}", MALFORMED, ["JSON"]),
    "list": ("/rerank", b'["q", ["a"]]', VALIDATION, ["the request body is not a JSON object"]),
    "null": ("/rerank", b"null", VALIDATION, ["JSON object"]),
    "string": ("/rerank", b'"q"', VALIDATION, ["JSON object"]),
    "NaN": ("/rerank", b'{"query": "q", "texts": ["a"], "top_n": NaN}', MALFORMED, ["JSON"]),
    "infinite number": ("/rerank", b'{"query": "q", "texts": ["a"], "top_n": 1e999}', MALFORMED, ["number out of range"]),
    "invalid UTF-8": ("/rerank", b'{"query": "q", "texts": ["\xff\xfe"]}', MALFORMED, ["the request body is not UTF-8: byte 26 is wrong"]),
    "UTF-8 cut in a character": ("/rerank", '{"query": "감'.encode()[:-1], MALFORMED, ["UTF-8"]),
    "UTF-8 of a surrogate": ("/rerank", b'{"query": "q", "texts": ["\xed\xa0\x80"]}', MALFORMED, ["UTF-8"]),
    "UTF-16": ("/rerank", '{"query": "q", "texts": ["a"]}'.encode("utf-16"), MALFORMED, ["UTF-8"]),
    "high surrogate alone": ("/rerank", rb'{"query": "q", "texts": ["\ud83d"]}', MALFORMED, ["lone surrogate", "column 33"]),
    "low surrogate alone": ("/rerank", rb'{"query": "\ude00", "texts": ["a"]}', MALFORMED, ["surrogate", "column 17"]),
    "two high surrogates": ("/rerank", rb'{"query": "q", "texts": ["\ud83d\ud83d"]}', MALFORMED, ["surrogate", "column 38"]),
    "control character": ("/rerank", b'{"query": "q", "texts": ["a\nb"]}', MALFORMED, ["JSON"]),
    "deep in a field": ("/rerank", b'{"query": "q", "texts": %b}' % nested(100_000).encode(), VALIDATION, ["texts"]),
    "deep in an unknown field": ("/rerank", b'{"x": %b}' % nested(100_000).encode(), VALIDATION, []),
    "deep in predict": ("/predict", b'{"inputs": %b}' % nested(100_000).encode(), MALFORMED, ["nested more than 127 deep"]),
    "no query": ("/rerank", b'{"texts": ["a"]}', VALIDATION, ["query"]),
    "no texts": ("/rerank", b'{"query": "q"}', VALIDATION, ["texts"]),
    "field twice": ("/rerank", b'{"query": "q", "query": "q", "texts": ["a"]}', VALIDATION, ["query"]),
    "query is a number": ("/rerank", b'{"query": 1, "texts": ["a"]}', VALIDATION, ["query", "string"]),
    "query is null": ("/rerank", b'{"query": null, "texts": ["a"]}', VALIDATION, ["query", "string"]),
    "texts is a string": ("/rerank", b'{"query": "q", "texts": "a"}', VALIDATION, ["`texts`: invalid type: string \"a\", expected a sequence"]),
    "text is a number": ("/rerank", b'{"query": "q", "texts": ["a", 2]}', VALIDATION, ["`texts[1]`: invalid type: integer `2`, expected a string at line 1 column 31"]),
    "text is an object": ("/rerank", b'{"query": "q", "texts": [{"text": "a"}]}', VALIDATION, ["texts[0]", "string"]),
    "raw_scores is a string": ("/rerank", b'{"query": "q", "texts": ["a"], "raw_scores": "yes"}', VALIDATION, ["raw_scores"]),
    "template arguments are a list": ("/rerank", b'{"query": "q", "texts": ["a"], "chat_template_kwargs": ["x"]}', VALIDATION, ["`chat_template_kwargs`: invalid type: sequence, expected an object"]),
    "direction is a number": ("/rerank", b'{"query": "q", "texts": ["a"], "truncation_direction": 1}', MALFORMED, ["`truncation_direction`: expected a text, one of those that this field takes"]),
    "direction is cut off": ("/embed", b'{"inputs": "a", "truncation_direction": [', MALFORMED, ["the request body is not JSON: expected value"]),
    "normalize is null": ("/embed", b'{"inputs": "a", "normalize": null}', VALIDATION, ["`normalize`: invalid type: null, expected a boolean"]),
    "unknown direction": ("/rerank", b'{"query": "q", "texts": ["a"], "truncation_direction": "up"}', VALIDATION, ["`truncation_direction`: unknown variant `up`, expected one of `Right`, `right`, `Left`, `left`"]),
    "top_n negative": ("/rerank", b'{"query": "q", "texts": ["a"], "top_n": -1}', VALIDATION, ["top_n"]),
    "instruction is a list": ("/rerank", b'{"query": "q", "texts": ["a"], "instruction": []}', VALIDATION, ["instruction"]),
    "empty texts": ("/rerank", b'{"query": "q", "texts": []}', EMPTY, ["texts", "empty"]),
    "empty query": ("/rerank", b'{"query": "", "texts": ["a"]}', EMPTY, ["query", "empty"]),
    "blank query": ("/rerank", '{"query": " \u3000\\n", "texts": ["a"]}'.encode(), EMPTY, ["query", "empty"]),
    "empty inputs": ("/predict", b'{"inputs": []}', VALIDATION, ["`inputs`: an empty list, which is neither an input nor a batch"]),
    "three in a pair": ("/predict", b'{"inputs": ["a", "b", "c"]}', VALIDATION, ["`inputs`: an input is one string or a pair, not 3 strings; a batch is a list of lists: [[a], [a, b]]"]),
    "single text": ("/predict", b'{"inputs": "a"}', VALIDATION, ["this re-ranker predicts on pairs: each of `inputs` must be `[query, document]`, not a single text"]),
    "batch of singles": ("/predict", b'{"inputs": [["a"], ["b"]]}', VALIDATION, ["[query, document]"]),
    "empty query in a pair": ("/predict", b'{"inputs": ["", "b"]}', EMPTY, ["inputs"]),
    "pair of numbers": ("/predict", b'{"inputs": [1, 2]}', VALIDATION, ["inputs"]),
    "no tokens asked": ("/tokenize", b'{"inputs": []}', EMPTY, ["inputs"]),
    "tokens of a number": ("/tokenize", b'{"inputs": 1}', VALIDATION, ["`inputs`: expected a string or a list of strings"]),
    "unknown prompt": ("/tokenize", b'{"inputs": "a", "prompt_name": "query"}', VALIDATION, ["prompt_name"]),
    "prompt without a query": ("/playground/prompt", b'{"query": " ", "text": "a"}', EMPTY, ["`query` cannot be empty"]),
    "prompt without a text": ("/playground/prompt", b'{"query":"q"}', VALIDATION, ["invalid request: missing field `text` at line 1 column 13"]),
    "no ids": ("/decode", b'{"ids": []}', EMPTY, ["ids"]),
    "ids are words": ("/decode", b'{"ids": ["a"]}', VALIDATION, ["ids"]),
    "negative id": ("/decode", b'{"ids": [-1]}', VALIDATION, ["`ids`: expected a list of ids or a list of lists of ids"]),
    "id of no token": ("/decode", b'{"ids": [[1], [2, 99999]]}', VALIDATION, ["`ids` holds the token id 99999, which this model's tokenizer does not have"]),
    "id of 64 bits": ("/decode", b'{"ids": [4294967296]}', VALIDATION, ["ids"]),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_gets_an_error_that_names_the_mistake(server: Server, name):
    path, data, (status, kind), words = BODIES[name]
    answer = server.post(path, data=data, headers={"content-type": "application/json"})
    check_error(answer, status, kind, *words)


GOOD = {
    "surrogate pair": rb'{"query": "q", "texts": ["\ud83d\ude00"]}',
    "null character": rb'{"query": "q", "texts": ["a\u0000b"]}',
    "byte order mark in a text": '{"query": "q", "texts": ["\ufeff"]}'.encode(),
    "empty text among others": b'{"query": "q", "texts": ["", "a"]}',
    "unknown field": b'{"query": "q", "texts": ["a"], "model": "m", "extra": {"a": [1, null]}}',
    "nulls": b'{"query": "q", "texts": ["a"], "truncate": null, "instruction": null, "top_n": null}',
    "white space": b' \r\n\t{"query": "q", "texts": ["a"]}\n',
    "lower case direction": b'{"query": "q", "texts": ["a"], "truncation_direction": "left"}',
}


@pytest.mark.parametrize("name", GOOD)
def test_an_odd_body_is_served(server: Server, name):
    answer = server.post("/rerank", data=GOOD[name], headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert all(0 < rank["score"] < 1 for rank in answer.json())


def test_more_inputs_than_allowed(server: Server, served):
    check_error(server.post("/rerank", BODY | {"texts": ["a"] * 1001}), *VALIDATION, "batch size 1001 > maximum allowed batch size 1000; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum")
    pairs = {"inputs": [["q", "a"]] * 33}
    check_error(server.post("/predict", pairs), *VALIDATION, "batch size 33 > maximum allowed batch size 32; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum")
    check_error(server.post("/tokenize", {"inputs": ["a"] * 33}), *VALIDATION, "33")
    check_error(server.post("/decode", {"ids": [[1]] * 33}), *VALIDATION, "33")
    small = served("tied-bf16", "--max-client-batch-size", "4")
    check_error(small.post("/rerank", BODY | {"texts": ["a"] * 5}), *VALIDATION, "batch size 5 > maximum allowed batch size 4; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum")
    assert len(small.rerank("q", ["a"] * 4)) == 4


def test_a_text_that_is_too_long_and_may_not_be_cut(server: Server, served):
    body = BODY | {"texts": ["a", LONG]}
    check_error(server.post("/rerank", body | {"truncate": False}), *VALIDATION, "8192", "tokens")
    assert server.post("/rerank", body).headers["x-truncated-texts"] == "1"
    strict = served("tied-bf16", "--auto-truncate", "false")
    check_error(strict.post("/rerank", body), *VALIDATION, "8192", "tokens")
    assert strict.post("/rerank", body | {"truncate": True}).status_code == 200


@pytest.mark.parametrize("path", ["/rerank", "/predict", "/embed"])
def test_a_body_of_10_megabytes(server: Server, path):
    data = json.dumps({"query": "q", "texts": ["a" * 10_000_000]})
    check_error(server.post(path, data=data), 413, "Validation", "2000000", "--payload-limit")


def test_the_limit_on_a_body_is_exact(served):
    server = served("tied-bf16", "--payload-limit", "1000")
    for size, status in ((1000, 200), (1001, 413)):
        data = json.dumps({"query": "q", "texts": [""]})
        data = json.dumps({"query": "q", "texts": ["a" * (size - len(data))]})
        assert len(data) == size
        assert server.post("/rerank", data=data).status_code == status
        # The limit also holds for a body whose length is not in the headers.
        assert server.post("/rerank", data=iter([data[:500].encode(), data[500:].encode()])).status_code == status


def test_a_client_that_asks_before_it_sends_is_told_not_to(server: Server):
    head = b"POST /rerank HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 10000000\r\n\r\n"
    assert talk(server, head).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/nothing", "`GET /docs`"),
        ("/rerankk", "`POST /rerank`"),
        ("/RERANK", "`POST /rerank`"),
        ("/rerank2", "`POST /rerank`"),
        ("/rerank/x", "`POST /rerank`"),
        ("/%00", "`GET /docs`"),
        ("/../etc/passwd", "`GET /docs`"),
    ],
)
def test_an_unknown_route(server: Server, path, advice):
    request = requests.Request("POST", server.url, json=BODY).prepare()
    request.url = server.url + path
    check_error(server.session.send(request, timeout=30), 404, "Validation", path, advice)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/rerank", {"POST"}),
        ("DELETE", "/rerank", {"POST"}),
        ("PUT", "/predict", {"POST"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
        ("POST", "/info", {"GET", "HEAD"}),
        ("PATCH", "/", {"GET", "HEAD", "POST"}),
    ],
)
def test_a_wrong_method(server: Server, method, path, allowed):
    answer = server.session.request(method, server.url + path, json=BODY, timeout=30)
    check_error(answer, 405, "Validation", f"not {method}", path, *(allowed - {"HEAD"}))
    assert set(answer.headers["allow"].upper().split(",")) == allowed


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "\xff"])
def test_a_body_with_another_media_type(server: Server, media_type):
    headers = {"content-type": media_type.encode("latin-1")}
    check_error(server.post("/rerank", data=json.dumps(BODY), headers=headers), 415, "Validation", "the request body must be JSON or MessagePack, with `Content-Type: application/json`")


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/problem+json", None])
def test_a_body_with_a_media_type_for_json(server: Server, media_type):
    headers = {"content-type": media_type} if media_type else {}
    assert server.post("/rerank", data=json.dumps(BODY).encode(), headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/embed", "/embed_all", "/embed_sparse", "/similarity"])
def test_routes_of_embedding_models(server: Server, path):
    inputs = {"source_sentence": "a", "sentences": ["b"]} if path == "/similarity" else "a"
    check_error(server.post(path, {"inputs": inputs}), 424, "Backend", "Model is not an embedding model", "it is a re-ranker: POST /rerank")


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_routes_of_embedding_models_in_openais_words(server: Server, path):
    answer = server.post(path, {"input": "a"})
    assert answer.status_code == 424
    message = "Backend error: Model is not an embedding model; it is a re-ranker: POST /rerank"
    error = {"message": message, "type": "Backend", "param": None, "code": 424}
    assert answer.json() == {"message": message, "code": 424, "type": "Backend", "error": error, "detail": message}


class TestKey:
    """A server with `--api-key`."""

    KEY = "k3y-of-the-server"

    @pytest.fixture
    def keyed(self, served) -> Server:
        return served("tied-bf16", "--api-key", self.KEY)

    @pytest.mark.parametrize(
        "header",
        [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, f"Bearer  {KEY}"],
    )
    def test_without_the_key_the_routes_are_closed(self, keyed, header):
        headers = {} if header is None else {"authorization": header}
        for path in ("/rerank", "/", "/invocations", "/predict", "/tokenize", "/decode", "/embed", "/similarity", "/vertex", "/playground/prompt"):
            answer = keyed.post(path, BODY, headers=headers)
            check_error(answer, 401, "Unauthorized", "Authorization: Bearer")
            assert answer.headers["www-authenticate"] == "Bearer" and self.KEY not in answer.text
        check_error(keyed.get("/info", headers=headers), 401, "Unauthorized")
        openai = keyed.post("/v1/embeddings", {"input": "a"}, headers=headers)
        assert openai.status_code == 401 and (openai.json()["code"], openai.json()["type"]) == (401, "Unauthorized")
        # Without the key, the answer does not tell that the body is wrong as well.
        check_error(keyed.post("/rerank", data=b"{", headers=headers), 401, "Unauthorized")

    def test_with_the_key_they_are_open(self, keyed):
        for scheme in ("Bearer", "bearer"):
            headers = {"authorization": f"{scheme} {self.KEY}"}
            assert keyed.post("/rerank", BODY, headers=headers).status_code == 200
            assert keyed.get("/info", headers=headers).status_code == 200

    @pytest.mark.parametrize("path", ["/health", "/", "/ping", "/metrics"])
    def test_probes_need_no_key(self, keyed, path):
        assert keyed.get(path).status_code == 200

    def test_the_key_is_not_in_the_log(self, keyed):
        keyed.post("/rerank", BODY, headers={"authorization": f"Bearer {self.KEY}"})
        assert self.KEY not in keyed.log()


def talk(server: Server, data: bytes) -> bytes:
    """The server's answer to raw bytes, up to its first pause or the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        stream.sendall(data)
        return stream.recv(65536)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /rerank HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    ],
    ids=["TLS", "nonsense", "version", "negative length", "two lengths", "bad chunk", "too many headers"],
)
def test_bytes_that_are_not_http_end_only_their_connection(server: Server, data):
    answer = talk(server, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.") and answer[9:10] == b"4", answer


@pytest.mark.parametrize("codings", ["gzip, chunked", "chunked", "Chunked"])
def test_a_body_that_was_compressed_for_its_transfer_is_refused(server: Server, codings):
    body = json.dumps(BODY).encode()
    head = f"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: {codings}\r\n\r\n"
    answer = talk(server, head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    refused = "gzip" in codings
    assert answer.startswith(b"HTTP/1.1 501 " if refused else b"HTTP/1.1 200 "), answer
    assert refused == (b"`Transfer-Encoding: gzip, chunked`" in answer), answer


@pytest.mark.parametrize(("path", "status"), [("/rerank", 401), ("/nothing", 404), ("/health", 405)])
def test_a_refused_client_goes_on_with_its_connection(served, path, status):
    server = served("tied-bf16", "--api-key", TestKey.KEY)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
        for _ in range(3):
            stream.sendall(head.encode())
            # By then, a server that does not wait for the body has closed the connection.
            time.sleep(0.1)
            stream.sendall(b" " * 20000)
            assert stream.recv(65536).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_body_that_breaks_off(server: Server):
    head = b"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
            stream.sendall(head + b'{"query": "q", "texts": [')
    assert len(server.rerank("q", ["a"])) == 1


def test_the_work_of_a_client_that_goes_away_is_dropped():
    # A server of its own, because the test compares its counters exactly.
    with Server("tied-bf16") as server:
        before = server.scores("other", ["a", "b"])
        body = json.dumps(SLOW).encode()
        head = f"POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stream:
            stream.sendall(head.encode() + body)
            wait_until(lambda: server.metrics().get("te_batch_next_size_count", 0) >= 2, 30, "none of its batches began")
            others = [Background(server.scores, "other", ["a", "b"]) for _ in range(3)]
        dropped = 'te_request_failure{err="dropped"}'
        wait_until(lambda: server.metrics().get(dropped) == 1, 30, "it is not counted as dropped")
        server.wait_for_log('route="/rerank"}.* dropped: the client went away', 10)
        for other in others:
            assert other.result() == pytest.approx(before, abs=2e-5)
        wait_until(lambda: server.metrics()["te_queue_size"] == 0, 30, "the queue is not empty")
        # Once another request is answered, everything before it is done.
        server.scores("other", ["a", "b"])
        metrics = server.metrics()
        assert metrics[dropped] == 1
        assert metrics['te_request_count{method="batch"}'] == 6
        assert metrics['te_request_success{method="batch"}'] == 5
        assert metrics["te_batch_next_size_sum"] < 4 * len(before) + len(SLOW["texts"]), "all of its texts were computed"
