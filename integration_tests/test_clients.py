"""Clients of other projects get sentence-transformers' vectors, and errors of their own types."""

import asyncio
import base64
import importlib.resources
import json
import re
import subprocess
import sys
from pathlib import Path

import cohere
import httpx
import huggingface_hub
import litellm
import numpy
import openai
import pytest
import tiktoken
from cohere.core.api_error import ApiError
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.nvidia import NVIDIAEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from reference_data import LOGITS, TEXTS, VECTORS
from server import ROOT, Server
from vectors import check_reference, check_same, cosine

MODEL = "embedding-last"
NAMES = [
    "english",
    "question",
    "korean",
    "chinese",
    "arabic",
    "emoji",
    "decomposed",
    "outer-spaces",
    "one-token",
    "shared-none",
    "shared-more",
]
INPUTS = [TEXTS[name]["text"] for name in NAMES]
EXPECTED = [VECTORS[MODEL][name]["normalized"] for name in NAMES]
QUERY, QUERY_VECTOR = TEXTS["query-english"]["text"], VECTORS[MODEL]["query-english"]["normalized"]
KEY = "k3y-of-the-server"


@pytest.fixture
def embedder(served) -> Server:
    return served(MODEL)


@pytest.fixture
def keyed(served) -> Server:
    return served(MODEL, "--api-key", KEY)


def check(vectors, expected=EXPECTED) -> None:
    assert len(vectors) == len(expected)
    for vector, other in zip(vectors, expected, strict=True):
        check_reference([float(value) for value in vector], other)


class TestHuggingFaceHub:
    """`huggingface_hub`'s client, with the server's address as its model."""

    def test_features(self, embedder):
        client = InferenceClient(embedder.url)
        check(client.feature_extraction(INPUTS))
        check(client.feature_extraction(INPUTS[0]), EXPECTED[:1])
        check(client.feature_extraction(INPUTS, normalize=False), [VECTORS[MODEL][name]["raw"] for name in NAMES])
        check(client.feature_extraction(QUERY, prompt_name="query"), [QUERY_VECTOR])
        left = client.feature_extraction("a", truncate=True, truncation_direction="left")
        check_same(left.tolist(), client.feature_extraction("a", truncate=True, truncation_direction="right").tolist())

    def test_features_asynchronously(self, embedder):
        async def ask() -> list:
            async with AsyncInferenceClient(embedder.url) as client:
                return await asyncio.gather(*(client.feature_extraction(text) for text in INPUTS))

        check([rows[0] for rows in asyncio.run(ask())])

    def test_similarity(self, embedder, served):
        expected = [cosine(EXPECTED[0], other) for other in EXPECTED[1:]]
        client = InferenceClient(f"{embedder.url}/similarity")
        assert client.sentence_similarity(INPUTS[0], INPUTS[1:]) == pytest.approx(expected, abs=2e-5)

    def test_similarity_as_the_main_task(self):
        with Server(MODEL, environment={"TASK": "sentence-similarity"}) as server:
            answer = InferenceClient(server.url).sentence_similarity(INPUTS[0], [INPUTS[0], INPUTS[1]])
        assert answer == pytest.approx([1, cosine(EXPECTED[0], EXPECTED[1])], abs=2e-5)

    def test_classification(self, served):
        row = LOGITS["seq-cls-3"]["korean"]
        best = InferenceClient(f"{served('seq-cls-3').url}/predict").text_classification(row["inputs"][0])
        # The client reads the first entry of the list, which is the best label of a single text.
        assert best["label"] == ["contradiction", "neutral", "entailment"][row["scores"].index(max(row["scores"]))]
        assert best["score"] == pytest.approx(max(row["scores"]), abs=1e-4)

    def test_errors(self, embedder, keyed):
        with pytest.raises(HfHubHTTPError) as error:
            InferenceClient(embedder.url).feature_extraction("a", prompt_name="nobody")
        assert error.value.response.status_code == 422 and "nobody" in error.value.response.text
        with pytest.raises(HfHubHTTPError) as error:
            InferenceClient(keyed.url, token="wrong").feature_extraction("a")
        assert error.value.response.status_code == 401
        check(InferenceClient(keyed.url, token=KEY).feature_extraction(INPUTS))

    def test_the_version_is_the_pinned_one(self):
        assert huggingface_hub.__version__.startswith("1.")


def quantised(vectors: list[list[float]]) -> dict[str, list]:
    """Every type of numbers for vectors, from the rules of docs/embeddings.md."""
    values = numpy.array(vectors, dtype=numpy.float32)
    scale = numpy.float32(127) / min(numpy.float32(8) / numpy.sqrt(numpy.float32(values.shape[1])), numpy.float32(1))
    int8 = numpy.clip(numpy.rint(values * scale), -127, 127).astype(int)
    packed = numpy.packbits(values > 0, axis=-1).astype(int)
    return {
        "int8": int8.tolist(),
        "uint8": (int8 + 128).tolist(),
        "binary": (packed - 128).tolist(),
        "ubinary": packed.tolist(),
        "base64": [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in values],
    }


class TestCohere:
    """`cohere` in both versions, which sends 96 texts at once."""

    def client(self, server: Server, kind: type = cohere.ClientV2, key: str = "-"):
        return kind(api_key=key, base_url=server.url)

    def test_texts(self, embedder):
        answer = self.client(embedder).embed(model="any", input_type="classification", texts=INPUTS)
        check(answer.embeddings.float_)
        assert answer.texts == INPUTS and answer.response_type == "embeddings_by_type"
        assert answer.meta.api_version.version == "2" and len(answer.id) == 36
        assert answer.meta.billed_units.input_tokens == sum(len(VECTORS[MODEL][name]["ids"]) for name in NAMES)
        parts = [{"content": [{"type": "text", "text": text}]} for text in INPUTS]
        check(self.client(embedder).embed(model="any", input_type="clustering", inputs=parts).embeddings.float_)

    def test_the_first_version(self, embedder):
        answer = self.client(embedder, cohere.Client).embed(model="any", texts=INPUTS * 10)
        check(answer.embeddings, EXPECTED * 10)
        assert answer.response_type == "embeddings_floats" and answer.texts == INPUTS * 10
        assert answer.meta.api_version.version == "1" and not answer.meta.warnings
        typed = self.client(embedder, cohere.Client).embed(model="any", texts=INPUTS, embedding_types=["float", "int8"])
        check(typed.embeddings.float_)
        assert typed.response_type == "embeddings_by_type"
        assert typed.embeddings.int8 == quantised(typed.embeddings.float_)["int8"]

    def test_asynchronously(self, embedder):
        async def ask():
            return await self.client(embedder, cohere.AsyncClientV2).embed(model="any", input_type="clustering", texts=INPUTS)

        check(asyncio.run(ask()).embeddings.float_)

    def test_the_input_type_chooses_the_prompt(self, embedder):
        client = self.client(embedder)
        check(client.embed(model="any", input_type="search_query", texts=[QUERY]).embeddings.float_, [QUERY_VECTOR])
        document = client.embed(model="any", input_type="search_document", texts=INPUTS)
        check(document.embeddings.float_)
        assert document.meta.warnings is None

    def test_every_type_and_length(self, embedder):
        types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
        whole = self.client(embedder).embed(model="any", input_type="clustering", texts=INPUTS, embedding_types=types)
        lengths = [int(count) for count in VECTORS[MODEL]["english"]["dimensions"]]
        for length in [None, *lengths]:
            answer = self.client(embedder).embed(
                model="any", input_type="clustering", texts=INPUTS, embedding_types=types, output_dimension=length
            ).embeddings
            for name, expected in quantised(answer.float_).items():
                assert getattr(answer, name) == expected, (length, name)
            if length is not None:
                check(answer.float_[:1], [VECTORS[MODEL]["english"]["dimensions"][str(length)]])
        assert len(whole.embeddings.binary[0]) == -(-len(EXPECTED[0]) // 8)

    def test_errors(self, embedder, keyed):
        for kind in (cohere.ClientV2, cohere.Client):
            for problem, sent in {
                "`images` is not supported": {"images": ["data:image/png;base64,AA=="]},
                "`input_type` `image` is not supported": {"texts": ["a"], "input_type": "image"},
                "unknown variant `int4`": {"texts": ["a"], "embedding_types": ["int4"]},
                "is too long": {"texts": ["a " * 100_000], "truncate": "NONE"},
            }.items():
                with pytest.raises(ApiError) as error:
                    self.client(embedder, kind).embed(**{"model": "any", "input_type": "clustering"} | sent)
                assert error.value.status_code == 422 and problem in error.value.body["message"], problem
            with pytest.raises(ApiError) as error:
                self.client(keyed, kind, "wrong").embed(model="any", texts=["a"], input_type="clustering")
            assert error.value.status_code == 401
        answer = self.client(keyed, key=KEY).embed(model="any", texts=INPUTS, input_type="clustering")
        check(answer.embeddings.float_)

    def test_a_model_without_prompts_says_that_the_type_has_no_effect(self, served):
        answer = self.client(served(str(ROOT / "integration_tests/reference/fixtures/served/bert-embedding-mean"))).embed(model="any", texts=["a"], input_type="search_query")
        assert "name no prompts" in answer.meta.warnings[0]


class TestOpenAI:
    """`openai`, which requests base64 by default."""

    def client(self, server: Server, key: str = "-", kind: type = openai.OpenAI):
        return kind(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    @pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}], ids=["base64", "float"])
    def test_texts(self, embedder, options):
        answer = self.client(embedder).embeddings.create(model="any", input=INPUTS, **options)
        check([row.embedding for row in answer.data])
        assert [row.index for row in answer.data] == list(range(len(INPUTS)))
        tokens = sum(len(VECTORS[MODEL][name]["ids"]) for name in NAMES)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens
        assert answer.object == "list" and answer.model == embedder.get("/info").json()["served_model_name"]
        one = self.client(embedder).embeddings.create(model="any", input=INPUTS[0], user="me", **options)
        check([one.data[0].embedding], EXPECTED[:1])

    def test_token_ids(self, embedder, served):
        ids = [VECTORS[MODEL][name]["ids"] for name in NAMES]
        with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
            self.client(embedder).embeddings.create(model="any", input=ids)
        client = self.client(served(MODEL, "--accept-openai-token-ids"))
        check([row.embedding for row in client.embeddings.create(model="any", input=ids).data])
        check([client.embeddings.create(model="any", input=ids[0]).data[0].embedding], EXPECTED[:1])

    def test_more_texts_than_other_routes_take(self, embedder):
        answer = self.client(embedder).embeddings.create(model="any", input=INPUTS * 10)
        check([row.embedding for row in answer.data], EXPECTED * 10)

    def test_a_prompt(self, embedder):
        answer = self.client(embedder).embeddings.create(model="any", input=QUERY, extra_body={"prompt_name": "query"})
        check([answer.data[0].embedding], [QUERY_VECTOR])

    def test_dimensions(self, embedder):
        for count, first in VECTORS[MODEL]["english"]["dimensions"].items():
            answer = self.client(embedder).embeddings.create(model="any", input=INPUTS[0], dimensions=int(count))
            check([answer.data[0].embedding], [first])

    def test_types_of_numbers(self, embedder):
        def ask(**fields) -> list:
            answer = self.client(embedder).embeddings.create(model="any", input=INPUTS, extra_body=fields, encoding_format="float")
            return [row.embedding for row in answer.data]

        forms = quantised(ask())
        for name in ("int8", "uint8", "binary", "ubinary"):
            assert ask(output_dtype=name) == ask(embedding_type=name) == forms[name], name
            rows = embedder.post("/v1/embeddings", {"input": INPUTS, "encoding_format": name}).json()["data"]
            assert [row["embedding"] for row in rows] == forms[name], name
        assert ask(normalize=True) == ask()
        assert ask(normalized=False) == embedder.post("/embed", {"inputs": INPUTS, "normalize": False}).json()
        # Its own default is base64, from which it reads float32.
        with pytest.raises(openai.UnprocessableEntityError, match="would read these numbers as float32"):
            self.client(embedder).embeddings.create(model="any", input=INPUTS, extra_body={"output_dtype": "int8"})

    def test_voyages_fields(self, embedder):
        """As `voyageai` sends them. It decodes base64 by `output_dtype`."""
        body = {"input": [QUERY], "model": "any", "input_type": "query", "truncation": True, "encoding_format": "base64"}
        row = embedder.post("/v1/embeddings", body | {"output_dtype": None, "output_dimension": None}).json()["data"][0]
        vector = numpy.frombuffer(base64.b64decode(row["embedding"]), "<f4")
        check([vector], [QUERY_VECTOR])
        for name, kind in {"int8": "int8", "uint8": "uint8", "binary": "int8", "ubinary": "uint8"}.items():
            row = embedder.post("/v1/embeddings", body | {"output_dtype": name}).json()["data"][0]
            found = numpy.frombuffer(base64.b64decode(row["embedding"]), kind).tolist()
            assert found == quantised([vector.tolist()])[name][0], name

    def test_many_at_once(self, embedder):
        async def ask() -> list:
            async with self.client(embedder, kind=openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(client.embeddings.create(model="any", input=text) for text in INPUTS * 3))

        check([answer.data[0].embedding for answer in asyncio.run(ask())], EXPECTED * 3)

    def test_errors(self, embedder, keyed, served):
        table = [
            (embedder, openai.UnprocessableEntityError, {"input": "a", "dimensions": 10_000}, (422, "Validation")),
            (embedder, openai.UnprocessableEntityError, {"input": ["a"] * 2049}, (422, "Validation")),
            (embedder, openai.BadRequestError, {"input": []}, (400, "Empty")),
            (keyed, openai.AuthenticationError, {"input": "a"}, (401, "Unauthorized")),
            (served("tied-bf16"), openai.APIStatusError, {"input": "a"}, (424, "Backend")),
        ]
        for server, kind, body, (status, name) in table:
            with pytest.raises(kind) as error:
                self.client(server, "wrong").embeddings.create(model="any", **body)
            assert error.value.status_code == status
            assert set(error.value.body) == {"message", "type", "param", "code"}
            assert (error.value.body["code"], error.value.body["type"]) == (status, name)
        check([self.client(keyed, KEY).embeddings.create(model="any", input=QUERY).data[0].embedding], [self.plain(embedder)])

    def plain(self, server: Server) -> list[float]:
        return server.post("/embed", {"inputs": QUERY}).json()[0]


class TestNVIDIA:
    """The clients of NVIDIA's NIM for LangChain and LlamaIndex, which say the use of each text."""

    def langchain(self, server: Server, **options: object) -> NVIDIAEmbeddings:
        return NVIDIAEmbeddings(base_url=server.url, **{"api_key": KEY, "model": "any", **options})

    def llama_index(self, server: Server, **options: object) -> NVIDIAEmbedding:
        return NVIDIAEmbedding(base_url=f"{server.url}/v1", **{"api_key": KEY, "model": "any", "max_retries": 0, **options})

    def test_langchain(self, keyed):
        client = self.langchain(keyed)
        check(client.embed_documents(INPUTS * 6), EXPECTED * 6)
        check([client.embed_query(QUERY)], [QUERY_VECTOR])
        check(asyncio.run(client.aembed_documents(INPUTS)))
        check([asyncio.run(client.aembed_query(QUERY))], [QUERY_VECTOR])

    def test_llama_index(self, keyed):
        client = self.llama_index(keyed)
        check(client.get_text_embedding_batch(INPUTS))

        async def ask() -> tuple:
            return await asyncio.gather(client.aget_text_embedding_batch(INPUTS), client.aget_query_embedding(QUERY))

        vectors, query_vector = asyncio.run(ask())
        check([*vectors, query_vector], [*EXPECTED, QUERY_VECTOR])
        # Its other method says `passage`, which docs/clients.md tells.
        check_same(client.get_query_embedding(QUERY), client.get_text_embedding(QUERY))

    def test_dimensions(self, keyed):
        for count, first in VECTORS[MODEL]["english"]["dimensions"].items():
            check(self.langchain(keyed, dimensions=int(count)).embed_documents(INPUTS[:1]), [first])
            check([self.llama_index(keyed, dimensions=int(count)).get_text_embedding(INPUTS[0])], [first])

    def test_the_model_is_found(self, keyed):
        name = keyed.get("/info", headers={"Authorization": f"Bearer {KEY}"}).json()["served_model_name"]
        for client in (self.langchain, self.llama_index):
            with pytest.warns(UserWarning, match="Default model is set"):
                found = client(keyed, model=None)
            assert found.model == name and [model.id for model in found.available_models] == [name]

    def test_the_end_that_is_cut(self, keyed):
        long = "b " + "a " * 20_000 + "c"
        vectors = []
        for end in ("START", "END"):
            vectors.append(self.langchain(keyed, truncate=end).embed_documents([long])[0])
            check_same(self.llama_index(keyed, truncate=end).get_text_embedding(long), vectors[-1])
        assert vectors[0] != vectors[1]
        with pytest.raises(Exception, match=r"\[422\].*tokens"):
            self.langchain(keyed).embed_documents([long])
        with pytest.raises(openai.UnprocessableEntityError, match="tokens"):
            self.llama_index(keyed).get_text_embedding(long)

    def test_errors(self, keyed):
        with pytest.raises(Exception, match=r"\[401\] this server wants its key"):
            self.langchain(keyed, api_key="wrong").embed_query(QUERY)
        with pytest.raises(openai.AuthenticationError, match="this server wants its key"):
            self.llama_index(keyed, api_key="wrong").get_query_embedding(QUERY)


class TestLlamaIndex:
    """`llama-index`'s embeddings, with an instruction that the client adds itself."""

    def client(self, server: Server, **options: object) -> TextEmbeddingsInference:
        return TextEmbeddingsInference(model_name="any", base_url=server.url, timeout=60, **options)

    def test_texts_and_queries(self, embedder):
        # The client strips its texts.
        client = self.client(embedder, text_instruction="", query_instruction="", embed_batch_size=3)
        plain = [index for index, text in enumerate(INPUTS) if text == text.strip()]
        check(client.get_text_embedding_batch([INPUTS[index] for index in plain]), [EXPECTED[index] for index in plain])
        check([client.get_text_embedding(INPUTS[2]), client.get_query_embedding(INPUTS[3])], EXPECTED[2:4])

    def test_a_query_with_its_instruction(self, embedder):
        instruction = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        vector = self.client(embedder, query_instruction=instruction).get_query_embedding(QUERY)
        # The client puts a space between instruction and query.
        (expected,) = embedder.post("/embed", {"inputs": f"{instruction} {QUERY}"}).json()
        check_same(vector, expected)

    def test_asynchronously_with_a_key(self, keyed):
        client = self.client(keyed, auth_token=KEY, text_instruction="", embed_batch_size=2)
        check(asyncio.run(client.aget_text_embedding_batch(INPUTS[:6])), EXPECTED[:6])


class TestLangChain:
    """`langchain-huggingface` with a client of the server's address, and `langchain-openai`."""

    def client(self, server: Server, key: str | None = None, **options: object) -> HuggingFaceEndpointEmbeddings:
        embeddings = HuggingFaceEndpointEmbeddings(model="any", **options)
        embeddings.client = InferenceClient(server.url, token=key)
        embeddings.async_client = AsyncInferenceClient(server.url, token=key)
        return embeddings

    def test_documents_and_queries(self, embedder):
        client = self.client(embedder)
        # The client replaces line breaks by spaces.
        assert not any("\n" in text for text in INPUTS)
        check(client.embed_documents(INPUTS))
        check([client.embed_query(INPUTS[4])], EXPECTED[4:5])
        prompted = self.client(embedder, model_kwargs={"prompt_name": "query"})
        check([prompted.embed_query(QUERY)], [QUERY_VECTOR])

    def test_asynchronously_with_a_key(self, keyed):
        check(asyncio.run(self.client(keyed, KEY).aembed_documents(INPUTS)))

    def test_openais_embeddings(self, keyed):
        client = OpenAIEmbeddings(base_url=f"{keyed.url}/v1", api_key=KEY, model="any", check_embedding_ctx_length=False)
        check(client.embed_documents(INPUTS * 10), EXPECTED * 10)
        check([client.embed_query(INPUTS[4])], EXPECTED[4:5])

    def test_openais_embeddings_with_its_defaults(self, embedder, served, monkeypatch):
        """It sends ids of OpenAI's vocabulary. litellm's wheel has a copy of that."""
        tokenizers = importlib.resources.files("litellm") / "litellm_core_utils/tokenizers"
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tokenizers))
        ids = tiktoken.get_encoding("cl100k_base").encode(INPUTS[0])
        bodies = []
        hooks = {"request": [lambda request: bodies.append(json.loads(request.read()))]}
        options = {"api_key": "-", "model": "any", "max_retries": 0, "http_client": httpx.Client(event_hooks=hooks)}
        client = OpenAIEmbeddings(base_url=f"{embedder.url}/v1", **options)
        for ask in (lambda: client.embed_query(INPUTS[0]), lambda: client.embed_documents(INPUTS[:1])):
            with pytest.raises(openai.UnprocessableEntityError, match="check_embedding_ctx_length=False"):
                ask()
        assert [body["input"] for body in bodies] == [[ids]] * 2
        # The server is told that they are this model's, which has far fewer tokens.
        server = served(MODEL, "--accept-openai-token-ids")
        with pytest.raises(openai.UnprocessableEntityError, match=f"token id {next(i for i in ids if i >= 1326)}.* below 1326"):
            OpenAIEmbeddings(base_url=f"{server.url}/v1", **options).embed_query(INPUTS[0])


@pytest.mark.parametrize(
    ("model", "path"), [("hosted_vllm/any", "/v1"), ("openai/any", "/v1"), ("infinity/any", ""), ("cohere/any", "/v2/embed")]
)
def test_litellms_embeddings(keyed, model, path):
    answer = litellm.embedding(model=model, input=INPUTS, api_base=keyed.url + path, api_key=KEY)
    check([row["embedding"] for row in answer.data])


def test_the_pinned_clients_are_the_newest():
    """Skipped with a list of newer versions: somebody's release must not make the tests fail. A version with
    a comment in requirements.txt is held back on purpose."""
    section = (ROOT / "integration_tests/requirements.txt").read_text().partition("# The clients that are tested")[2].partition("\n\n")[0]
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", section, re.MULTILINE))
    assert len(pinned) > 15
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--no-cache", "--no-deps", "--no-header", "--no-annotate", "-"]
    try:
        ended = subprocess.run(command, input="\n".join(pinned), capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer within 20 s: nobody knows whether the pinned clients are the newest")
    if ended.returncode != 0:
        pytest.skip(f"the package index cannot be asked for newer clients: {ended.stderr.strip()[-200:]}")
    newest = dict(line.split("==") for line in ended.stdout.split())
    newer = [f"{name} {newest[name]} (pinned: {version})" for name, version in pinned.items() if newest[name] != version]
    if newer:
        pytest.skip(f"there are newer versions of tested clients: {', '.join(newer)}; pin them in integration_tests/requirements.txt")
