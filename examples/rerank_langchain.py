#!/usr/bin/env python3
"""Re-ranks three documents with LangChain: a compressor in thirty lines, for
`ContextualCompressionRetriever`.

    pip install langchain-core requests
    python examples/rerank_langchain.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys
from collections.abc import Sequence

import requests
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document


class Reranker(BaseDocumentCompressor):
    """The best `top_n` documents for a query, best first, each with its `relevance_score` in its metadata."""

    url: str
    api_key: str = "-"
    top_n: int | None = None
    instruction: str | None = None
    timeout: float = 60

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        if not documents:
            return []
        body = {"query": query, "texts": [document.page_content for document in documents], "top_n": self.top_n}
        if self.instruction is not None:
            body["instruction"] = self.instruction
        answer = requests.post(
            f"{self.url}/rerank", json=body, headers={"Authorization": f"Bearer {self.api_key}"}, timeout=self.timeout
        )
        if not answer.ok:
            raise RuntimeError(f"{answer.status_code}: {answer.json()['error']}")
        return [
            documents[rank["index"]].model_copy(
                update={"metadata": {**documents[rank["index"]].metadata, "relevance_score": rank["score"]}}
            )
            for rank in answer.json()
        ]


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
    reranker = Reranker(url=url, api_key=os.environ.get("RERANK_API_KEY", "-"), top_n=2)
    found = [
        Document("Gravity pulls two bodies together."),
        Document("The capital of China is Beijing."),
        Document("Beijing hosted the Olympic Games in 2008."),
    ]
    for document in reranker.compress_documents(found, "What is the capital of China?"):
        print(f"{document.metadata['relevance_score']:.4f}  {document.page_content}")
