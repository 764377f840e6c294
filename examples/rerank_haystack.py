#!/usr/bin/env python3
"""Re-ranks three documents in a Haystack pipeline.

    pip install huggingface-api-haystack
    python examples/rerank_haystack.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys

# By default, Haystack sends usage data to its makers.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")

from haystack import Document, Pipeline
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]

pipeline = Pipeline()
pipeline.add_component("ranker", HuggingFaceTEIRanker(url=URL, top_k=2, token=Secret.from_token(KEY)))
documents = [Document(content=text) for text in DOCUMENTS]
answer = pipeline.run({"ranker": {"query": QUERY, "documents": documents}})
for document in answer["ranker"]["documents"]:
    print(f"{document.score:.4f}  {document.content}")
