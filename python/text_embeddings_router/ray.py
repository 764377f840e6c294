"""Large datasets with Ray Data, and a deployment for Ray Serve: `pip install text-embeddings-router[ray]`.

    import ray
    from text_embeddings_router.ray import rerank_dataset

    pairs = ray.data.read_parquet("pairs/")
    rerank_dataset(pairs, "BAAI/bge-reranker-v2-m3", replicas=4, cpus=8).write_parquet("scores/")

Each replica is an actor with one server process, which ends with the actor. Invariants: every row comes out
once, even if actors or nodes are lost, because Ray computes lost blocks again and answers have no side
effects; a row that cannot be computed raises an error that shows the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import pyarrow as pa
import ray.data
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from ._client import Client
from ._errors import ServerUnreachableError, UnhealthyError
from ._protocol import ClientSettings
from ._server import FlagValue, Server

R = TypeVar("R")

# Rows that an actor gets at a time; they are computed again if the actor is lost. Requests are cut from them
# by tokens. Ray's own blocks have 128 MB, which would be hours of work for one actor while others are idle.
ROWS = 512
# Requests of a batch in flight. The server forms batches from waiting requests, so some must wait.
IN_FLIGHT = 4
# The largest number of texts in a request. The server is started with this limit.
MOST_TEXTS = 1000
# Tokens of most tokenizers have 3 to 5 bytes in European languages and about 3 in CJK. Only the size of
# requests depends
# on it.
BYTES_PER_TOKEN = 4
# Seconds in which the process must end after its connections have broken off.
END_LIMIT = 5.0
# Characters of a text that an error shows.
SHOWN = 80
# So large that the server truncates long texts instead of refusing the body.
PAYLOAD_LIMIT = 64_000_000
# A single request of a dataset may take long: on a CPU, it waits behind the others of its actor.
PATIENT: ClientSettings = {"timeout": 3600.0, "attempts": 100, "longest_pause": 600.0}
# Headers that belong to a connection, not to a message.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "host", "content-length"}


def rerank_dataset(
    dataset: ray.data.Dataset,
    model_id: str,
    *,
    query_column: str = "query",
    text_column: str = "text",
    score_column: str = "score",
    raw_scores: bool = False,
    replicas: int | tuple[int, int] = 1,
    cpus: float = 2,
    gpus: float = 0,
    tokens_per_request: int = 16_384,
    **flags: FlagValue,
) -> ray.data.Dataset:
    """The dataset with `score_column` (float32) added: the score of each row's query and text.

    `replicas` is the number of actors, or the least and the greatest number; each takes `cpus` and `gpus` of
    the cluster. A request has about `tokens_per_request` tokens. `flags` are the server's flags.
    """
    settings = _Settings(model_id, cpus, tokens_per_request, dict(flags))
    columns = {"query_column": query_column, "text_column": text_column, "score_column": score_column}
    return _mapped(dataset, _Reranker, settings, replicas, gpus, {**columns, "raw_scores": raw_scores})


def embed_dataset(
    dataset: ray.data.Dataset,
    model_id: str,
    *,
    text_column: str = "text",
    vector_column: str = "vector",
    normalize: bool = True,
    prompt_name: str | None = None,
    replicas: int | tuple[int, int] = 1,
    cpus: float = 2,
    gpus: float = 0,
    tokens_per_request: int = 16_384,
    **flags: FlagValue,
) -> ray.data.Dataset:
    """The dataset with `vector_column` (a list of float32) added: the vector of each row's text. Other
    arguments are as in `rerank_dataset`."""
    settings = _Settings(model_id, cpus, tokens_per_request, dict(flags))
    options = {"text_column": text_column, "vector_column": vector_column, "normalize": normalize, "prompt_name": prompt_name}
    return _mapped(dataset, _Embedder, settings, replicas, gpus, options)


def deployment(
    model_id: str,
    *,
    replicas: tuple[int, int] = (1, 4),
    ongoing_requests: float = 8,
    cpus: float = 2,
    gpus: float = 0,
    name: str = "text-embeddings-router",
    **flags: FlagValue,
) -> serve.Application:
    """An application for Ray Serve with all routes of the server:
    `serve.run(deployment("BAAI/bge-reranker-v2-m3"))`.

    A models file gives each replica several models: `deployment("models.toml")` with an embedding model and a
    re-ranker answers `/embed` and `/rerank`. Every node needs the file under this path.

    The number of replicas changes between `replicas[0]` and `replicas[1]`, so that each replica has about
    `ongoing_requests` requests waiting or being computed. A replica accepts at most four times as many;
    further requests wait in Ray Serve.
    """
    decorated = serve.deployment(
        name=name,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=max(1, int(ongoing_requests * 4)),
        autoscaling_config={
            "min_replicas": replicas[0],
            "max_replicas": replicas[1],
            "target_ongoing_requests": ongoing_requests,
        },
    )(_Replica)
    return decorated.bind(model_id, cpus, dict(flags))


@dataclass
class _Settings:
    """The settings with which an actor starts its server."""

    model_id: str
    cpus: float
    tokens_per_request: int
    flags: dict[str, FlagValue] = field(default_factory=dict)

    def server(self) -> Server:
        own: dict[str, FlagValue] = {"max_client_batch_size": MOST_TEXTS, "payload_limit": PAYLOAD_LIMIT}
        return Server(self.model_id, client=PATIENT, **_with_threads({**own, **self.flags}, self.cpus))


def _with_threads(flags: dict[str, FlagValue], cpus: float) -> dict[str, Any]:
    """Adds one thread per CPU of the actor to the flags, because several actors share a machine."""
    return {"threads": max(1, int(cpus)), "tokenization_workers": max(1, int(cpus)), **flags}


def _mapped(
    dataset: ray.data.Dataset,
    actor: type[_Actor],
    settings: _Settings,
    replicas: int | tuple[int, int],
    gpus: float,
    options: dict[str, object],
) -> ray.data.Dataset:
    return dataset.repartition(target_num_rows_per_block=ROWS).map_batches(
        actor,
        fn_constructor_kwargs={"settings": settings, **options},
        batch_format="pyarrow",
        batch_size=ROWS,
        compute=_pool(replicas),
        num_cpus=settings.cpus,
        num_gpus=gpus,
    )


def _pool(replicas: int | tuple[int, int]) -> ray.data.ActorPoolStrategy:
    if isinstance(replicas, tuple):
        return ray.data.ActorPoolStrategy(min_size=replicas[0], max_size=replicas[1])
    return ray.data.ActorPoolStrategy(size=replicas)


class _Actor:
    """A server and its client, in a process of Ray."""

    def __init__(self, settings: _Settings):
        self._settings = settings
        self._start()

    def _start(self) -> None:
        self._server = self._settings.server().start()
        self._client = self._server.client()

    def _in_requests(self, items: Sequence[R], sizes: Iterable[int], ask: Callable[[Client, list[R]], list[Any]]) -> list[Any]:
        """The results of `ask` for all items, in their order. Requests have about the same number of tokens;
        `sizes` are in bytes."""
        requests = list(_cut(items, sizes, self._settings.tokens_per_request * BYTES_PER_TOKEN))

        def ask_all() -> list[Any]:
            with ThreadPoolExecutor(IN_FLIGHT) as pool:
                answers = pool.map(lambda request: ask(self._client, request), requests)
                return [result for answer in answers for result in answer]

        try:
            return ask_all()
        except ServerUnreachableError:
            # A connection may break off a moment before the process ends.
            if self._server.wait(END_LIMIT) is None:
                raise
        # The process has ended, for lack of memory for example. Try once more with a new process. A batch
        # that ends that one as well is an error.
        self._server.stop()
        self._start()
        return ask_all()


class _Reranker(_Actor):
    def __init__(self, settings: _Settings, query_column: str, text_column: str, score_column: str, raw_scores: bool):
        self._names = (query_column, text_column)
        self._score_column = score_column
        self._raw_scores = raw_scores
        super().__init__(settings)

    def __call__(self, table: pa.Table) -> pa.Table:
        _check_free(table, self._score_column)
        queries, texts = (_texts(table, name) for name in self._names)
        # Equal queries go next to each other, so that their common beginning is computed once.
        order = sorted(range(len(queries)), key=queries.__getitem__)
        pairs = [(queries[at], texts[at]) for at in order]

        def ask(client: Client, request: list[tuple[str, str]]) -> list[float]:
            return client.score(*(list(column) for column in zip(*request, strict=True)), raw_scores=self._raw_scores)

        in_order = self._in_requests(pairs, (_bytes(query) + _bytes(text) for query, text in pairs), ask)
        scores: list[float] = [0.0] * len(order)
        for at, score in zip(order, in_order, strict=True):
            scores[at] = score
        return table.append_column(self._score_column, pa.array(scores, pa.float32()))


class _Embedder(_Actor):
    def __init__(
        self, settings: _Settings, text_column: str, vector_column: str, normalize: bool, prompt_name: str | None
    ):
        self._text_column, self._vector_column = text_column, vector_column
        self._normalize, self._prompt_name = normalize, prompt_name
        super().__init__(settings)

    def __call__(self, table: pa.Table) -> pa.Table:
        _check_free(table, self._vector_column)
        texts = _texts(table, self._text_column)

        def ask(client: Client, request: list[str]) -> list[list[float]]:
            return client.embed(request, normalize=self._normalize, prompt_name=self._prompt_name)

        vectors = self._in_requests(texts, map(_bytes, texts), ask)
        return table.append_column(self._vector_column, pa.array(vectors, pa.list_(pa.float32())))


class _Replica:
    """A replica of Ray Serve, which forwards each request unchanged to its server."""

    def __init__(self, model_id: str, cpus: float, flags: dict[str, FlagValue]):
        self._server = Server(model_id, **_with_threads(flags, cpus)).start()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(base_url=self._server.url, timeout=None, limits=limits)

    async def __call__(self, request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        address = httpx.URL(path=request.scope["path"], query=request.scope["query_string"])
        answer = await self._http.request(request.method, address, headers=headers, content=await request.body())
        kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)

    async def check_health(self) -> None:
        """Ray Serve replaces a replica for which this raises."""
        answer = await self._http.get("/health", timeout=30)
        if answer.status_code != httpx.codes.OK:
            raise UnhealthyError(answer.status_code, "Unhealthy", answer.text)

    def __del__(self) -> None:
        # Without the attribute, the start has failed.
        if server := getattr(self, "_server", None):
            server.stop()


def _check_free(table: pa.Table, column: str) -> None:
    if column in table.column_names:
        raise ValueError(f"there is a column `{column}` already: give the results another name")


def _texts(table: pa.Table, column: str) -> list[str]:
    """The texts of a column. A row without text raises an error that shows the row."""
    if column not in table.column_names:
        raise ValueError(f"there is no column `{column}`, but {', '.join(f'`{name}`' for name in table.column_names)}")
    texts: list[Any] = table.column(column).to_pylist()
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            row = {name: str(value)[:SHOWN] for name, value in table.slice(at, 1).to_pylist()[0].items()}
            raise ValueError(f"a row has no text in the column `{column}`, but {type(text).__name__}: {row}. Remove such rows first")
    return texts


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _cut(items: Sequence[R], sizes: Iterable[int], most_bytes: int) -> Iterable[list[R]]:
    """Cuts items into requests of at most `MOST_TEXTS` items and `most_bytes` bytes; a larger item is a
    request of its own."""
    request: list[R] = []
    held = 0
    for item, size in zip(items, sizes, strict=True):
        if request and (held + size > most_bytes or len(request) == MOST_TEXTS):
            yield request
            request, held = [], 0
        request.append(item)
        held += size
    if request:
        yield request
