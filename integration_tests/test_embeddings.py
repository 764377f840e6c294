"""Every text of `reference/` gets sentence-transformers' vector, on every route and in any batch."""

import base64
import random
import struct
from functools import cache
from pathlib import Path

import pytest
from reference_data import TEXTS, VECTORS
from server import EMBEDDING_MODELS, Server
from vectors import COSINE, SAME, check_reference, check_same, cosine, difference, length

PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
MODEL = "embedding-last"
WIDTHS = {"embedding-last": 40, "embedding-mean-dense": 19}
# The largest number of inputs in a request.
BATCH = 32


def by_server() -> list[tuple[str, int | None, str]]:
    """Model, longest input and name of each case, sorted by server."""
    rows = [(model, TEXTS[name]["max_length"], name) for model, cases in VECTORS.items() for name in cases]
    return sorted(rows, key=lambda row: (row[0], row[1] or 0))


def fields(case: dict) -> dict:
    """The fields of a request other than its inputs."""
    prompt = {} if case["prompt_name"] is None else {"prompt_name": case["prompt_name"]}
    return {"truncation_direction": case["truncation_direction"]} | prompt


def names(model: str = MODEL) -> list[str]:
    """The cases without a limit and without a prompt."""
    return [name for name in VECTORS[model] if TEXTS[name]["max_length"] is None and TEXTS[name]["prompt_name"] is None]


def texts(model: str = MODEL) -> list[str]:
    return [TEXTS[name]["text"] for name in names(model) if TEXTS[name]["truncation_direction"] == "right"]


def embed(server: Server, inputs: object, **options: object) -> list[list[float]]:
    """The vectors of a request that must succeed."""
    answer = server.post("/embed", {"inputs": inputs, **options})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_case_has_its_expected_vector():
    for model in EMBEDDING_MODELS:
        wanted = {name for name, case in TEXTS.items() if model in (case["models"] or [model])}
        assert set(VECTORS[model]) == wanted and len(wanted) > 25, model
        assert {len(row["raw"]) for row in VECTORS[model].values()} == {WIDTHS[model]}


@pytest.mark.parametrize(("model", "longest", "name"), by_server())
def test_vector_is_that_of_sentence_transformers(limited, model, longest, name):
    server = limited(model, longest)
    case, expected = TEXTS[name], VECTORS[model][name]
    answer = server.post("/embed", {"inputs": case["text"], "normalize": False, **fields(case)})
    assert answer.status_code == 200, answer.text
    (raw,) = answer.json()
    check_reference(raw, expected["raw"])
    assert int(answer.headers["x-compute-tokens"]) == len(expected["ids"])
    assert int(answer.headers["x-compute-characters"]) == len(case["text"])
    (normalized,) = embed(server, case["text"], **fields(case))
    assert length(normalized) == pytest.approx(1, abs=1e-6)
    check_reference(normalized, expected["normalized"])
    # Sending its token ids instead gives the same vector.
    check_same(embed(server, expected["ids"]), [normalized])
    for count, first in expected.get("dimensions", {}).items():
        (cut,) = embed(server, case["text"], dimensions=int(count), **fields(case))
        check_reference(cut, first)
        (cut,) = embed(server, case["text"], dimensions=int(count), normalize=False, **fields(case))
        check_same(cut, raw[: int(count)])
    if "tokens" in expected:
        (tokens,) = server.post("/embed_all", {"inputs": case["text"], **fields(case)}).json()
        assert len(tokens) == len(expected["ids"])
        for token, other in zip(tokens, expected["tokens"], strict=True):
            check_reference(token, other)


# Smallest cosine with sentence-transformers' vector, which is computed in float32.
ARITHMETIC = {"float32": COSINE, "bfloat16": 0.9995, "float16": 0.9995, "int8": 0.995}


@pytest.mark.parametrize("model", EMBEDDING_MODELS)
@pytest.mark.parametrize("dtype", ARITHMETIC)
def test_every_arithmetic_comes_close(served, model, dtype):
    server = served(model, "--dtype", dtype)
    for name in names(model):
        case, expected = TEXTS[name], VECTORS[model][name]["normalized"]
        (vector,) = embed(server, case["text"], **fields(case))
        assert length(vector) == pytest.approx(1, abs=1e-6)
        assert cosine(vector, expected) >= ARITHMETIC[dtype], name


@pytest.mark.parametrize("pooling", ["mean", "cls", "last-token"])
def test_the_flag_chooses_the_pooling(served, pooling):
    server = served(MODEL, "--pooling", pooling)
    assert server.get("/info").json()["model_type"] == {"embedding": {"pooling": pooling.replace("-", "_")}}
    for name in names():
        case, expected = TEXTS[name], VECTORS[MODEL][name]
        (vector,) = embed(server, case["text"], normalize=False, **fields(case))
        check_reference(vector, expected["raw" if pooling == "last-token" else pooling])


def test_the_files_choose_the_pooling(served):
    for model, pooling in (("embedding-last", "last_token"), ("embedding-mean-dense", "mean")):
        info = served(model).get("/info").json()
        assert info["model_type"] == {"embedding": {"pooling": pooling}}
        # The first model is limited by the default budget of a batch, the second by its own files.
        assert info["max_input_length"] == {"embedding-last": 16384, "embedding-mean-dense": 47}[model]
    assert served(MODEL, "--max-batch-tokens", "50000").get("/info").json()["max_input_length"] == 40960


@pytest.mark.parametrize("flags", [("--default-prompt-name", "query"), ("--default-prompt", PROMPT)])
def test_a_default_prompt_is_put_before_texts_and_ids(served, flags):
    server = served(MODEL, *flags)
    fields = {"inputs": PROMPT, "prompt_name": "document", "add_special_tokens": False}
    prompt = [token["id"] for token in server.post("/tokenize", fields).json()[0]]
    for name in ("query-english", "query-korean", "query-battery"):
        case, expected = TEXTS[name], VECTORS[MODEL][name]
        (vector,) = embed(server, case["text"])
        check_reference(vector, expected["normalized"])
        check_same(embed(server, case["text"], prompt_name="query"), [vector])
        ids, behind = expected["ids"], expected["ids"][len(prompt) :]
        assert ids == prompt + behind
        # With and without the special token that the tokenizer appends.
        for sent in (behind, behind[:-1]):
            check_same(embed(server, sent), [vector])
            check_same(embed(server, [sent], prompt_name="query"), [vector])
            check_same([server.post("/v1/embeddings", {"input": sent}).json()["data"][0]["embedding"]], [vector])
    (document,) = embed(server, TEXTS["document-english"]["text"], prompt_name="document")
    check_reference(document, VECTORS[MODEL]["document-english"]["normalized"])
    (tokens,) = server.post("/tokenize", {"inputs": TEXTS["query-english"]["text"]}).json()
    assert [token["id"] for token in tokens] == VECTORS[MODEL]["query-english"]["ids"]


def test_tokens_are_those_of_the_tokenizer(served):
    server = served(MODEL)
    for name in (*names(), "query-korean"):
        case, expected = TEXTS[name], VECTORS[MODEL][name]["ids"]
        if "control" in name:
            # /tokenize reads control tokens in a text as such; /embed does not.
            continue
        prompt = {"prompt_name": case["prompt_name"]} if case["prompt_name"] else {}
        (tokens,) = server.post("/tokenize", {"inputs": case["text"], **prompt}).json()
        assert [token["id"] for token in tokens] == expected, name
        assert tokens[-1] == {"id": expected[-1], "text": "<|endoftext|>", "special": True, "start": None, "stop": None}
        (plain,) = server.post("/tokenize", {"inputs": case["text"], "add_special_tokens": False, **prompt}).json()
        assert plain == tokens[:-1]


def by_other_routes(server: Server, model: str) -> dict[str, list[list[float]]]:
    """The vectors of a model's texts from every HTTP route but `/embed`."""

    def openai(path: str, **options: str) -> list:
        answer = server.post(path, {"input": texts(model), "model": "any", **options}).json()
        assert (answer["object"], answer["model"]) == ("list", Path(server.get("/info").json()["model_id"]).name)
        assert [row["index"] for row in answer["data"]] == list(range(len(texts(model))))
        tokens = sum(len(VECTORS[model][name]["ids"]) for name in names(model) if name != "long-left")
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        return [row["embedding"] for row in answer["data"]]

    def decoded(text: str) -> list[float]:
        data = base64.b64decode(text, validate=True)
        return list(struct.unpack(f"<{len(data) // 4}f", data))

    inputs = {"inputs": texts(model)}
    instances = [{"inputs": texts(model)[:5]}, {"inputs": texts(model)[5:]}]
    one, two = server.post("/vertex", {"instances": instances}).json()["predictions"]
    return {
        "/": server.post("/", inputs).json(),
        "/invocations": server.post("/invocations", inputs).json(),
        "/embeddings": openai("/embeddings"),
        "/v1/embeddings": openai("/v1/embeddings", encoding_format="float"),
        "base64": [decoded(text) for text in openai("/v1/embeddings", encoding_format="base64")],
        "/vertex": one + two,
    }


@pytest.mark.parametrize("model", EMBEDDING_MODELS)
def test_all_routes_give_the_same_vectors(served, model):
    server = served(model)
    expected = embed(server, texts(model))
    for route, vectors in by_other_routes(server, model).items():
        assert difference(vectors, expected) <= SAME, route
    similarity = {"inputs": {"source_sentence": texts(model)[0], "sentences": texts(model)[1:]}}
    cosines = [cosine(expected[0], vector) for vector in expected[1:]]
    assert server.post("/similarity", similarity).json() == pytest.approx(cosines, abs=SAME)
    assert server.post("/vertex", {"instances": [similarity]}).status_code == 422


def test_the_last_tokens_vector_is_the_texts(served):
    server = served(MODEL)
    tokens = server.post("/embed_all", {"inputs": texts()}).json()
    whole = embed(server, texts(), normalize=False)
    for vectors, vector in zip(tokens, whole, strict=True):
        assert difference(vectors[-1], vector) <= SAME * length(vector)


def test_similarity_takes_a_prompt(served):
    server = served(MODEL)
    inputs = {"source_sentence": TEXTS["query-english"]["text"], "sentences": [TEXTS["query-korean"]["text"]]}
    rows = [VECTORS[MODEL][name]["normalized"] for name in ("query-english", "query-korean")]
    answer = server.post("/similarity", {"inputs": inputs, "parameters": {"prompt_name": "query"}})
    assert answer.json() == pytest.approx([cosine(*rows)], abs=SAME)
    assert server.post("/similarity", {"inputs": inputs}).json() != pytest.approx(answer.json(), abs=1e-3)


@pytest.fixture(scope="module")
def alone(served):
    """The vectors of a model's texts, each from a request of its own."""

    @cache
    def get(model: str) -> list[list[float]]:
        return [embed(served(model), text)[0] for text in texts(model)]

    return get


class TestCompany:
    """A text's vector does not depend on the other texts in its request or batch."""

    # The small budget is the length of the longest text, so that all texts together need several batches.
    FLAGS = {
        "defaults": (),
        "small budget": ("--max-input-length", "410", "--max-batch-tokens", "410"),
        "one text a batch": ("--max-batch-requests", "1"),
        "three texts a batch": ("--max-batch-requests", "3"),
        "one thread": ("--threads", "1"),
        "two threads": ("--threads", "2"),
    }

    @pytest.mark.parametrize("model", EMBEDDING_MODELS)
    @pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
    def test_alone_in_a_batch_and_in_any_order(self, served, alone, model, flags):
        if model != MODEL and "--max-input-length" in flags:
            flags = ("--max-batch-tokens", "47")
        server, expected, generator = served(model, *flags), alone(model), random.Random(4)
        check_same(embed(server, texts(model)), expected)
        for size in (2, 3, 7, BATCH):
            chosen = generator.choices(range(len(expected)), k=size)
            vectors = embed(server, [texts(model)[index] for index in chosen])
            check_same(vectors, [expected[index] for index in chosen])

    def test_far_enough_apart_for_a_mistake_to_show(self, alone):
        for model in EMBEDDING_MODELS:
            ids = [VECTORS[model][name]["ids"] for name in names(model) if TEXTS[name]["truncation_direction"] == "right"]
            # Some texts are equal after truncation.
            vectors = list({tuple(key): vector for key, vector in zip(ids, alone(model), strict=True)}.values())
            apart = (difference(a, b) for index, a in enumerate(vectors) for b in vectors[:index])
            assert len(vectors) > 15 and min(apart) > 100 * SAME

    def test_texts_and_ids_in_one_request(self, served, alone):
        ids = [VECTORS[MODEL][name]["ids"] for name in names() if TEXTS[name]["truncation_direction"] == "right"]
        mixed = [ids[index] if index % 2 else text for index, text in enumerate(texts())]
        check_same(embed(served(MODEL), mixed), alone(MODEL))

    def test_prefixes_of_one_another(self, served):
        server, ids = served(MODEL), VECTORS[MODEL]["code"]["ids"]
        prefixes = [ids[:count] for count in (1, 2, 5, 17, len(ids))]
        expected = [embed(server, prefix)[0] for prefix in prefixes]
        check_same(embed(server, prefixes + prefixes[::-1]), expected + expected[::-1])
        # `/embed_all` of the longest prefix gives each prefix's vector: the one of its last token.
        (every,) = server.post("/embed_all", {"inputs": ids}).json()
        scaled = [[value / length(row) for value in row] for row in every]
        check_same([scaled[len(prefix) - 1] for prefix in prefixes], expected)

    def test_a_common_prompt_is_computed_once(self, served):
        # A server of its own, because the test compares its counter.
        with Server(MODEL) as server:
            queries = [TEXTS["query-english"]["text"], TEXTS["query-korean"]["text"]]
            before = server.metrics().get("te_prefix_shared_tokens", 0)
            vectors = embed(server, queries, prompt_name="query")
            after = server.metrics()["te_prefix_shared_tokens"]
            for vector, name in zip(vectors, ("query-english", "query-korean"), strict=True):
                check_reference(vector, VECTORS[MODEL][name]["normalized"])
            rows = [VECTORS[MODEL][name]["ids"] for name in ("query-english", "query-korean")]
            common = next(index for index, pair in enumerate(zip(*rows, strict=False)) if pair[0] != pair[1])
            assert after - before == common > 15
