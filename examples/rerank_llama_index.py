#!/usr/bin/env python3
"""Re-ranks three nodes with LlamaIndex: a postprocessor for `as_query_engine(node_postprocessors=[...])`.

    pip install llama-index-postprocessor-tei-rerank
    python examples/rerank_llama_index.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
"""

import os
import sys

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

QUERY = "What is the capital of China?"
DOCUMENTS = [
    "Gravity pulls two bodies together.",
    "The capital of China is Beijing.",
    "Beijing hosted the Olympic Games in 2008.",
]

reranker = TextEmbeddingInference(base_url=URL, top_n=2, auth_token=f"Bearer {KEY}")
nodes = [NodeWithScore(node=TextNode(text=text)) for text in DOCUMENTS]
for row in reranker.postprocess_nodes(nodes, query_str=QUERY):
    print(f"{row.score:.4f}  {row.node.get_content()}")
