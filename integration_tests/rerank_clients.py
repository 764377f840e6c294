"""Re-rank clients of other projects behind one call, so that the same tests run on each of them.

Input: a `Question`. Output: `CLIENTS`, by the name of each in docs/clients.md: its package, what it can send,
the error that it raises, and `ask`, which gives `Rank`s in the client's order. Invariants: every client is
used as its own documentation says, with nothing but the server's address and key; no client retries, so that
the requests can be counted. An instruction is passed in the client's option for extra fields, if it has one.
"""

import asyncio
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cohere
import httpx
import infinity_client
import infinity_client.errors
import litellm
import openai
from cohere.core.api_error import ApiError
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from haystack_integrations.components.rankers.vllm import VLLMRanker
from infinity_client.api.default import rerank as infinity
from infinity_client.models import HTTPValidationError, RerankInput
from langchain_cohere import CohereRerank
from langchain_core.documents import Document as LangChainDocument
from langchain_nvidia_ai_endpoints import NVIDIARerank
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.nvidia_rerank import NVIDIARerank as NVIDIAPostprocessor
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
from rerankers import Reranker

KEY = "k3y-of-the-server"
MODEL = "any-name"


@dataclass(frozen=True)
class Question:
    """A re-rank request. With `echo`, the answer must contain the documents."""

    url: str
    query: str
    texts: Sequence[str]
    instruction: str | None = None
    top_n: int | None = None
    echo: bool = False
    key: str = KEY


@dataclass(frozen=True)
class Rank:
    """One result as the client gives it. `text` comes from the answer, not from the client's own copy."""

    index: int
    score: float
    text: str | None = None


@dataclass(frozen=True)
class Client:
    """`says`: which of instruction, top_n and echo the client can send. `error`: the exception that it raises
    for an error status (litellm raises openai's errors). `readable`: whether the exception contains the
    server's sentence. `reaches`: another host that the client contacts; it works without it."""

    package: str
    ask: Callable[[Question], list[Rank]]
    says: frozenset[str]
    error: type[Exception]
    readable: bool = True
    reaches: str | None = None


def _body_fields(question: Question) -> dict:
    return {} if question.instruction is None else {"instruction": question.instruction}


def _cohere_options(question: Question) -> dict:
    return {"max_retries": 0, "additional_body_parameters": _body_fields(question)}


def _cohere_ranks(answer) -> list[Rank]:
    documents = [getattr(row, "document", None) for row in answer.results]
    return [
        Rank(row.index, row.relevance_score, document and document.text)
        for row, document in zip(answer.results, documents, strict=True)
    ]


def cohere_v2(question: Question) -> list[Rank]:
    client = cohere.ClientV2(api_key=question.key, base_url=question.url)
    given = {} if question.top_n is None else {"top_n": question.top_n}
    options = _cohere_options(question)
    return _cohere_ranks(
        client.rerank(model=MODEL, query=question.query, documents=question.texts, request_options=options, **given)
    )


def cohere_v2_async(question: Question) -> list[Rank]:
    async def ask():
        client = cohere.AsyncClientV2(api_key=question.key, base_url=question.url)
        given = {} if question.top_n is None else {"top_n": question.top_n}
        options = _cohere_options(question)
        return await client.rerank(
            model=MODEL, query=question.query, documents=question.texts, request_options=options, **given
        )

    return _cohere_ranks(asyncio.run(ask()))


def cohere_v1(question: Question) -> list[Rank]:
    client = cohere.Client(api_key=question.key, base_url=question.url)
    given = {} if question.top_n is None else {"top_n": question.top_n}
    return _cohere_ranks(
        client.rerank(
            model=MODEL,
            query=question.query,
            # As objects, which only version 1 accepts.
            documents=[{"text": text} for text in question.texts],
            return_documents=question.echo,
            request_options=_cohere_options(question),
            **given,
        )
    )


def to_probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def of_litellm(
    provider: str, path: str = "", always_top_n: bool = False, score: Callable[[float], float] = float
) -> Callable[[Question], list[Rank]]:
    """`litellm.rerank` for a provider whose address can be set. With `always_top_n`, a request for all
    documents sends their number as `top_n`. `score` makes a probability of the client's score."""

    def ask(question: Question) -> list[Rank]:
        answer = litellm.rerank(
            model=f"{provider}/{MODEL}",
            query=question.query,
            documents=list(question.texts),
            top_n=question.top_n or (len(question.texts) if always_top_n else None),
            return_documents=question.echo,
            api_base=question.url + path,
            api_key=question.key,
            max_retries=0,
            **_body_fields(question),
        )
        texts = [row.get("document", {}).get("text") for row in answer.results]
        return [
            Rank(row["index"], score(row["relevance_score"]), text) for row, text in zip(answer.results, texts, strict=True)
        ]

    return ask


def of_rerankers(provider: str, path: str) -> Callable[[Question], list[Rank]]:
    """The API client of `rerankers`. It requests all documents, and keeps its own texts."""

    def ask(question: Question) -> list[Rank]:
        address = {"api_provider": provider, "api_key": question.key, "url": question.url + path}
        ranker = Reranker(MODEL, model_type="APIRanker", **address, verbose=0)
        answer = ranker.rank(question.query, list(question.texts))
        return [Rank(row.document.doc_id, row.score) for row in answer.results]

    return ask


def _llama_index_ranks(client: BaseNodePostprocessor, question: Question) -> list[Rank]:
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(index))) for index, text in enumerate(question.texts)]
    answer = client.postprocess_nodes(nodes, QueryBundle(question.query))
    return [Rank(int(row.node.node_id), row.score) for row in answer]


def llama_index(question: Question) -> list[Rank]:
    top_n = question.top_n or len(question.texts)
    client = TextEmbeddingInference(base_url=question.url, top_n=top_n, auth_token=f"Bearer {question.key}")
    return _llama_index_ranks(client, question)


def llama_index_nvidia(question: Question) -> list[Rank]:
    top_n = question.top_n or len(question.texts)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # Which model it found.
        client = NVIDIAPostprocessor(base_url=f"{question.url}/v1", api_key=question.key, top_n=top_n)
    return [Rank(rank.index, to_probability(rank.score)) for rank in _llama_index_ranks(client, question)]


def _documents(question: Question) -> list[Document]:
    return [Document(id=str(index), content=text) for index, text in enumerate(question.texts)]


def _haystack_ranks(answer: dict) -> list[Rank]:
    return [Rank(int(document.id), document.score) for document in answer["documents"]]


def haystack_tei(question: Question) -> list[Rank]:
    top_k = question.top_n or len(question.texts)
    ranker = HuggingFaceTEIRanker(url=question.url, top_k=top_k, token=Secret.from_token(question.key), max_retries=1)
    return _haystack_ranks(ranker.run(query=question.query, documents=_documents(question)))


def haystack_jina(question: Question) -> list[Rank]:
    ranker = JinaRanker(base_url=f"{question.url}/v1/rerank", model=MODEL, api_key=Secret.from_token(question.key))
    return _haystack_ranks(ranker.run(query=question.query, documents=_documents(question), top_k=question.top_n))


def haystack_vllm(question: Question) -> list[Rank]:
    ranker = VLLMRanker(
        api_base_url=f"{question.url}/v1",
        model=MODEL,
        api_key=Secret.from_token(question.key),
        extra_parameters=_body_fields(question),
    )
    return _haystack_ranks(ranker.run(query=question.query, documents=_documents(question), top_k=question.top_n))


def haystack_cohere(question: Question) -> list[Rank]:
    ranker = CohereRanker(api_base_url=question.url, model=MODEL, api_key=Secret.from_token(question.key))
    top_k = question.top_n or len(question.texts)
    return _haystack_ranks(ranker.run(query=question.query, documents=_documents(question), top_k=top_k))


def langchain_cohere(question: Question) -> list[Rank]:
    ranker = CohereRerank(base_url=question.url, cohere_api_key=question.key, model=MODEL)
    answer = ranker.rerank(question.texts, question.query, top_n=question.top_n)
    return [Rank(row["index"], row["relevance_score"]) for row in answer]


def langchain_nvidia(question: Question) -> list[Rank]:
    top_n = question.top_n or len(question.texts)
    ranker = NVIDIARerank(base_url=question.url, api_key=question.key, model=MODEL, top_n=top_n)
    documents = [LangChainDocument(text, metadata={"index": index}) for index, text in enumerate(question.texts)]
    answer = [row.metadata for row in ranker.compress_documents(documents, question.query)]
    return [Rank(row["index"], to_probability(row["relevance_score"])) for row in answer]


def of_infinity(question: Question) -> list[Rank]:
    client = infinity_client.AuthenticatedClient(base_url=question.url, token=question.key, raise_on_unexpected_status=True)
    body = RerankInput(query=question.query, documents=list(question.texts), model=MODEL, return_documents=question.echo)
    body.additional_properties = _body_fields(question)
    if question.top_n is not None:
        body.top_n = question.top_n
    answer = infinity.sync(client=client, body=body)
    if isinstance(answer, HTTPValidationError):
        # The only error that this client returns instead of raising it.
        raise infinity_client.errors.UnexpectedStatus(422, str(answer.additional_properties).encode())
    return [Rank(row.index, row.relevance_score, row.document or None) for row in answer.results]


def _says(*names: str) -> frozenset[str]:
    return frozenset(names)


ALL = _says("instruction", "top_n", "echo")
CLIENTS = {
    "cohere.ClientV2": Client("cohere", cohere_v2, _says("instruction", "top_n"), ApiError),
    "cohere.AsyncClientV2": Client("cohere", cohere_v2_async, _says("instruction", "top_n"), ApiError),
    "cohere.Client": Client("cohere", cohere_v1, ALL, ApiError),
    "litellm hosted_vllm": Client("litellm", of_litellm("hosted_vllm"), ALL, openai.APIError),
    # This provider looks up the model's name on the Hub to compute the price of the call.
    "litellm huggingface": Client(
        "litellm", of_litellm("huggingface"), _says("top_n", "echo"), openai.APIError, reaches="huggingface.co"
    ),
    "litellm cohere": Client("litellm", of_litellm("cohere"), _says("top_n"), openai.APIError),
    "litellm cohere v1": Client("litellm", of_litellm("cohere", "/v1/rerank"), _says("top_n", "echo"), openai.APIError),
    "litellm jina_ai": Client("litellm", of_litellm("jina_ai"), _says("top_n", "echo"), openai.APIError),
    "litellm voyage": Client("litellm", of_litellm("voyage", always_top_n=True), _says("top_n", "echo"), openai.APIError),
    "litellm infinity": Client("litellm", of_litellm("infinity"), _says("top_n"), openai.APIError),
    "litellm nvidia_nim": Client(
        "litellm", of_litellm("nvidia_nim/ranking", score=to_probability), _says("top_n"), openai.APIError
    ),
    "rerankers text-embeddings-inference": Client(
        "rerankers", of_rerankers("text-embeddings-inference", "/rerank"), _says(), TypeError, readable=False
    ),
    "rerankers cohere": Client("rerankers", of_rerankers("cohere", "/v1/rerank"), _says(), KeyError, readable=False),
    "rerankers jina": Client("rerankers", of_rerankers("jina", "/v1/rerank"), _says(), KeyError, readable=False),
    "rerankers voyage": Client("rerankers", of_rerankers("voyage", "/v1/rerank"), _says(), KeyError, readable=False),
    "rerankers mixedbread.ai": Client(
        "rerankers", of_rerankers("mixedbread.ai", "/v1/reranking"), _says(), KeyError, readable=False
    ),
    "llama-index TEI": Client(
        "llama-index-postprocessor-tei-rerank", llama_index, _says("top_n"), AssertionError, readable=False
    ),
    "llama-index NVIDIA": Client(
        "llama-index-postprocessor-nvidia-rerank", llama_index_nvidia, _says("top_n"), httpx.HTTPStatusError, readable=False
    ),
    "haystack TEI": Client("huggingface-api-haystack", haystack_tei, _says("top_n"), RuntimeError),
    "haystack Jina": Client("jina-haystack", haystack_jina, _says("top_n"), RuntimeError),
    "haystack vLLM": Client("vllm-haystack", haystack_vllm, _says("instruction", "top_n"), RuntimeError),
    "haystack Cohere": Client("cohere-haystack", haystack_cohere, _says("top_n"), ApiError),
    "langchain Cohere": Client("langchain-cohere", langchain_cohere, _says("top_n"), ApiError),
    "langchain NVIDIA": Client("langchain-nvidia-ai-endpoints", langchain_nvidia, _says("top_n"), Exception),
    "infinity-client": Client(
        "infinity-client", of_infinity, _says("instruction", "top_n"), infinity_client.errors.UnexpectedStatus
    ),
}
