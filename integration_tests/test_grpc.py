"""gRPC with stubs from grpcio-tools: every method gives the answers of its HTTP route in the same process."""

import base64

import pytest
from grpc_client import LEFT, RIGHT, Grpc, fields, messages
from reference_data import CASES, LOGITS, TEXTS, VECTORS
from server import ANSWER_LIMIT, Server
from vectors import check_reference, check_same

MODELS = {
    "embedding-last": "EMBEDDING",
    "seq-cls-1": "RERANKER",
    "seq-cls-3": "CLASSIFIER",
    "tied-bf16": "RERANKER",
}
TEXT = TEXTS["korean"]["text"]
SHORT = [TEXTS[name]["text"] for name in ("english", "korean", "one-letter", "emoji", "arabic", "code", "only-spaces")]
PAIRS = [["q", "a"], ["q", ""], [TEXTS["question"]["text"], TEXTS["english"]["text"]], ["질문", TEXT]]
HEADERS = (
    "compute-time",
    "compute-characters",
    "compute-tokens",
    "total-time",
    "tokenization-time",
    "queue-time",
    "inference-time",
)


def post(server: Server, path: str, **body: object) -> object:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def side(direction: int) -> str:
    return {RIGHT: "Right", LEFT: "Left"}[direction]


@pytest.mark.parametrize("model", MODELS)
def test_info(connected, model):
    server, client = connected(model, "--max-batch-requests", "7", "--served-model-name", "mine")
    http, answer = server.get("/info").json(), client.call(client.info.Info, messages.InfoRequest())
    assert answer.model_type == messages.ModelType.Value(f"MODEL_TYPE_{MODELS[model]}")
    ((kind, details),) = http.pop("model_type").items()
    assert kind == MODELS[model].lower() and answer.pooling == details.get("pooling", "")
    same = set(http) & set(fields(answer))
    assert set(fields(answer)) - same <= {"model_type", "pooling", "labels"}
    assert {name for name, value in http.items() if value and name not in same} <= {"prompt_hash", "max_questions"}
    labels = details.get("id2label", {})
    assert list(answer.labels) == [labels[number] for number in sorted(labels, key=int)]
    cosine = http.pop("cosine_reranking")
    same.discard("cosine_reranking")
    assert answer.HasField("cosine_reranking") == (cosine is not None)
    for name in cosine or ():
        assert getattr(answer.cosine_reranking, name) == cosine[name]
    reranker = http.pop("reranker")
    same.discard("reranker")
    assert answer.HasField("reranker") == (reranker is not None)
    for name in reranker or {}:
        value = getattr(answer.reranker, name)
        assert value == reranker[name] or (not value and reranker[name] is None), name
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
    def client(self, connected) -> Grpc:
        return self.of(connected)[1]

    def of(self, connected) -> tuple[Server, Grpc]:
        return connected("embedding-last", "--max-input-length", "40")

    def http(self, server: Server, path: str, options: dict) -> list:
        options = options | {"truncate": options.get("truncate", False)}
        if "truncation_direction" in options:
            options |= {"truncation_direction": side(options["truncation_direction"])}
        return [post(server, path, inputs=text, **options)[0] for text in self.texts(options)]

    def texts(self, options: dict) -> list[str]:
        return [*SHORT, TEXTS["long-right"]["text"]] if options.get("truncate") else ["a", "질문"]

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_embed_and_its_stream(self, connected, options):
        server, client = self.of(connected)
        expected = self.http(server, "/embed", options)
        requests = [messages.EmbedRequest(inputs=text, **options) for text in self.texts(options)]
        answers = [client.call(client.embed.Embed, request) for request in requests]
        check_same([list(answer.embeddings) for answer in answers], expected)
        streamed = client.stream(client.embed.EmbedStream, requests)
        check_same([list(answer.embeddings) for answer in streamed], expected)
        for alone, in_stream in zip(answers, streamed, strict=True):
            assert alone.metadata.compute_tokens == in_stream.metadata.compute_tokens > 0

    @pytest.mark.parametrize("options", [option for option in OPTIONS if not {"normalize", "dimensions"} & set(option)], ids=str)
    def test_embed_all_and_its_stream(self, connected, options):
        server, client = self.of(connected)
        expected = self.http(server, "/embed_all", options)
        requests = [messages.EmbedAllRequest(inputs=text, **options) for text in self.texts(options)]
        answers = [client.call(client.embed.EmbedAll, request) for request in requests]
        for got in (answers, client.stream(client.embed.EmbedAllStream, requests)):
            rows = [[list(token.embeddings) for token in answer.token_embeddings] for answer in got]
            # `check_same` is for vectors of length one; token vectors are longer.
            assert [len(row) for row in rows] == [len(row) for row in expected]
            check_same(
                [[v / 10 for v in token] for row in rows for token in row],
                [[v / 10 for v in token] for row in expected for token in row],
            )

    @pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "binary", "ubinary"])
    def test_numbers_of_another_type_are_bytes(self, connected, dtype):
        """JSON has them in base64."""
        server, client = self.of(connected)
        number = messages.NumberType.Value(f"NUMBER_TYPE_{dtype.upper()}")
        options = {"output_dtype": dtype, "encoding_format": "base64"}
        for text in ("a", "질문"):
            answer = client.call(client.embed.Embed, messages.EmbedRequest(inputs=text, number_type=number))
            assert [base64.b64encode(answer.encoded).decode()] == post(server, "/embed", inputs=text, **options)
            answer = client.call(client.embed.EmbedAll, messages.EmbedAllRequest(inputs=text, number_type=number))
            tokens = [base64.b64encode(token.encoded).decode() for token in answer.token_embeddings]
            assert [tokens] == post(server, "/embed_all", inputs=text, **options)

    def test_embed_sparse_and_its_stream(self, connected):
        server, client = self.of(connected)
        http = server.post("/embed_sparse", {"inputs": "a"})
        assert http.status_code == 424
        expected = ("FAILED_PRECONDITION", http.json()["error"])
        request = messages.EmbedSparseRequest(inputs="a")
        assert client.failure(client.embed.EmbedSparse, request) == expected
        assert client.failure(client.embed.EmbedSparseStream, iter([request])) == expected

    def test_the_vector_is_sentence_transformers(self, connected):
        _, client = connected("embedding-last")
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
    def test_texts_of_a_classifier(self, connected, options):
        server, client = connected("seq-cls-3", "--max-input-length", "20")
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
    def test_pairs(self, connected, model, options):
        server, client = connected(model)
        expected = [post(server, "/predict", inputs=pair, **options) for pair in PAIRS]
        requests = [messages.PredictPairRequest(inputs=pair, **options) for pair in PAIRS]
        self.check([client.call(client.predict.PredictPair, request) for request in requests], expected)
        self.check(client.stream(client.predict.PredictPairStream, requests), expected)

    def test_the_classifiers_logits_are_transformers(self, connected):
        _, client = connected("seq-cls-3")
        for row in LOGITS["seq-cls-3"].values():
            if len(row["inputs"]) == 1:
                answer = client.call(client.predict.Predict, messages.PredictRequest(inputs=row["inputs"][0], raw_scores=True))
            else:
                answer = client.call(
                    client.predict.PredictPair, messages.PredictPairRequest(inputs=row["inputs"], raw_scores=True)
                )
            got = {prediction.label: prediction.score for prediction in answer.predictions}
            labels = ("contradiction", "neutral", "entailment")
            assert [got[label] for label in labels] == pytest.approx(row["logits"], abs=1e-4)


class TestRerank:
    """A generative re-ranker, and a head with one label."""

    TEXTS = ["a", " ", "감독", TEXTS["english"]["text"], "a"]
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
    def test_rerank_and_its_stream(self, connected, model, options):
        server, client = connected(model)
        body = options | {
            "truncate": options.get("truncate", False),
            "truncation_direction": side(options.get("truncation_direction", RIGHT)),
        }
        expected = post(server, "/rerank", query="which planet is red?", texts=self.TEXTS, **body)
        query = "which planet is red?"
        whole = client.call(client.rerank.Rerank, messages.RerankRequest(query=query, texts=self.TEXTS, **options))
        parts = [messages.RerankStreamRequest(query=query, text=text, **options) for text in self.TEXTS]
        for answer in (whole, client.call(client.rerank.RerankStream, iter(parts))):
            assert [rank.index for rank in answer.ranks] == [rank["index"] for rank in expected]
            check_same([rank.score for rank in answer.ranks], [rank["score"] for rank in expected])
            texts = [rank.text if rank.HasField("text") else None for rank in answer.ranks]
            assert texts == [rank.get("text") for rank in expected]

    def test_the_score_is_transformers(self, connected):
        _, client = connected("seq-cls-1")
        case = CASES["english-1"]
        answer = client.call(
            client.rerank.Rerank, messages.RerankRequest(query=case["query"], texts=[case["document"]], raw_scores=True)
        )
        assert answer.ranks[0].score == pytest.approx(LOGITS["seq-cls-1"]["english-1"]["logits"][0], abs=1e-4)

    def test_the_first_message_of_a_stream_sets_the_options(self, connected):
        _, client = connected("tied-bf16")
        parts = [
            messages.RerankStreamRequest(query="q", text="a", raw_scores=True, return_text=True),
            messages.RerankStreamRequest(query="q", text="b"),
        ]
        answer = client.call(client.rerank.RerankStream, iter(parts))
        whole = client.call(
            client.rerank.Rerank, messages.RerankRequest(query="q", texts=["a", "b"], raw_scores=True, return_text=True)
        )
        assert {rank.text for rank in answer.ranks} == {"a", "b"}
        check_same([rank.score for rank in answer.ranks], [rank.score for rank in whole.ranks])


class TestTokens:
    """Tokens of each kind of model."""

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("special", [True, False])
    def test_tokenize_and_its_stream(self, connected, model, special):
        server, client = connected(model)
        texts = [*SHORT, "x<|im_end|>"]
        expected = [post(server, "/tokenize", inputs=text, add_special_tokens=special)[0] for text in texts]
        requests = [messages.EncodeRequest(inputs=text, add_special_tokens=special) for text in texts]
        answers = [client.call(client.tokenize.Tokenize, request) for request in requests]
        for got in (answers, client.stream(client.tokenize.TokenizeStream, requests)):
            assert [[self.token(token) for token in answer.tokens] for answer in got] == expected

    def token(self, token) -> dict:
        place = {name: getattr(token, name) if token.HasField(name) else None for name in ("start", "stop")}
        return {"id": token.id, "text": token.text, "special": token.special} | place

    def test_a_prompt_before_the_text(self, connected):
        server, client = connected("embedding-last")
        (expected,) = post(server, "/tokenize", inputs="a", prompt_name="query")
        answer = client.call(
            client.tokenize.Tokenize, messages.EncodeRequest(inputs="a", add_special_tokens=True, prompt_name="query")
        )
        assert [self.token(token) for token in answer.tokens] == expected

    @pytest.mark.parametrize("skip", [True, False])
    def test_decode_and_its_stream(self, connected, skip):
        server, client = connected("embedding-last")
        lists = [VECTORS["embedding-last"][name]["ids"] for name in ("english", "korean", "emoji", "control-at-the-end")]
        expected = [post(server, "/decode", ids=ids, skip_special_tokens=skip)[0] for ids in lists]
        assert expected[0] == TEXTS["english"]["text"] + ("" if skip else "<|endoftext|>")
        requests = [messages.DecodeRequest(ids=ids, skip_special_tokens=skip) for ids in lists]
        assert [client.call(client.tokenize.Decode, request).text for request in requests] == expected
        assert [answer.text for answer in client.stream(client.tokenize.DecodeStream, requests)] == expected


def test_the_cost_is_in_the_answer_and_its_metadata(connected):
    server, client = connected("embedding-last")
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
