"""Measures the cost of lower precision in ranking, on EVAL.md's held-out families.

It compares the server's bfloat16, int8 and int4 with its float32. Usage: python precision.py FOLDER --binary
PATH [--size N]. It sends requests to the server over HTTP, as a client does, and prints a Markdown table.
"""

import argparse
import json
import sys
import urllib.request
from pathlib import Path

import families
from evaluate import SEED
from groups import Group
from metrics import Scores, first, ndcg, pairs

sys.path.append(str(Path(__file__).resolve().parents[3] / "benches"))
from systems import Server  # noqa: E402  (starts the server, as for the benchmarks)

DTYPES = ["float32", "bfloat16", "int8", "int4"]


def raw_scores(server: Server, groups: list[Group]) -> Scores:
    """The server's raw scores, in the order of the documents."""
    result = []
    for group in groups:
        body = {"query": group.query, "texts": [document.text() for document in group.documents], "raw_scores": True}
        request = urllib.request.Request(f"{server.url}/rerank", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            values = [0.0] * len(group.documents)
            for rank in json.load(answer):
                values[rank["index"]] = rank["score"]
            result.append(values)
    return result


def agreement(one: Scores, other: Scores) -> float:
    """Share of all pairs of documents of one group that both lists of scores put in the same order."""
    same = total = 0
    for ours, theirs in zip(one, other, strict=True):
        for i in range(len(ours)):
            for j in range(i):
                same += (ours[i] > ours[j]) == (theirs[i] > theirs[j])
                total += 1
    return same / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--size", type=int, default=40, help="queries per family and language")
    arguments = parser.parse_args()
    groups = [group for each in families.by_language(SEED, arguments.size).values() for some in each.values() for group in some]
    print(f"{len(groups)} queries, {len(families.texts(groups))} texts\n")
    print("| | NDCG@10 | relevant text first | pairs in the right order | all pairs ordered as by float32 | worst raw difference |")
    print("|---|--:|--:|--:|--:|--:|")
    reference: Scores = []
    for dtype in DTYPES:
        server = Server(arguments.binary, arguments.folder, ["--dtype", dtype])
        try:
            scores = raw_scores(server, groups)
        finally:
            server.stop()
        reference = reference or scores
        worst = max(abs(a - b) for ours, theirs in zip(scores, reference, strict=True) for a, b in zip(ours, theirs, strict=True))
        right = pairs(groups, scores)["all"][0]
        print(
            f"| {dtype} | {ndcg(groups, scores):.4f} | {100 * first(groups, scores):.1f} % | {100 * right:.2f} % "
            f"| {100 * agreement(scores, reference):.2f} % | {worst:.3f} |"
        )


if __name__ == "__main__":
    main()
