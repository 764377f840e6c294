"""The requests that every system gets, and the work in each.

Input: the workloads' files. Output: requests, each with a new query. So a server with a prefix cache can
reuse only the beginning that it would share with any other user's request: system line, instruction and the
first words of the query. Invariants: all queries of a workload have the same number of tokens in Qwen3's
tokenizer; the first query is the file's own."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from peer import Prompts

WORKLOADS = Path(__file__).resolve().parent / "workloads"
# Each is one token after a space.
SUBSTANCES = ["lithium", "sodium", "car", "phone", "laptop", "nickel", "lead", "zinc", "iron", "silver", "carbon", "gold"]
SUBJECTS = ["capital", "currency", "population", "history", "climate", "president", "weather"]
COUNTRIES = ["france", "germany", "japan", "china", "india", "canada", "turkey", "mexico", "brazil", "australia", "peru"]


def queries(workload: str, first: str) -> Iterator[str]:
    """The workload's own query, and variations of it."""
    if workload == "W2":
        others = (first.replace("capital", subject).replace("france", country)
                  for subject, country in itertools.product(SUBJECTS, COUNTRIES))
    else:
        others = (first.replace("lithium", substance) for substance in SUBSTANCES)
    return others


class Asked:
    """The requests of a workload, in order."""

    def __init__(self, workload: str, documents: int | None = None):
        content = json.loads((WORKLOADS / f"{workload.lower()}.json").read_text())
        self.workload, self.documents = workload, content["documents"][:documents]
        self.queries = list(queries(workload, content["query"]))

    def request(self, index: int, batch: int) -> dict:
        """Request number `index`, with the query of that number. Exits if there are not enough queries."""
        if index >= len(self.queries):
            raise SystemExit(f"{self.workload}: {index + 1} requests need as many queries, but there are {len(self.queries)}")
        return {"query": self.queries[index], "documents": self.documents, "batch": batch}


class Work:
    """Counts a request's multiplications and additions, as a packed forest of a model of this shape."""

    def __init__(self, folder: Path):
        config = json.loads((folder / "config.json").read_text())
        self.prompts = Prompts(str(folder))
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        heads = config["num_attention_heads"] * config["head_dim"]
        keys = config["num_key_value_heads"] * config["head_dim"]
        weights = hidden * (2 * heads + 2 * keys + 3 * config["intermediate_size"])
        self.per_token, self.per_pair_of_tokens = 2 * layers * weights, 4 * layers * heads
        # The beginnings of all requests so far, up to the document.
        self.known: list[list[int]] = []

    def of(self, request: dict) -> dict:
        """Counts tokens of all prompts (`tokens`), without repeated beginnings (`unique`), and without the
        beginnings that earlier requests left in a cache (`computed`); then the operations of products and of
        attention for the latter."""
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
    """The number of tokens that two texts have in common at their beginning."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def unique_depths(texts: list[list[int]]) -> list[int]:
    """For each token of the forest, the number of tokens that it sees, including itself."""
    depths: list[int] = []
    before: list[int] = []
    for text in sorted(texts):
        # In sorted order, a text shares more with the one before it than with any earlier one.
        shared = same(before, text)
        depths += range(shared + 1, len(text) + 1)
        before = text
    return depths
