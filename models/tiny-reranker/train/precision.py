"""What lower precision costs in ranking: the server's bfloat16 and int8 against its float32, on EVAL.md's held-out families.

Usage: python precision.py FOLDER --binary PATH [--size N]. Prints a Markdown table. The server is asked over HTTP, as a client asks it.
"""

import argparse
import contextlib
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import families
from evaluate import SEED
from groups import Group
from metrics import Scores, first, ndcg, pairs

DTYPES = ["float32", "bfloat16", "int8"]


@contextlib.contextmanager
def server(binary: Path, folder: Path, dtype: str) -> Iterator[str]:
    """The address of a server with the model in the folder."""
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        command = [str(binary), "--model-id", str(folder), "--dtype", dtype, "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while not (found := re.search(r"listening on \S*:(\d+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    raise SystemExit(f"the server did not start:\n{Path(log.name).read_text()}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait()


def raw_scores(address: str, groups: list[Group]) -> Scores:
    """The server's raw scores, in the order of the documents."""
    result = []
    for group in groups:
        body = {"query": group.query, "texts": [document.text() for document in group.documents], "raw_scores": True}
        request = urllib.request.Request(f"{address}/rerank", json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            values = [0.0] * len(group.documents)
            for rank in json.load(answer):
                values[rank["index"]] = rank["score"]
            result.append(values)
    return result


def agreement(one: Scores, other: Scores) -> float:
    """Share of all pairs of documents of a group which both put in the same order."""
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
        with server(arguments.binary, arguments.folder, dtype) as address:
            scores = raw_scores(address, groups)
        reference = reference or scores
        worst = max(abs(a - b) for ours, theirs in zip(scores, reference, strict=True) for a, b in zip(ours, theirs, strict=True))
        right = pairs(groups, scores)["all"][0]
        print(
            f"| {dtype} | {ndcg(groups, scores):.4f} | {100 * first(groups, scores):.1f} % | {100 * right:.2f} % "
            f"| {100 * agreement(scores, reference):.2f} % | {worst:.3f} |"
        )


if __name__ == "__main__":
    main()
