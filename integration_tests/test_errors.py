"""Each error of the contract: status and body over HTTP, code over gRPC, and the same message in both."""

import json
import socket
import string
from collections.abc import Callable

import grpc
import models
import pytest
from error_table import BACKEND, ERRORS, LIMITS, OVERLOADED, TOKENIZER, VALIDATION
from grpc_client import Grpc, messages
from reference_data import CASES
from server import ANSWER_LIMIT, Background, Server, wait_until

embed, encode, rerank = messages.EmbedRequest, messages.EncodeRequest, messages.RerankRequest


def method(client: Grpc, name: str) -> Callable:
    service, call = name.split(".")
    return getattr(getattr(client, service), call)


def http_error(server: Server, path: str, body: object, expected: tuple[int, str, str]) -> str:
    """The message of an error over HTTP, after a check of status and body."""
    answer = server.post(path, body)
    status, kind, _ = expected
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    content = answer.json()
    assert set(content) == {"error", "error_type"} and content["error_type"] == kind, content
    return content["error"]


def grpc_error(client: Grpc, name: str, request: object, expected: tuple[int, str, str]) -> str:
    """The message of an error over gRPC, whose code is checked. The method's stream must give the same."""
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
    "unknown format": ({"input": "a", "encoding_format": "int4"}, (422, "Validation"), ["encoding_format", "unknown variant `int4`, expected one of `float`, `float32`, `base64`, `float16`, `int8`, `uint8`, `binary`, `ubinary`"]),
    "negative dimensions": ({"input": "a", "dimensions": -5}, (422, "Validation"), ["dimensions"]),
    "absurd dimensions": ({"input": "a", "dimensions": 10**6}, (422, "Validation"), ["dimensions", "40"]),
    "a real number as id": ({"input": ["a", 3.5]}, (422, "Validation"), ["`input[1]`: invalid type: floating point `3.5`, expected a text, a token id or a list of token ids"]),
    "unknown prompt": ({"input": "a", "prompt_name": "nobody"}, (422, "Validation"), ["prompt_name", "nobody"]),
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
    message = content["message"]
    error = {"message": message, "type": kind, "param": None, "code": status}
    assert content == {"message": message, "code": status, "type": kind, "error": error, "detail": message}
    assert all(word in content["message"] for word in words), content


def test_an_instance_that_fails_is_named(served):
    instances = [{"inputs": "a"}, {"inputs": "a", "dimensions": 41}]
    message = http_error(served("embedding-last", *LIMITS), "/vertex", {"instances": instances}, VALIDATION)
    assert "instances[1]" in message and "dimensions" in message


@pytest.mark.parametrize("encoding", ["float", "base64", "float16", "int8", "uint8"])
def test_all_vectors_of_one_answer_have_a_limit(served, encoding):
    # 100 values; each vector has 40.
    server = served("embedding-last", "--max-unsent-bytes", "1200")
    instance = {"inputs": "a", "encoding_format": encoding}
    assert server.post("/vertex", {"instances": [instance] * 2}).status_code == 200
    assert "more than 100 values" in http_error(server, "/vertex", {"instances": [instance] * 3}, VALIDATION)


@pytest.mark.parametrize("model", ["embedding-last", "tied-bf16", "seq-cls-3"])
def test_messages_that_are_too_large(connected, model):
    server, client = connected(model, *LIMITS)
    assert server.post("/tokenize", {"inputs": "a" * 20_000}).status_code == 413
    # gRPC has a limit of its own, the default of gRPC libraries, as in text-embeddings-inference.
    assert client.call(client.tokenize.Tokenize, encode(inputs="a" * 20_000)).tokens
    # The field's number and its length take five bytes.
    longest = encode(prompt_name="a" * (4_194_304 - 5))
    assert longest.ByteSize() == 4_194_304
    assert client.failure(client.tokenize.Tokenize, longest)[0] == "INVALID_ARGUMENT", "it is read"
    larger = encode(prompt_name="a" * (4_194_304 - 4))
    code, message = client.failure(client.tokenize.Tokenize, larger)
    assert code == "OUT_OF_RANGE" and message.endswith("the limit is: 4194304 bytes")
    large = encode(inputs="a" * 4_194_304, add_special_tokens=True)
    assert client.failure(client.tokenize.Tokenize, large)[0] in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
    small = encode(inputs="a", add_special_tokens=True)
    answers = client.tokenize.TokenizeStream(iter([small, large, small]), timeout=ANSWER_LIMIT)
    assert len(next(answers).tokens) >= 1
    with pytest.raises(grpc.RpcError) as error:
        list(answers)
    assert error.value.code().name in ("OUT_OF_RANGE", "RESOURCE_EXHAUSTED")
    assert client.call(client.tokenize.Tokenize, small).tokens


def test_an_endless_stream_of_texts_is_cut_off(connected):
    _, client = connected("tied-bf16", *LIMITS)
    sent = 0

    def texts(text: str):
        nonlocal sent
        while sent < 1_000_000:
            sent += 1
            yield messages.RerankStreamRequest(query="q", text=text)

    code, message = client.failure(client.rerank.RerankStream, texts("a"))
    assert (code, message) == ("INVALID_ARGUMENT", "batch size 5 > maximum allowed batch size 4; `--max-client-batch-size`, for re-ranking `--max-rerank-texts`, sets the maximum")
    assert sent < 100_000
    code, message = client.failure(client.rerank.RerankStream, texts("a" * 9000))
    assert (code, message) == ("OUT_OF_RANGE", "the messages of the stream have more than 20000 bytes of text: send less, or raise `--payload-limit`")
    part = {"query": "q", "text": "a"}
    same = "must be the same in every message of the stream: that of message 2 differs"
    for parts, expected in (
        ([], "`texts` cannot be empty"),
        ([part | {"truncation_direction": 7}], "`truncation_direction` 7 is unknown: give 0 (right) or 1 (left)"),
        ([part, part, part | {"query": "r"}, part], f"`query` {same}"),
        ([part, part, part | {"truncation_direction": 1}, part], f"`truncation_direction` {same}"),
    ):
        stream = iter([messages.RerankStreamRequest(**fields) for fields in parts])
        assert client.failure(client.rerank.RerankStream, stream) == ("INVALID_ARGUMENT", expected)
    assert len(client.call(client.rerank.RerankStream, iter([messages.RerankStreamRequest(**part)] * 2)).ranks) == 2


def test_streams_that_end_early(connected):
    server, client = connected("tied-bf16", *LIMITS)
    whole = rerank(query="q", texts=["a"])
    rank = client.channel.stream_unary(
        "/tei.v1.Rerank/Rerank", request_serializer=rerank.SerializeToString, response_deserializer=bytes
    )
    # A call without a message, to a method that needs one.
    with pytest.raises(grpc.RpcError) as error:
        rank(iter([]), timeout=ANSWER_LIMIT)
    assert error.value.code().name in ("INTERNAL", "INVALID_ARGUMENT", "UNIMPLEMENTED"), error.value

    def broken_off():
        yield messages.RerankStreamRequest(query="q", text="a")
        raise ConnectionError("the client goes away")

    for _ in range(5):
        with pytest.raises(grpc.RpcError):
            client.rerank.RerankStream(broken_off(), timeout=ANSWER_LIMIT)
    # The connection is closed while answers are on their way.
    for _ in range(5):
        with Grpc(server) as leaving:
            answers = leaving.tokenize.TokenizeStream((encode(inputs="a") for _ in range(10_000)), timeout=ANSWER_LIMIT)
            next(answers)
    assert len(client.call(client.rerank.Rerank, whole).ranks) == 1
    wait_until(lambda: server.metrics().get("te_queue_size", 0) == 0, 30, "the queue is not empty")


def test_without_a_free_permit():
    long = CASES["over-default-limit"]["document"]
    slow = {"query": "q", "texts": [f"{number} {long}" for number in range(8)]}
    with Server("tied-bf16", "--grpc-port", "0", "--max-concurrent-requests", "1") as server, Grpc(server) as client:
        running = Background(server.rerank, **slow)
        wait_until(lambda: server.metrics().get("te_batch_next_size_count"), 30, "none of its batches began")
        body = {"query": "q", "texts": ["a"]}
        http = server.post("/rerank", body)
        assert int(http.headers["retry-after"]) >= 1
        assert http_error(server, "/rerank", body, OVERLOADED) == "Model is overloaded"
        assert client.failure(client.rerank.Rerank, rerank(**body)) == (OVERLOADED[2], "Model is overloaded")
        assert client.failure(client.tokenize.Tokenize, encode(inputs="a")) == (OVERLOADED[2], "Model is overloaded")
        # A stream waits for a permit with each message, instead of failing.
        waiting = Background(client.stream, client.tokenize.TokenizeStream, [encode(inputs="a")])
        assert client.serves("tei.v1.Rerank") == "SERVING"
        assert server.post("/tokenize", {"inputs": "a"}).status_code == 429 and server.get("/health").status_code == 200
        assert len(running.result()) == 8
        assert len(waiting.result()) == 1
        wait_until(lambda: server.post("/rerank", body).status_code == 200, 30, "the permit is not released")
        assert server.metrics()['te_request_failure{err="overloaded"}'] >= 5


def test_a_text_that_the_tokenizer_fails_on(tmp_path):
    """The tokenizer knows only letters, and has no token for unknown characters."""
    folder = models.copy("embedding-last", tmp_path)
    letters = string.ascii_letters + string.punctuation + "Ġ"

    def one_letter_tokens(content: dict) -> None:
        content["model"] = {
            "type": "WordLevel",
            "vocab": {letter: number for number, letter in enumerate(letters)},
            "unk_token": "?!",
        }
        content["pre_tokenizer"]["pretokenizers"].append(
            {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
        )

    models.edit_json(folder / "tokenizer.json", one_letter_tokens)
    with Server(folder, "--grpc-port", "0") as server, Grpc(server) as client:
        assert server.post("/embed", {"inputs": "abc"}).status_code == 200
        said = http_error(server, "/embed", {"inputs": "7"}, TOKENIZER)
        assert grpc_error(client, "embed.Embed", embed(inputs="7"), TOKENIZER) == said
        assert client.failure(client.tokenize.Tokenize, encode(inputs="7")) == (TOKENIZER[2], said)
        answer = server.post("/embed", {"inputs": ["abc", "7", "abc"]})
        assert answer.status_code == 422 and answer.json()["error"] == said
        assert server.post("/embed", {"inputs": "abc"}).status_code == 200


def test_an_answer_that_is_not_a_number(tmp_path):
    """One token has an infinite row in the checkpoint. Only texts with that token get an error."""
    folder = models.copy("embedding-last", tmp_path)
    digit = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]["7"]

    def infinite(tensors: dict[str, models.Tensor]) -> None:
        rows = tensors["embed_tokens.weight"]
        place = rows.row(digit)
        rows.data[place] = b"\x80\x7f" * ((place.stop - place.start) // 2)

    models.edit_tensors(folder, infinite)
    with Server(folder, "--grpc-port", "0") as server, Grpc(server) as client:
        (good,) = server.post("/embed", {"inputs": "abc"}).json()
        said = http_error(server, "/embed", {"inputs": ["abc", "7"]}, BACKEND)
        assert "NaN" in said
        for body in ({"inputs": "7"}, {"inputs": "7", "normalize": False, "dimensions": 1}):
            assert http_error(server, "/embed", body, BACKEND) == said
        assert http_error(server, "/embed_all", {"inputs": "a 7"}, BACKEND) == said
        assert http_error(server, "/similarity", {"inputs": {"source_sentence": "7", "sentences": ["a"]}}, BACKEND) == said
        assert grpc_error(client, "embed.Embed", embed(inputs="7"), BACKEND) == said
        together = [Background(server.post, "/embed", {"inputs": text}) for text in ("abc", "7", "abc", "7")]
        assert [answer.result().status_code for answer in together] == [200, 424, 200, 424]
        assert server.post("/embed", {"inputs": "abc"}).json()[0] == pytest.approx(good, abs=2e-5)
        assert server.get("/health").status_code == 200 and client.serves("tei.v1.Embed") == "SERVING"
        assert server.metrics()['te_request_failure{err="missing_values"}'] >= 6


def test_bytes_that_are_not_a_message_end_only_their_call(connected):
    server, client = connected("tied-bf16")
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
