#!/usr/bin/env python3
"""Re-ranks three documents with `requests` alone.

    pip install requests
    python examples/rerank_requests.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys

import requests

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]

answer = requests.post(
    f"{URL}/rerank",
    json={"query": QUERY, "texts": DOCUMENTS, "top_n": 2},
    headers={"Authorization": f"Bearer {KEY}"},
    timeout=60,
)
if not answer.ok:
    sys.exit(f"{answer.status_code}: {answer.json()['error']}")
for rank in answer.json():
    print(f"{rank['score']:.4f}  {DOCUMENTS[rank['index']]}")
