#!/usr/bin/env python3
"""Measures a cascade on judged questions: quality and time of the first model, the second one, and both.

Input: the binary, two re-rankers or embedding models, and questions as `text-embeddings-router-eval` reads
them. Output: a Markdown table. The three are asked in turn for each question, in one process, so that a
machine whose speed changes does so for all. Times are medians: until the answer, and of the processors, which
other programs change less. Needs the packages of the extra `eval`. Linux only.

    python3 benches/cascade.py BINARY demo MODEL QUESTIONS --keep 4 --count 60 --threads 1"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

from systems import Server, commit, cpu_seconds, machine  # noqa: E402
from text_embeddings_router.evaluation.evaluate import incoming, interval, values  # noqa: E402
from text_embeddings_router.evaluation.questions import Questions, read  # noqa: E402

MEASURE = "nDCG@10"
MODELS_FILE = """
[models.first]
model-id = {first}
[models.then]
model-id = {then}
[cascade.both]
first = "first"
then = "then"
keep = {keep}
"""
NAMES = ("first", "then", "both")


def ranked(server: Server, model: str, query: str, texts: list[str]) -> tuple[list[int], tuple[float, float]]:
    """The order of the texts, seconds, and seconds of the processors."""
    body = json.dumps({"model": model, "query": query, "texts": texts, "truncate": True}).encode()
    used, start = cpu_seconds(server.process.pid), time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}/rerank", body, {"Content-Type": "application/json"})) as answer:
        ranks = json.load(answer)
    return [rank["index"] for rank in ranks], (time.perf_counter() - start, cpu_seconds(server.process.pid) - used)


def ask_all(server: Server, questions: Questions) -> tuple[dict, dict]:
    """For each name, the place of each document as its score, and the seconds of each question."""
    places: dict = {name: {} for name in NAMES}
    seconds: dict = {name: [] for name in NAMES}
    for number, (query, documents) in enumerate(questions.candidates.items()):
        texts = [questions.documents[one] for one in documents]
        # Each comes first, second and third equally often.
        for name in NAMES[number % 3 :] + NAMES[: number % 3]:
            order, spent = ranked(server, name, questions.queries[query], texts)
            places[name][query] = {documents[index]: -float(place) for place, index in enumerate(order)}
            seconds[name].append(spent)
    return places, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("first")
    parser.add_argument("then")
    parser.add_argument("questions", type=Path)
    parser.add_argument("--top", type=int, default=30, help="documents for each question of a BEIR folder")
    parser.add_argument("--keep", type=int, default=8)
    parser.add_argument("--count", type=int, default=40, help="questions")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    questions = read(arguments.questions, top=arguments.top)
    questions.sample(arguments.count)
    folders = {name: json.dumps(getattr(arguments, name)) for name in ("first", "then")}
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "models.toml"
        file.write_text(MODELS_FILE.format(keep=arguments.keep, **folders))
        server = Server(arguments.binary, file, ["--dtype", arguments.dtype], arguments.threads)
        try:
            ranked(server, "both", "a question", ["a text"] * (arguments.keep + 1))
            places, seconds = ask_all(server, questions)
        finally:
            server.stop()
    load = Path("/proc/loadavg").read_text().split()[0]
    candidates = statistics.median(map(len, questions.candidates.values()))
    print(f"{machine()}; commit {commit()}; {arguments.dtype}, threads: {arguments.threads}; load average {load} at the end")
    print(f"{len(questions.candidates)} questions of {candidates:.0f} documents, keep = {arguments.keep}\n")
    print(f"| ranked by | {MEASURE} | gain over the first | processor ms | ms until the answer |\n|---|--:|---|--:|--:|")
    found = {name: values(questions, places[name], (MEASURE,))[MEASURE] for name in NAMES}
    order = values(questions, incoming(questions), (MEASURE,))[MEASURE]
    print(f"| the order that came in | {order.mean():.3f} | | | |")
    for name in NAMES:
        gain = found[name] - found["first"]
        low, high = interval(gain)
        words = "" if name == "first" else f"{gain.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        until, used = (1000 * statistics.median(column) for column in zip(*seconds[name], strict=True))
        print(f"| {name} | {found[name].mean():.3f} | {words} | {used:.0f} | {until:.0f} |")


if __name__ == "__main__":
    main()
