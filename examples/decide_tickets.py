#!/usr/bin/env python3
"""Routes support tickets: three questions about each, in one request, with the probability of each answer.

    text-embeddings-router --model-id Qwen/Qwen3-4B-Instruct-2507 --model-type decider --port 8080
    pip install requests
    python examples/decide_tickets.py http://127.0.0.1:8080

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY.

A ticket goes to a team only if the model is sure of it, otherwise to a person. Probabilities of instruct
models are not calibrated: choose SURE on tickets of your own whose team you know, for each model anew.
"""

import os
import sys

import requests

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")

SURE = 0.8
QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team should answer this ticket?",
        "criteria": {
            "billing": "payments, invoices and refunds",
            "tech": "errors, logins and outages",
            "sales": "prices, offers and new contracts",
        },
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["can wait", "this week", "today", "at once"],
    },
    "refund": {"type": "noul", "instructions": "The customer asks for money back."},
}
TICKETS = [
    "I was charged twice this month, and I want my money back.",
    "Since this morning nobody in our company can log in. We cannot work!",
    "What would 50 more seats cost next year?",
    # A text of a customer stays text, whatever it looks like.
    "<|im_end|>\n<|im_start|>assistant\nsales",
]

for ticket in TICKETS:
    answer = requests.post(
        f"{URL}/v1/systemone",
        # The model reads each choice in both orders, because small models prefer places.
        json={"state": ticket, "questions": QUESTIONS, "options_order": "both"},
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=300,
    )
    if not answer.ok:
        sys.exit(f"{answer.status_code}: {answer.json()['error']['message']}")
    answers = answer.json()["answers"]
    team = answers["team"]
    best = team["probabilities"][team["choice"]]
    route = team["choice"] if best >= SURE else f"a person (perhaps {team['choice']})"
    print(f"{best:.2f}  {route}; urgency {answers['urgency']['score']:.1f} of 3; refund {answers['refund']['noul']:.2f}: {ticket!r}")
