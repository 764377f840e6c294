#!/usr/bin/env python3
"""The benchmark's workloads in `transformers`, text in to scores out, for comparison on the same machine.

Follows the model card (prompt, left padding, last position's logits) with one batch per request. Needs the packages of
integration_tests/reference/requirements.txt.
usage: transformers_peer.py MODEL_FOLDER [--dtype float32|bfloat16] [--threads 2] [--workloads W1,W2,W3]"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "integration_tests" / "reference"))
from prompt import DEFAULT_INSTRUCTION, PREFIX, SUFFIX  # noqa: E402

WORKLOADS = {"W1": ("w1.json", 3), "W2": ("w2.json", 10), "W3": ("w3.json", 1)}


class Peer:
    def __init__(self, folder: str, dtype: str):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.prefix = self.tokenizer.encode(PREFIX, add_special_tokens=False)
        self.suffix = self.tokenizer.encode(SUFFIX, add_special_tokens=False)
        self.answers = [self.tokenizer.convert_tokens_to_ids(word) for word in ("no", "yes")]
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    @torch.no_grad()
    def rerank(self, workload: dict, batch: int) -> list[float]:
        bodies = [
            f"<Instruct>: {DEFAULT_INSTRUCTION}\n<Query>: {workload['query']}\n<Document>: {document}"
            for document in workload["documents"]
        ]
        ids = [self.prefix + body + self.suffix for body in self.tokenizer(bodies)["input_ids"]]
        scores = []
        for start in range(0, len(ids), batch):
            inputs = self.tokenizer.pad({"input_ids": ids[start : start + batch]}, padding=True, return_tensors="pt")
            logits = self.model(**inputs, logits_to_keep=1).logits[:, -1, self.answers].float()
            scores += torch.softmax(logits, dim=1)[:, 1].tolist()
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="prompts of a forward pass")
    parser.add_argument("--workloads", default="W1,W2,W3")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    peer = Peer(arguments.model, arguments.dtype)
    for name in arguments.workloads.split(","):
        file, rounds = WORKLOADS[name]
        workload = json.loads((HERE / "workloads" / file).read_text())
        if name == "W2":
            peer.rerank(workload, 1)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            peer.rerank(workload, arguments.batch)
            times.append(time.perf_counter() - start)
        median = statistics.median(times)
        pairs = len(workload["documents"])
        print(f"{name} {arguments.dtype}: {pairs / median:.2f} pairs/s, {median * 1e3:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
