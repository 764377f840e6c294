#!/usr/bin/env python3
"""Re-ranks three documents with LiteLLM, which treats this server as a vLLM server.

    pip install litellm
    python examples/rerank_litellm.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys

# Otherwise LiteLLM downloads a list of prices when it is imported.
os.environ.setdefault("LITELLM_OFFLINE_MODE", "true")

import litellm

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]

answer = litellm.rerank(
    model="hosted_vllm/any",
    api_base=URL,
    api_key=KEY,
    query=QUERY,
    documents=DOCUMENTS,
    top_n=2,
    instruction="Given a question, find the passage that states the answer",
)
for rank in answer.results:
    print(f"{rank['relevance_score']:.4f}  {DOCUMENTS[rank['index']]}")
