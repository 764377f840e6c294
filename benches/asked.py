"""What is asked of every system, and how much work it is.

Input: the workloads' files. Output: requests, each with a query that no earlier one had, so that what a server keeps is the
beginning that it would know of a stranger's request: system line, instruction and the query's first words. What must hold:
all queries of a workload have the same number of Qwen3's tokens; the first is the file's own."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from peer import Prompts

WORKLOADS = Path(__file__).resolve().parent / "workloads"
# One token each, after a space.
SUBSTANCES = ["lithium", "sodium", "car", "phone", "laptop", "nickel", "lead", "zinc", "iron", "silver", "carbon", "gold"]
SUBJECTS = ["capital", "currency", "population", "history", "climate", "president", "weather"]
COUNTRIES = ["france", "germany", "japan", "china", "india", "canada", "turkey", "mexico", "brazil", "australia", "peru"]


def queries(workload: str, first: str) -> Iterator[str]:
    """The workload's own query and others like it."""
    if workload == "W2":
        others = (first.replace("capital", subject).replace("france", country)
                  for subject, country in itertools.product(SUBJECTS, COUNTRIES))
    else:
        others = (first.replace("lithium", substance) for substance in SUBSTANCES)
    return others


class Asked:
    """The requests of a workload, one after the other."""

    def __init__(self, workload: str, documents: int | None = None):
        content = json.loads((WORKLOADS / f"{workload.lower()}.json").read_text())
        self.workload, self.documents = workload, content["documents"][:documents]
        self.queries = list(queries(workload, content["query"]))

    def request(self, index: int, batch: int) -> dict:
        """Every index has its query; there are as many as there are queries."""
        if index >= len(self.queries):
            raise SystemExit(f"{self.workload}: {index + 1} requests want as many queries, and there are {len(self.queries)}")
        return {"query": self.queries[index], "documents": self.documents, "batch": batch}


class Work:
    """Multiplications and additions of a request in the packed forest, by the model's configuration."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        self.prompts = Prompts(str(folder))
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"] * config["head_dim"]
        keys = config["num_key_value_heads"] * config["head_dim"]
        weights = hidden * (2 * heads + 2 * keys + 3 * config["intermediate_size"])
        self.per_token, self.per_pair_of_tokens = 2 * layers * weights, 4 * layers * heads
        # Beginnings up to the document, of requests so far.
        self.known: list[list[int]] = []

    def of(self, request: dict) -> dict:
        """Tokens of all prompts, those that are different, those to compute; operations of products and attention for the
        latter, if what came before is kept."""
        ids = self.prompts.ids(request["query"], request["documents"])
        beginning = self.prompts.ids(request["query"], [""])[0]
        beginning = beginning[: same(beginning, ids[0])]
        kept = max((same(beginning, known) for known in self.known), default=0)
        self.known.append(beginning)
        depths = unique_depths(ids)
        computed = [depth for depth in depths if depth > kept]
        return {
            "tokens": sum(map(len, ids)),
            "unique": len(depths),
            "computed": len(computed),
            "products": self.per_token * len(computed),
            "attention": self.per_pair_of_tokens * sum(computed),
        }


def same(a: list[int], b: list[int]) -> int:
    """How many tokens two texts begin with alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def unique_depths(texts: list[list[int]]) -> list[int]:
    """For each token of the forest, how many tokens it sees, itself included."""
    depths: list[int] = []
    before: list[int] = []
    for text in sorted(texts):
        # Sorted, a text shares most with the one before it.
        shared = same(before, text)
        depths += range(shared + 1, len(text) + 1)
        before = text
    return depths
