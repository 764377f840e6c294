#!/usr/bin/env bash
# Re-ranks three documents with curl: first in TEI's format, then in Cohere's and Jina's.
#
#   examples/rerank.sh http://127.0.0.1:8080
#
# The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.
set -euo pipefail

url=${1:-${RERANK_URL:-http://127.0.0.1:8080}}

post() {
    curl --silent --show-error --fail-with-body --max-time 60 "$url$1" \
        --header 'Content-Type: application/json' \
        --header "Authorization: Bearer ${RERANK_API_KEY:-}" \
        --data-binary @-
    echo
}

post /rerank <<'JSON'
{
  "query": "What is the capital of China?",
  "texts": ["Gravity pulls two bodies together.", "The capital of China is Beijing.", "Beijing hosted the Olympic Games in 2008."],
  "return_text": true
}
JSON

post /v1/rerank <<'JSON'
{
  "model": "any",
  "query": "What is the capital of China?",
  "documents": ["Gravity pulls two bodies together.", "The capital of China is Beijing.", "Beijing hosted the Olympic Games in 2008."],
  "instruction": "Given a question, find the passage that states the answer",
  "top_n": 2,
  "return_documents": true
}
JSON
