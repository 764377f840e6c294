"""A server as the models that PyPI's `mteb` evaluates: an encoder, and a cross-encoder.

Input: a client, and how its model is asked. Output: what mteb's `EncoderProtocol` and `CrossEncoderProtocol`
ask for. mteb is not a requirement of this package: it calls these classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import Client
from .systems import Asking, System

if TYPE_CHECKING:
    from mteb.models.model_meta import ModelMeta


def _texts(batches: Iterable[dict[str, Any]]) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


class _ServedModel:
    def __init__(self, client: Client, asking: Asking = Asking()):
        self._client, self._asking = client, asking
        self._info = client.info()

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The server's model and its revision. mteb's results have this name."""
        from mteb.models.model_meta import ModelMeta

        # Names have an owner: mteb divides them at the slash.
        name = "/".join(["local", *self._info["model_id"].strip("/").split("/")][-2:])
        known = {"name": name, "revision": self._info.get("model_sha"), "max_tokens": self._info["max_input_length"]}
        return ModelMeta.create_empty(known)


class MtebEncoder(_ServedModel):
    """An embedding model."""

    def encode(self, inputs: Iterable[dict[str, Any]], *, prompt_type: str | None = None, **_: Any) -> Any:
        """A float32 array with a row of length 1 for each text."""
        prefix = {"query": self._asking.query_prefix, "document": self._asking.document_prefix}.get(prompt_type or "", "")
        return self._client.embed_array([prefix + text for text in _texts(inputs)], truncate=True)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosine of each row of the first array with each of the second."""
        return np.atleast_2d(embeddings1) @ np.atleast_2d(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The cosine of each row with the row at the same place."""
        return (np.asarray(embeddings1) * np.asarray(embeddings2)).sum(axis=-1)


class MtebCrossEncoder(_ServedModel):
    """A re-ranker; also an embedding model by its cosines, or a classifier with `Asking(pair=…, label=…)`."""

    def predict(self, inputs1: Iterable[dict[str, Any]], inputs2: Iterable[dict[str, Any]], **_: Any) -> Any:
        """The raw score of each query with the document at the same place."""
        system = System("", self._client, self._asking)
        pairs = zip(_texts(inputs1), _texts(inputs2), strict=True)
        # The documents of a query are one request, so that its prompt is computed once.
        grouped = ((query, [document for _, document in group]) for query, group in groupby(pairs, key=itemgetter(0)))
        return np.array([score for query, documents in grouped for score in system.scores(query, documents)], np.float32)
