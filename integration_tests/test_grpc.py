"""gRPC, with stubs that grpcio-tools makes: every method answers as its HTTP twin, in the same process."""

import threading

import grpc
import pytest
from grpc_client import LEFT, RIGHT, Grpc, fields, messages
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf.descriptor_pool import DescriptorPool
from reference_data import CASES, LOGITS, TEXTS, VECTORS
from server import ANSWER_LIMIT, Background, Server, wait_until
from vectors import SAME, check_reference, check_same

GRPC = ("--grpc-port", "0")
TEI = "tei.v1"
MODELS = {
    "embedding-last": "EMBEDDING",
    "seq-cls-1": "RERANKER",
    "seq-cls-3": "CLASSIFIER",
    "tied-bf16": "RERANKER",
}
TEXT = TEXTS["korean"]["text"]
SHORT = [TEXTS[name]["text"] for name in ("english", "korean", "one-letter", "emoji", "arabic", "code", "only-spaces")]
PAIRS = [["q", "a"], ["q", ""], [TEXTS["question"]["text"], TEXTS["english"]["text"]], ["질문", TEXT]]
HEADERS = ("compute-time", "compute-characters", "compute-tokens", "total-time", "tokenization-time", "queue-time", "inference-time")


@pytest.fixture(scope="module")
def both(served):
    """A server of a model over HTTP and its gRPC connection."""
    connections = {}

    def get(model: str, *flags: str) -> tuple[Server, Grpc]:
        server = served(model, *GRPC, *flags)
        if server not in connections:
            connections[server] = Grpc(server)
        return server, connections[server]

    yield get
    for connection in connections.values():
        connection.channel.close()


def post(server: Server, path: str, **body: object) -> object:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def side(direction: int) -> str:
    return {RIGHT: "Right", LEFT: "Left"}[direction]


@pytest.mark.parametrize("model", MODELS)
def test_info(both, model):
    server, client = both(model, "--max-batch-requests", "7", "--served-model-name", "mine")
    http, answer = server.get("/info").json(), client.call(client.info.Info, messages.InfoRequest())
    assert answer.model_type == messages.ModelType.Value(f"MODEL_TYPE_{MODELS[model]}")
    ((kind, details),) = http.pop("model_type").items()
    assert kind == MODELS[model].lower() and answer.pooling == details.get("pooling", "")
    same = set(http) & set(fields(answer))
    assert len(same) >= 13 and {"model_id", "max_batch_requests", "max_input_length", "version"} <= same
    for name in same:
        value = getattr(answer, name)
        assert value == http[name] or (not value and http[name] is None), name


class TestEmbed:
    """An embedding model."""

    OPTIONS = [
        {},
        {"normalize": False},
        {"dimensions": 7},
        {"normalize": False, "dimensions": 1},
        {"prompt_name": "query"},
        {"prompt_name": "document", "normalize": True},
        {"truncate": True, "truncation_direction": RIGHT},
        {"truncate": True, "truncation_direction": LEFT},
    ]

    @pytest.fixture
    def client(self, both) -> Grpc:
        return self.of(both)[1]

    def of(self, both) -> tuple[Server, Grpc]:
        return both("embedding-last", "--max-input-length", "40")

    def http(self, server: Server, path: str, options: dict) -> list:
        options = options | {"truncate": options.get("truncate", False)}
        if "truncation_direction" in options:
            options |= {"truncation_direction": side(options["truncation_direction"])}
        return [post(server, path, inputs=text, **options)[0] for text in self.texts(options)]

    def texts(self, options: dict) -> list[str]:
        return [*SHORT, TEXTS["long-right"]["text"]] if options.get("truncate") else ["a", "질문", ""]

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_embed_and_its_stream(self, both, options):
        server, client = self.of(both)
        expected = self.http(server, "/embed", options)
        requests = [messages.EmbedRequest(inputs=text, **options) for text in self.texts(options)]
        answers = [client.call(client.embed.Embed, request) for request in requests]
        check_same([list(answer.embeddings) for answer in answers], expected)
        streamed = client.stream(client.embed.EmbedStream, requests)
        check_same([list(answer.embeddings) for answer in streamed], expected)
        for alone, in_stream in zip(answers, streamed, strict=True):
            assert alone.metadata.compute_tokens == in_stream.metadata.compute_tokens > 0

    @pytest.mark.parametrize("options", [option for option in OPTIONS if not {"normalize", "dimensions"} & set(option)], ids=str)
    def test_embed_all_and_its_stream(self, both, options):
        server, client = self.of(both)
        expected = self.http(server, "/embed_all", options)
        requests = [messages.EmbedAllRequest(inputs=text, **options) for text in self.texts(options)]
        answers = [client.call(client.embed.EmbedAll, request) for request in requests]
        for got in (answers, client.stream(client.embed.EmbedAllStream, requests)):
            rows = [[list(token.embeddings) for token in answer.token_embeddings] for answer in got]
            # Token vectors are not of length one.
            assert [len(row) for row in rows] == [len(row) for row in expected]
            check_same([[v / 10 for v in token] for row in rows for token in row], [[v / 10 for v in token] for row in expected for token in row])

    def test_embed_sparse_and_its_stream(self, both):
        server, client = self.of(both)
        http = server.post("/embed_sparse", {"inputs": "a"})
        assert http.status_code == 424
        expected = ("FAILED_PRECONDITION", http.json()["error"])
        request = messages.EmbedSparseRequest(inputs="a")
        assert client.failure(client.embed.EmbedSparse, request) == expected
        assert client.failure(client.embed.EmbedSparseStream, iter([request])) == expected

    def test_the_vector_is_sentence_transformers(self, both):
        _, client = both("embedding-last")
        for name in ("english", "korean", "query-english", "query-battery"):
            case = TEXTS[name]
            answer = client.call(client.embed.Embed, messages.EmbedRequest(inputs=case["text"], prompt_name=case["prompt_name"]))
            check_reference(list(answer.embeddings), VECTORS["embedding-last"][name]["normalized"])
            assert answer.metadata.compute_tokens == len(VECTORS["embedding-last"][name]["ids"])
            assert answer.metadata.compute_chars == len(case["text"])


class TestPredict:
    """A classifier and a re-ranker."""

    def predictions(self, answer) -> list[dict]:
        return [{"score": prediction.score, "label": prediction.label} for prediction in answer.predictions]

    def check(self, answers: list, expected: list[list[dict]]) -> None:
        got = [self.predictions(answer) for answer in answers]
        assert [[row["label"] for row in rows] for rows in got] == [[row["label"] for row in rows] for rows in expected]
        check_same([[row["score"] for row in rows] for rows in got], [[row["score"] for row in rows] for rows in expected])

    @pytest.mark.parametrize("options", [{}, {"raw_scores": True}, {"truncate": True, "truncation_direction": LEFT}], ids=str)
    def test_texts_of_a_classifier(self, both, options):
        server, client = both("seq-cls-3", "--max-input-length", "20")
        truncate = options.get("truncate", False)
        texts = SHORT if truncate else ["a", "질문", "x y z"]
        body = options | {"truncate": truncate, "truncation_direction": side(options.get("truncation_direction", RIGHT))}
        expected = [post(server, "/predict", inputs=text, **body) for text in texts]
        assert all(len(rows) == 3 for rows in expected)
        requests = [messages.PredictRequest(inputs=text, **options) for text in texts]
        self.check([client.call(client.predict.Predict, request) for request in requests], expected)
        self.check(client.stream(client.predict.PredictStream, requests), expected)

    @pytest.mark.parametrize("model", ["seq-cls-3", "seq-cls-1", "tied-bf16"])
    @pytest.mark.parametrize("options", [{}, {"raw_scores": True}], ids=str)
    def test_pairs(self, both, model, options):
        server, client = both(model)
        expected = [post(server, "/predict", inputs=pair, **options) for pair in PAIRS]
        requests = [messages.PredictPairRequest(inputs=pair, **options) for pair in PAIRS]
        self.check([client.call(client.predict.PredictPair, request) for request in requests], expected)
        self.check(client.stream(client.predict.PredictPairStream, requests), expected)

    def test_the_classifiers_logits_are_transformers(self, both):
        _, client = both("seq-cls-3")
        for row in LOGITS["seq-cls-3"].values():
            if len(row["inputs"]) == 1:
                answer = client.call(client.predict.Predict, messages.PredictRequest(inputs=row["inputs"][0], raw_scores=True))
            else:
                answer = client.call(client.predict.PredictPair, messages.PredictPairRequest(inputs=row["inputs"], raw_scores=True))
            got = {prediction.label: prediction.score for prediction in answer.predictions}
            labels = ("contradiction", "neutral", "entailment")
            assert [got[label] for label in labels] == pytest.approx(row["logits"], abs=1e-4)


class TestRerank:
    """A generative re-ranker and a head of one label."""

    TEXTS = ["a", "", "감독", TEXTS["english"]["text"], "a"]
    OPTIONS = [
        {},
        {"raw_scores": True},
        {"return_text": True},
        {"instruction": "Find the text that names a planet.", "raw_scores": True},
        {"top_n": 2, "return_text": True},
        {"truncate": True, "truncation_direction": LEFT},
    ]

    @pytest.mark.parametrize("model", ["tied-bf16", "seq-cls-1"])
    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_rerank_and_its_stream(self, both, model, options):
        server, client = both(model)
        body = options | {"truncate": options.get("truncate", False), "truncation_direction": side(options.get("truncation_direction", RIGHT))}
        expected = post(server, "/rerank", query="which planet is red?", texts=self.TEXTS, **body)
        query = "which planet is red?"
        whole = client.call(client.rerank.Rerank, messages.RerankRequest(query=query, texts=self.TEXTS, **options))
        parts = [messages.RerankStreamRequest(query=query, text=text, **options) for text in self.TEXTS]
        for answer in (whole, client.call(client.rerank.RerankStream, iter(parts))):
            assert [rank.index for rank in answer.ranks] == [rank["index"] for rank in expected]
            check_same([rank.score for rank in answer.ranks], [rank["score"] for rank in expected])
            texts = [rank.text if rank.HasField("text") else None for rank in answer.ranks]
            assert texts == [rank.get("text") for rank in expected]

    def test_the_score_is_transformers(self, both):
        _, client = both("seq-cls-1")
        case = CASES["english-1"]
        answer = client.call(client.rerank.Rerank, messages.RerankRequest(query=case["query"], texts=[case["document"]], raw_scores=True))
        assert answer.ranks[0].score == pytest.approx(LOGITS["seq-cls-1"]["english-1"]["logits"][0], abs=1e-4)

    def test_what_the_first_message_says_counts(self, both):
        _, client = both("tied-bf16")
        parts = [
            messages.RerankStreamRequest(query="q", text="a", raw_scores=True, return_text=True),
            messages.RerankStreamRequest(query="q", text="b"),
        ]
        answer = client.call(client.rerank.RerankStream, iter(parts))
        whole = client.call(client.rerank.Rerank, messages.RerankRequest(query="q", texts=["a", "b"], raw_scores=True, return_text=True))
        assert {rank.text for rank in answer.ranks} == {"a", "b"}
        check_same([rank.score for rank in answer.ranks], [rank.score for rank in whole.ranks])


class TestTokens:
    """Tokens of every kind of model."""

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("special", [True, False])
    def test_tokenize_and_its_stream(self, both, model, special):
        server, client = both(model)
        texts = [*SHORT, "x<|im_end|>"]
        expected = [post(server, "/tokenize", inputs=text, add_special_tokens=special)[0] for text in texts]
        requests = [messages.EncodeRequest(inputs=text, add_special_tokens=special) for text in texts]
        answers = [client.call(client.tokenize.Tokenize, request) for request in requests]
        for got in (answers, client.stream(client.tokenize.TokenizeStream, requests)):
            assert [[self.token(token) for token in answer.tokens] for answer in got] == expected

    def token(self, token) -> dict:
        place = {name: getattr(token, name) if token.HasField(name) else None for name in ("start", "stop")}
        return {"id": token.id, "text": token.text, "special": token.special} | place

    def test_a_prompt_before_the_text(self, both):
        server, client = both("embedding-last")
        (expected,) = post(server, "/tokenize", inputs="a", prompt_name="query")
        answer = client.call(client.tokenize.Tokenize, messages.EncodeRequest(inputs="a", add_special_tokens=True, prompt_name="query"))
        assert [self.token(token) for token in answer.tokens] == expected

    @pytest.mark.parametrize("skip", [True, False])
    def test_decode_and_its_stream(self, both, skip):
        server, client = both("embedding-last")
        lists = [VECTORS["embedding-last"][name]["ids"] for name in ("english", "korean", "emoji", "control-at-the-end")]
        expected = [post(server, "/decode", ids=ids, skip_special_tokens=skip)[0] for ids in lists]
        assert expected[0] == TEXTS["english"]["text"] + ("" if skip else "<|endoftext|>")
        requests = [messages.DecodeRequest(ids=ids, skip_special_tokens=skip) for ids in lists]
        assert [client.call(client.tokenize.Decode, request).text for request in requests] == expected
        assert [answer.text for answer in client.stream(client.tokenize.DecodeStream, requests)] == expected


def test_the_cost_is_in_the_answer_and_its_metadata(both):
    server, client = both("embedding-last")
    http = server.post("/embed", {"inputs": TEXT}).headers
    answer, call = client.embed.Embed.with_call(messages.EmbedRequest(inputs=TEXT), timeout=ANSWER_LIMIT)
    headers = dict(call.initial_metadata())
    assert headers["x-compute-type"] == http["x-compute-type"] == "cpu"
    for name in ("compute-characters", "compute-tokens"):
        assert headers[f"x-{name}"] == http[f"x-{name}"]
    assert all(int(headers[f"x-{name}"]) >= 0 for name in HEADERS)
    cost = answer.metadata
    assert (cost.compute_chars, cost.compute_tokens) == (len(TEXT), len(VECTORS["embedding-last"]["korean"]["ids"]))
    assert cost.total_time_ns >= cost.inference_time_ns > 0
    assert int(headers["x-total-time"]) == cost.total_time_ns // 1_000_000


SERVICES = ("Info", "Embed", "Predict", "Rerank", "Tokenize")
HEALTH = {
    "embedding-last": {"Info", "Embed", "Tokenize"},
    "seq-cls-1": {"Info", "Predict", "Rerank", "Tokenize"},
    "seq-cls-3": {"Info", "Predict", "Tokenize"},
    "tied-bf16": {"Info", "Predict", "Rerank", "Tokenize"},
}


@pytest.mark.parametrize("model", HEALTH)
def test_health_follows_the_kind_of_model(both, model):
    _, client = both(model)
    assert client.serves("") == "SERVING"
    for service in SERVICES:
        expected = "SERVING" if service in HEALTH[model] else "NOT_SERVING"
        assert client.serves(f"{TEI}.{service}") == expected, service
    request = health_pb2.HealthCheckRequest(service="tei.v1.Nothing")
    assert client.failure(client.health.Check, request)[0] == "NOT_FOUND"


def test_reflection_describes_the_proto(both):
    _, client = both("tied-bf16")
    database = ProtoReflectionDescriptorDatabase(client.channel)
    names = set(database.get_services())
    assert {f"{TEI}.{service}" for service in SERVICES} | {"grpc.health.v1.Health"} <= names
    pool = DescriptorPool(database)
    for service in SERVICES:
        found = pool.FindServiceByName(f"{TEI}.{service}")
        local = messages.DESCRIPTOR.services_by_name[service]
        for method, other in zip(found.methods, local.methods, strict=True):
            assert method.name == other.name and method.input_type.full_name == other.input_type.full_name
            assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)
            for left, right in ((method.input_type, other.input_type), (method.output_type, other.output_type)):
                assert {(f.name, f.number, f.type) for f in left.fields} == {(f.name, f.number, f.type) for f in right.fields}


class TestStreams:
    """Streams that do not go as they should."""

    def test_an_empty_stream(self, both):
        _, client = both("embedding-last")
        assert client.stream(client.embed.EmbedStream, []) == []
        _, reranker = both("tied-bf16")
        assert reranker.failure(reranker.rerank.RerankStream, iter([]))[0] == "INVALID_ARGUMENT"

    def test_answers_come_in_order_while_the_stream_is_open(self, both):
        _, client = both("embedding-last")
        asked = threading.Semaphore(0)
        texts = iter(SHORT)

        def requests():
            for text in texts:
                asked.acquire(timeout=ANSWER_LIMIT)
                yield messages.EmbedRequest(inputs=text)

        answers = client.embed.EmbedStream(requests(), timeout=ANSWER_LIMIT)
        for text in SHORT:
            asked.release()
            alone = client.call(client.embed.Embed, messages.EmbedRequest(inputs=text))
            check_same(list(next(answers).embeddings), list(alone.embeddings))
        with pytest.raises(StopIteration):
            next(answers)

    def test_an_error_ends_the_stream_after_the_answers_before_it(self, both):
        _, client = both("embedding-last")
        bad = messages.EmbedRequest(inputs="a", prompt_name="nobody")
        good = messages.EmbedRequest(inputs="a")
        answers = client.embed.EmbedStream(iter([good, good, bad, good]), timeout=ANSWER_LIMIT)
        assert len(next(answers).embeddings) == len(next(answers).embeddings) == 40
        with pytest.raises(grpc.RpcError) as error:
            next(answers)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "nobody" in error.value.details()

    def test_a_cancelled_stream_leaves_nothing_behind(self):
        # A server of its own with one permit: what is left behind would be seen.
        with Server("embedding-last", *GRPC, "--max-concurrent-requests", "1") as server, Grpc(server) as client:
            endless = threading.Event()

            def requests():
                while not endless.is_set():
                    yield messages.EmbedRequest(inputs=TEXT)

            for _ in range(3):
                answers = client.embed.EmbedStream(requests(), timeout=ANSWER_LIMIT)
                next(answers)
                answers.cancel()
            endless.set()

            def is_free() -> bool:
                return server.post("/embed", {"inputs": TEXT}).status_code == 200

            wait_until(is_free, 30, "the permit did not come back")
            wait_until(lambda: server.metrics()["te_queue_size"] == 0, 30, "the queue is not empty")

    def test_a_stream_that_never_ends_holds_nobody_up(self):
        with Server("tied-bf16", *GRPC, "--max-concurrent-requests", "1") as server, Grpc(server) as client:
            done = threading.Event()

            def requests():
                yield messages.RerankStreamRequest(query="q", text="a")
                done.wait(ANSWER_LIMIT)

            waiting = client.rerank.RerankStream.future(requests(), timeout=ANSWER_LIMIT)
            for _ in range(3):
                assert len(server.rerank("q", ["a", "b"])) == 2
            assert not waiting.done()
            done.set()
            assert [rank.index for rank in waiting.result(ANSWER_LIMIT).ranks] == [0]

    def test_a_client_that_does_not_read_is_not_read_from(self, both):
        _, client = both("embedding-last")
        sent = 0

        def requests():
            nonlocal sent
            for _ in range(100_000):
                sent += 1
                yield messages.EmbedAllRequest(inputs=TEXTS["code"]["text"])

        answers = client.embed.EmbedAllStream(requests(), timeout=ANSWER_LIMIT)
        first = next(answers)
        before = 0

        def stands_still() -> bool:
            nonlocal before
            still, before = sent == before, sent
            threading.Event().wait(0.5)
            return still

        wait_until(stands_still, 60, "the server reads on and on")
        assert sent < 20_000
        answers.cancel()
        assert len(first.token_embeddings) == len(VECTORS["embedding-last"]["code"]["ids"])


def test_a_stop_lets_calls_in_flight_finish():
    long = CASES["over-default-limit"]["document"]
    with Server("tied-bf16", *GRPC) as server, Grpc(server) as client:
        texts = [f"{number} {long}" for number in range(8)]
        request = messages.RerankRequest(query="q", texts=texts, truncate=True)
        slow = Background(client.call, client.rerank.Rerank, request)
        wait_until(lambda: server.metrics().get("te_batch_next_size_count"), 30, "no batch of it began")
        server.process.terminate()
        server.wait_for_log("stopping", 10)
        assert len(slow.result().ranks) == len(texts)
        assert server.process.wait(30) == 0


def test_the_key_is_wanted_by_all_but_probes(served):
    server = served("tied-bf16", *GRPC, "--api-key", "k3y")
    request = messages.RerankRequest(query="q", texts=["a"])
    for key in (None, "wrong", "k3y "):
        with Grpc(server, key) as client:
            assert client.serves("tei.v1.Rerank") == "SERVING"
            assert ProtoReflectionDescriptorDatabase(client.channel).get_services()
            assert client.failure(client.rerank.Rerank, request)[0] == "UNAUTHENTICATED"
            assert client.failure(client.info.Info, messages.InfoRequest())[0] == "UNAUTHENTICATED"
            assert client.failure(client.tokenize.TokenizeStream, iter([messages.EncodeRequest(inputs="a")]))[0] == "UNAUTHENTICATED"
    with Grpc(server, "k3y") as client:
        assert len(client.call(client.rerank.Rerank, request).ranks) == 1
