#!/usr/bin/env python3
"""Measures how often a model decides rightly, on questions of SQuAD 2.0, which people wrote and answered.

    text-embeddings-router --model-id model.gguf --model-type decider --port 8080
    pip install requests
    python examples/decide_squad.py http://127.0.0.1:8080 squad.json

The address may also be given in RERANK_URL, and the key of a server with --api-key in RERANK_API_KEY; then
the file is the only argument.

Input: a file of SQuAD 2.0 (`dev-v2.0.json`). Each state is a paragraph, with up to five questions of each
kind:

- choice: the right answer among four, the others being answers to other questions about the same paragraph;
- yes or no: whether the paragraph answers a question. Half of the questions are unanswerable.

Output: the share of right decisions for 100 questions of each kind, next to guessing.
"""

import json
import os
import random
import sys

import requests

*ADDRESS, FILE = sys.argv[1:] or sys.exit("Give the file of questions.")
URL = ADDRESS[0] if ADDRESS else os.environ.get("RERANK_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("RERANK_API_KEY", "-")
COUNT, PER_STATE, OPTIONS = 100, 5, 4


def choice(question: dict, others: list[str], generator: random.Random) -> tuple[dict, str] | None:
    """A question with its right answer among others that share no word with it; and the right answer."""
    right = {answer["text"] for answer in question["answers"]}
    words = {word for text in right for word in text.lower().split()}
    wrong = sorted({text for text in others if not words & set(text.lower().split())})
    if question["is_impossible"] or len(wrong) < OPTIONS - 1:
        return None
    first = question["answers"][0]["text"]
    options = [first, *generator.sample(wrong, OPTIONS - 1)]
    generator.shuffle(options)
    return {"type": "choice", "instructions": question["question"], "criteria": dict.fromkeys(options)}, first


def yes_or_no(question: dict) -> tuple[dict, bool]:
    """Whether the paragraph answers a question; and the truth."""
    text = f"The text answers this question: {question['question']}"
    return {"type": "noul", "instructions": text}, not question["is_impossible"]


def decide(state: str, asked: list[tuple[dict, object]], order: str) -> list[tuple[object, object]]:
    """The model's decision about each question, and the right one."""
    body = {"state": state, "questions": {str(index): question for index, (question, _) in enumerate(asked)}, "options_order": order}
    answer = requests.post(f"{URL}/v1/systemone", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=600)
    if not answer.ok:
        sys.exit(f"{answer.status_code}: {answer.json()['error']['message']}")
    answers = answer.json()["answers"].values()
    found = [it["choice"] if it["type"] == "choice" else it["noul"] for it in answers]
    return [(one, truth) for one, (_, truth) in zip(found, asked, strict=True)]


def main() -> None:
    """Measures both kinds."""
    with open(FILE, encoding="utf-8") as file:
        paragraphs = [paragraph for article in json.load(file)["data"] for paragraph in article["paragraphs"]]
    generator = random.Random(1)
    generator.shuffle(paragraphs)
    choices = {"given": [], "both": []}
    judged = []
    for paragraph in paragraphs:
        questions = generator.sample(paragraph["qas"], len(paragraph["qas"]))
        texts = [answer["text"] for question in questions for answer in question["answers"]]
        asked = [found for question in questions if (found := choice(question, texts, generator))]
        asked = asked[: min(PER_STATE, COUNT - len(choices["given"]))]
        if asked:
            for order, results in choices.items():
                results += decide(paragraph["context"], asked, order)
        # As many questions with an answer as without one.
        kinds = [[question for question in questions if question["is_impossible"] == kind] for kind in (True, False)]
        pairs = list(zip(*kinds, strict=False))[: min(PER_STATE // 2, (COUNT - len(judged)) // 2)]
        asked = [yes_or_no(question) for pair in pairs for question in pair]
        if asked:
            judged += decide(paragraph["context"], asked, "given")
    for order, results in choices.items():
        right = sum(found == truth for found, truth in results)
        print(f"choice of {OPTIONS}, order {order}: {right} of {len(results)} right (guessing: {len(results) / OPTIONS:.0f})")
    right = sum((found > 0.5) == truth for found, truth in judged)
    yes = sum(found > 0.5 for found, _ in judged)
    print(f"yes or no: {right} of {len(judged)} right (guessing: {len(judged) / 2:.0f}); {yes} times yes")
    pairs = [(yes, no) for yes, truth in judged if truth for no, has_answer in judged if not has_answer]
    ordered = sum((yes > no) + (yes == no) / 2 for yes, no in pairs) / max(len(pairs), 1)
    print(f"yes or no: an answerable question gets the higher probability in {ordered:.2f} of pairs (guessing: 0.50)")


if __name__ == "__main__":
    main()
