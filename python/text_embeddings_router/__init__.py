"""A server for embedding, re-ranking and classification models, and a client for it.

    import text_embeddings_router

    with text_embeddings_router.serve("demo") as client:
        for rank in client.rerank("red planet", ["Bread is baked.", "Mars is red."]):
            print(rank.index, rank.score)

`serve` starts the server inside this package; `Client` and `AsyncClient` use a server that is already
running.
"""

from ._binary import find_binary
from ._client import AsyncClient, Client
from ._errors import (
    AnswerTimeoutError,
    BackendError,
    BinaryNotFoundError,
    EmptyInputError,
    FlagError,
    OverloadedError,
    RequestError,
    ServerStartError,
    ServerUnreachableError,
    TextEmbeddingsError,
    TokenizationError,
    UnauthorizedError,
    UnhealthyError,
    ValidationError,
)
from ._protocol import ClientSettings, Passage, Prediction, Rank
from ._server import Server, serve

__all__ = [
    "AnswerTimeoutError",
    "AsyncClient",
    "BackendError",
    "BinaryNotFoundError",
    "Client",
    "ClientSettings",
    "EmptyInputError",
    "FlagError",
    "OverloadedError",
    "Passage",
    "Prediction",
    "Rank",
    "RequestError",
    "Server",
    "ServerStartError",
    "ServerUnreachableError",
    "TextEmbeddingsError",
    "TokenizationError",
    "UnauthorizedError",
    "UnhealthyError",
    "ValidationError",
    "find_binary",
    "serve",
]
