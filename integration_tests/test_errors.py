"""Each error of the contract over HTTP (status and body) and over gRPC (code), with the same message."""

import json
import socket
import string
from collections.abc import Callable, Iterator

import grpc
import models
import pytest
from grpc_client import Grpc, messages
from reference_data import CASES, TEXTS
from server import ANSWER_LIMIT, Background, Server, wait_until

LIMITS = ("--grpc-port", "0", "--max-input-length", "200", "--max-client-batch-size", "4", "--payload-limit", "20000")
MODELS = ("embedding-last", "tied-bf16", "seq-cls-3")
LONG = TEXTS["long-right"]["text"]
EMPTY = (400, "Empty", "INVALID_ARGUMENT")
VALIDATION = (422, "Validation", "INVALID_ARGUMENT")
BACKEND = (424, "Backend", "FAILED_PRECONDITION")
OVERLOADED = (429, "Overloaded", "RESOURCE_EXHAUSTED")
TOKENIZER = (422, "Tokenizer", "FAILED_PRECONDITION")

embed, embed_all, sparse = messages.EmbedRequest, messages.EmbedAllRequest, messages.EmbedSparseRequest
predict, pair, rerank = messages.PredictRequest, messages.PredictPairRequest, messages.RerankRequest
encode = messages.EncodeRequest

# Model, route and body, method and message, what both say. Where one transport cannot say it, its half is None.
ERRORS = {
    "rerank of nothing": ("tied-bf16", ("/rerank", {"query": "q", "texts": []}), ("rerank.Rerank", rerank(query="q")), EMPTY, ["texts", "empty"]),
    "rerank without a query": ("tied-bf16", ("/rerank", {"query": " ", "texts": ["a"]}), ("rerank.Rerank", rerank(query=" ", texts=["a"])), EMPTY, ["query", "empty"]),
    "embed of nothing": ("embedding-last", ("/embed", {"inputs": []}), None, EMPTY, ["inputs", "empty"]),
    "embed of no ids": ("embedding-last", ("/embed", {"inputs": [[1], []]}), None, EMPTY, ["inputs", "empty"]),
    "all of nothing": ("embedding-last", ("/embed_all", {"inputs": []}), None, EMPTY, ["inputs", "empty"]),
    "similarity to nothing": ("embedding-last", ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}), None, EMPTY, ["sentences", "empty"]),
    "predict of nothing": ("seq-cls-3", ("/predict", {"inputs": []}), ("predict.PredictPair", pair()), EMPTY, ["inputs", "empty"]),
    "too long for embed": (
        "embedding-last", ("/embed", {"inputs": LONG, "truncate": False}), ("embed.Embed", embed(inputs=LONG)), VALIDATION, ["200", "407", "tokens"]
    ),
    "too long for embed_all": (
        "embedding-last", ("/embed_all", {"inputs": LONG, "truncate": False}), ("embed.EmbedAll", embed_all(inputs=LONG)), VALIDATION, ["200", "407", "tokens"]
    ),
    "too long for similarity": (
        "embedding-last", ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}}), None, VALIDATION, ["200", "407"]
    ),
    "too long for predict": ("seq-cls-3", ("/predict", {"inputs": LONG, "truncate": False}), ("predict.Predict", predict(inputs=LONG)), VALIDATION, ["200", "406", "tokens"]),
    "too long a pair": (
        "seq-cls-3", ("/predict", {"inputs": ["a", LONG], "truncate": False}), ("predict.PredictPair", pair(inputs=["a", LONG])), VALIDATION, ["200", "407", "tokens"]
    ),
    "too long for rerank": (
        "tied-bf16", ("/rerank", {"query": "q", "texts": [LONG], "truncate": False}), ("rerank.Rerank", rerank(query="q", texts=[LONG])), VALIDATION, ["200", "tokens"]
    ),
    "too many texts": (
        "tied-bf16", ("/rerank", {"query": "q", "texts": ["a"] * 5}), ("rerank.Rerank", rerank(query="q", texts=["a"] * 5)), VALIDATION, ["batch size 5 > maximum allowed batch size 4"]
    ),
    "too many inputs": ("embedding-last", ("/embed", {"inputs": ["a"] * 5}), None, VALIDATION, ["batch size 5 > maximum allowed batch size 4"]),
    "too many sentences": (
        "embedding-last", ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 5}}), None, VALIDATION, ["maximum allowed batch size 4"]
    ),
    "too many pairs": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"]] * 5}), None, VALIDATION, ["batch size 5 > maximum allowed batch size 4"]),
    "unknown prompt": ("embedding-last", ("/embed", {"inputs": "a", "prompt_name": "nobody"}), ("embed.Embed", embed(inputs="a", prompt_name="nobody")), VALIDATION, ["prompt_name", "nobody", "query"]),
    "unknown prompt for all": (
        "embedding-last", ("/embed_all", {"inputs": "a", "prompt_name": ""}), ("embed.EmbedAll", embed_all(inputs="a", prompt_name="")), VALIDATION, ["prompt_name"]
    ),
    "unknown prompt for tokens": (
        "embedding-last", ("/tokenize", {"inputs": "a", "prompt_name": "nobody"}), ("tokenize.Tokenize", encode(inputs="a", prompt_name="nobody")), VALIDATION, ["prompt_name", "nobody"]
    ),
    "prompt of a model without": (
        "tied-bf16", ("/tokenize", {"inputs": "a", "prompt_name": "query"}), ("tokenize.Tokenize", encode(inputs="a", prompt_name="query")), VALIDATION, ["prompt_name"]
    ),
    "no dimensions": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": 0}), ("embed.Embed", embed(inputs="a", dimensions=0)), VALIDATION, ["dimensions", "40", "0"]),
    "a dimension too many": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": 41}), ("embed.Embed", embed(inputs="a", dimensions=41)), VALIDATION, ["dimensions", "40", "41"]),
    "absurd dimensions": (
        "embedding-last", ("/embed", {"inputs": "a", "dimensions": 2**32 - 1}), ("embed.Embed", embed(inputs="a", dimensions=2**32 - 1)), VALIDATION, ["dimensions", "4294967295"]
    ),
    "negative dimensions": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": -1}), None, VALIDATION, ["dimensions"]),
    "more dimensions than numbers": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": 2**70}), None, VALIDATION, ["dimensions"]),
    "half a dimension": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": 1.5}), None, VALIDATION, ["dimensions"]),
    "an id beyond the vocabulary": ("embedding-last", ("/embed", {"inputs": [[1], [2, 1326]]}), None, VALIDATION, ["1326"]),
    "the largest id": ("embedding-last", ("/embed", {"inputs": [2**32 - 1]}), None, VALIDATION, ["4294967295"]),
    "an id of 33 bits": ("embedding-last", ("/embed", {"inputs": [2**32]}), None, VALIDATION, ["inputs"]),
    "a negative id": ("embedding-last", ("/embed", {"inputs": [1, -1]}), None, VALIDATION, ["inputs"]),
    "ids beside texts": ("embedding-last", ("/embed", {"inputs": ["a", 1]}), None, VALIDATION, ["inputs", "token ids"]),
    "a list too deep": ("embedding-last", ("/embed", {"inputs": [[["a"]]]}), None, VALIDATION, ["inputs"]),
    "inputs are an object": ("embedding-last", ("/embed", {"inputs": {"a": 1}}), None, VALIDATION, ["inputs"]),
    "inputs are missing": ("embedding-last", ("/embed", {"input": "a"}), None, VALIDATION, ["inputs"]),
    "sentences are missing": ("embedding-last", ("/similarity", {"inputs": "a"}), None, VALIDATION, ["inputs"]),
    "three in a pair over HTTP": ("seq-cls-3", ("/predict", {"inputs": ["a", "b", "c"]}), None, VALIDATION, ["inputs", "pair", "3"]),
    "three in a pair": ("seq-cls-3", None, ("predict.PredictPair", pair(inputs=["a", "b", "c"])), VALIDATION, ["inputs", "pair", "3"]),
    "three in a pair of a batch": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"], ["a", "b", "c"]]}), None, VALIDATION, ["inputs"]),
    "one in a pair": ("seq-cls-3", None, ("predict.PredictPair", pair(inputs=["a"])), VALIDATION, ["pair"]),
    "an empty pair in a batch": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"], []]}), None, VALIDATION, ["inputs"]),
    "a batch of texts and pairs": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"], "c"]}), None, VALIDATION, ["inputs"]),
    "a text alone for a re-ranker": ("tied-bf16", ("/predict", {"inputs": "a"}), ("predict.Predict", predict(inputs="a")), VALIDATION, ["[query, document]"]),
    "no best": ("tied-bf16", ("/rerank", {"query": "q", "texts": ["a"], "top_n": 0}), ("rerank.Rerank", rerank(query="q", texts=["a"], top_n=0)), VALIDATION, ["top_n"]),
    "no such direction": ("tied-bf16", ("/rerank", {"query": "q", "texts": ["a"], "truncation_direction": "up"}), None, VALIDATION, ["truncation_direction"]),
    "no such side of embed": ("embedding-last", None, ("embed.Embed", embed(inputs="a", truncation_direction=2)), VALIDATION, ["truncation_direction", "2"]),
    "no such side of embed_all": ("embedding-last", None, ("embed.EmbedAll", embed_all(inputs="a", truncation_direction=-1)), VALIDATION, ["truncation_direction", "-1"]),
    "no such side of embed_sparse": ("embedding-last", None, ("embed.EmbedSparse", sparse(inputs="a", truncation_direction=7)), VALIDATION, ["truncation_direction", "7"]),
    "no such side of predict": ("seq-cls-3", None, ("predict.Predict", predict(inputs="a", truncation_direction=2**31 - 1)), VALIDATION, ["truncation_direction", "2147483647"]),
    "no such side of a pair": ("seq-cls-3", None, ("predict.PredictPair", pair(inputs=["a", "b"], truncation_direction=99)), VALIDATION, ["truncation_direction", "99"]),
    "no such side of rerank": ("tied-bf16", None, ("rerank.Rerank", rerank(query="q", texts=["a"], truncation_direction=3)), VALIDATION, ["truncation_direction", "3"]),
    "embed of a re-ranker": ("tied-bf16", ("/embed", {"inputs": "a"}), ("embed.Embed", embed(inputs="a")), BACKEND, ["model is not an embedding model"]),
    "all of a classifier": ("seq-cls-3", ("/embed_all", {"inputs": "a"}), ("embed.EmbedAll", embed_all(inputs="a")), BACKEND, ["model is not an embedding model"]),
    "sparse of a re-ranker": ("tied-bf16", ("/embed_sparse", {"inputs": "a"}), ("embed.EmbedSparse", sparse(inputs="a")), BACKEND, ["model is not an embedding model"]),
    "sparse of a dense model": ("embedding-last", ("/embed_sparse", {"inputs": "a"}), ("embed.EmbedSparse", sparse(inputs="a")), BACKEND, ["model is not a", "splade"]),
    "similarity of a re-ranker": ("tied-bf16", ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"]}}), None, BACKEND, ["model is not an embedding model"]),
    "rerank of an embedding model": (
        "embedding-last", ("/rerank", {"query": "q", "texts": ["a"]}), ("rerank.Rerank", rerank(query="q", texts=["a"])), BACKEND, ["model is not a re-ranker model"]
    ),
    "rerank of a classifier": ("seq-cls-3", ("/rerank", {"query": "q", "texts": ["a"]}), ("rerank.Rerank", rerank(query="q", texts=["a"])), BACKEND, ["model is not a re-ranker model"]),
    "predict of an embedding model": ("embedding-last", ("/predict", {"inputs": "a"}), ("predict.Predict", predict(inputs="a")), BACKEND, ["model is not a classifier model"]),
    "a pair for an embedding model": (
        "embedding-last", ("/predict", {"inputs": ["a", "b"]}), ("predict.PredictPair", pair(inputs=["a", "b"])), BACKEND, ["model is not a classifier model"]
    ),
}


@pytest.fixture(scope="module")
def connected(served) -> Iterator[Callable[..., tuple[Server, Grpc]]]:
    """A server of a model over HTTP and its gRPC connection."""
    connections: dict[Server, Grpc] = {}

    def get(model, *flags: str) -> tuple[Server, Grpc]:
        server = served(model, *flags)
        if server not in connections:
            connections[server] = Grpc(server)
        return server, connections[server]

    yield get
    for connection in connections.values():
        connection.channel.close()


def method(client: Grpc, name: str) -> Callable:
    service, call = name.split(".")
    return getattr(getattr(client, service), call)


def http_error(server: Server, path: str, body: object, expected: tuple[int, str, str]) -> str:
    """The message of an error over HTTP, whose status and body are checked."""
    answer = server.post(path, body)
    status, kind, _ = expected
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert set(content) == {"error", "error_type"} and content["error_type"] == kind, content
    return content["error"]


def grpc_error(client: Grpc, name: str, request: object, expected: tuple[int, str, str]) -> str:
    """The message of an error over gRPC, whose code is checked; that of the method's stream must be the same."""
    code, message = client.failure(method(client, name), request)
    assert code == expected[2], message
    if not name.startswith("rerank"):
        stream = method(client, f"{name}Stream")
        assert client.failure(stream, iter([request])) == (code, message)
    return message


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_over_http_and_grpc(connected, name):
    model, http, call, expected, words = ERRORS[name]
    server, client = connected(model, *LIMITS)
    said = [http_error(server, *http, expected)] if http else []
    said += [grpc_error(client, *call, expected)] if call else []
    assert len(set(said)) == 1, said
    assert all(word in said[0] for word in words), said[0]
    assert server.get("/health").status_code == 200


OPENAI = {
    "nothing": ({"input": []}, (400, "Empty"), ["empty"]),
    "no input": ({"model": "m"}, (422, "Validation"), ["input"]),
    "unknown format": ({"input": "a", "encoding_format": "int8"}, (422, "Validation"), ["encoding_format", "int8"]),
    "negative dimensions": ({"input": "a", "dimensions": -5}, (422, "Validation"), ["dimensions"]),
    "absurd dimensions": ({"input": "a", "dimensions": 10**6}, (422, "Validation"), ["dimensions", "40"]),
    "ids beyond the vocabulary": ({"input": [5, 99999]}, (422, "Validation"), ["99999"]),
    "too many": ({"input": ["a"] * 5}, (422, "Validation"), ["batch size 5"]),
}


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
@pytest.mark.parametrize("name", OPENAI)
def test_an_error_in_openais_words(served, path, name):
    body, (status, kind), words = OPENAI[name]
    answer = served("embedding-last", *LIMITS).post(path, body)
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert set(content) == {"message", "code", "type"} and (content["code"], content["type"]) == (status, kind)
    assert all(word in content["message"] for word in words), content


def test_an_instance_that_fails_is_named(served):
    instances = [{"inputs": "a"}, {"inputs": "a", "dimensions": 41}]
    message = http_error(served("embedding-last", *LIMITS), "/vertex", {"instances": instances}, VALIDATION)
    assert "instances[1]" in message and "dimensions" in message


@pytest.mark.parametrize("model", MODELS)
def test_messages_that_are_too_large(connected, model):
    server, client = connected(model, *LIMITS)
    assert server.post("/tokenize", {"inputs": "a" * 20_000}).status_code == 413
    large = encode(inputs="a" * 20_000, add_special_tokens=True)
    assert client.failure(client.tokenize.Tokenize, large)[0] in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
    small = encode(inputs="a", add_special_tokens=True)
    answers = client.tokenize.TokenizeStream(iter([small, large, small]), timeout=ANSWER_LIMIT)
    assert len(next(answers).tokens) >= 1
    with pytest.raises(grpc.RpcError) as error:
        list(answers)
    assert error.value.code().name in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
    assert client.call(client.tokenize.Tokenize, small).tokens


def test_a_stream_of_texts_without_end_is_cut(connected):
    _, client = connected("tied-bf16", *LIMITS)
    sent = 0

    def texts(text: str):
        nonlocal sent
        while sent < 1_000_000:
            sent += 1
            yield messages.RerankStreamRequest(query="q", text=text)

    code, message = client.failure(client.rerank.RerankStream, texts("a"))
    assert (code, message) == ("INVALID_ARGUMENT", "batch size 5 > maximum allowed batch size 4")
    assert sent < 100_000
    code, _ = client.failure(client.rerank.RerankStream, texts("a" * 9000))
    assert code in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
    changed = [messages.RerankStreamRequest(query=query, text="a") for query in ("q", "other")]
    code, message = client.failure(client.rerank.RerankStream, iter(changed))
    assert code == "INVALID_ARGUMENT" and "query" in message


def test_without_a_free_permit():
    long = CASES["over-default-limit"]["document"]
    slow = {"query": "q", "texts": [f"{number} {long}" for number in range(8)]}
    with Server("tied-bf16", "--grpc-port", "0", "--max-concurrent-requests", "1") as server, Grpc(server) as client:
        running = Background(server.rerank, **slow)
        wait_until(lambda: server.metrics().get("te_batch_next_size_count"), 30, "no batch of it began")
        body = {"query": "q", "texts": ["a"]}
        http = server.post("/rerank", body)
        assert int(http.headers["retry-after"]) >= 1
        assert http_error(server, "/rerank", body, OVERLOADED) == "Model is overloaded"
        assert client.failure(client.rerank.Rerank, rerank(**body)) == (OVERLOADED[2], "Model is overloaded")
        assert client.failure(client.tokenize.Tokenize, encode(inputs="a")) == (OVERLOADED[2], "Model is overloaded")
        # A message of a stream waits for a permit instead.
        waiting = Background(client.stream, client.tokenize.TokenizeStream, [encode(inputs="a")])
        assert client.serves("tei.v1.Rerank") == "SERVING"
        assert len(running.result()) == 8
        assert len(waiting.result()) == 1


def test_a_text_that_the_tokenizer_fails_on(tmp_path):
    """A tokenizer that knows letters only and has no token for what it does not know."""
    folder = models.copy("embedding-last", tmp_path)
    letters = string.ascii_letters + string.punctuation + "Ġ"

    def one_letter_tokens(content: dict) -> None:
        content["model"] = {"type": "WordLevel", "vocab": {letter: number for number, letter in enumerate(letters)}, "unk_token": "?!"}
        content["pre_tokenizer"]["pretokenizers"].append({"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False})

    models.edit_json(folder / "tokenizer.json", one_letter_tokens)
    with Server(folder, "--grpc-port", "0") as server, Grpc(server) as client:
        assert server.post("/embed", {"inputs": "abc"}).status_code == 200
        said = http_error(server, "/embed", {"inputs": "7"}, TOKENIZER)
        assert grpc_error(client, "embed.Embed", embed(inputs="7"), TOKENIZER) == said
        assert client.failure(client.tokenize.Tokenize, encode(inputs="7")) == (TOKENIZER[2], said)
        answer = server.post("/embed", {"inputs": ["abc", "7", "abc"]})
        assert answer.status_code == 422 and answer.json()["error"] == said
        assert server.post("/embed", {"inputs": "abc"}).status_code == 200


def test_wrong_and_missing_keys(connected):
    key = "k3y-of-the-server"
    server, client = connected("tied-bf16", "--grpc-port", "0", "--api-key", key)
    body = {"query": "q", "texts": ["a"]}
    for given in (None, "", "wrong", key[:-1], f"{key}x"):
        headers = {} if given is None else {"authorization": f"Bearer {given}"}
        answer = server.post("/rerank", body, headers=headers)
        assert answer.status_code == 401 and answer.json()["error_type"] == "Unauthorized"
        metadata = [(name, value) for name, value in headers.items()]
        with pytest.raises(grpc.RpcError) as error:
            client.rerank.Rerank(rerank(**body), metadata=metadata, timeout=ANSWER_LIMIT)
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert error.value.details() == answer.json()["error"] and key not in error.value.details()
    with Grpc(server, key) as allowed:
        assert len(allowed.call(allowed.rerank.Rerank, rerank(**body)).ranks) == 1


def test_what_is_no_message_ends_its_call_only(connected):
    server, client = connected("tied-bf16", "--grpc-port", "0")
    garbage = client.channel.unary_unary("/tei.v1.Rerank/Rerank", request_serializer=bytes, response_deserializer=bytes)
    for data in (b"\xff\xff\xff\xff", b"\x0a\x05ab", b"\x0a\x02\xc3\x28"):
        with pytest.raises(grpc.RpcError) as error:
            garbage(data, timeout=ANSWER_LIMIT)
        assert error.value.code().name in ("INTERNAL", "INVALID_ARGUMENT"), data
    unknown = client.channel.unary_unary("/tei.v1.Rerank/Nothing", request_serializer=bytes, response_deserializer=bytes)
    with pytest.raises(grpc.RpcError) as error:
        unknown(b"", timeout=ANSWER_LIMIT)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    with socket.create_connection(server.grpc_address.rsplit(":", 1), timeout=30) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n\r\n" + json.dumps({}).encode())
        stream.recv(1024)
    assert len(client.call(client.rerank.Rerank, rerank(query="q", texts=["a"])).ranks) == 1
