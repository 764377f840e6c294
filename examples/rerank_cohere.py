#!/usr/bin/env python3
"""Re-ranks three documents with Cohere's own client.

    pip install cohere
    python examples/rerank_cohere.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys

import cohere

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]

client = cohere.ClientV2(api_key=KEY, base_url=URL)
answer = client.rerank(
    model="any",
    query=QUERY,
    documents=DOCUMENTS,
    top_n=2,
    # Cohere has no instructions. Its client sends unknown fields in this way.
    request_options={
        "additional_body_parameters": {"instruction": "Given a question, find the passage that states the answer"}
    },
)
for rank in answer.results:
    print(f"{rank.relevance_score:.4f}  {DOCUMENTS[rank.index]}")
