"""Scores groups with the model of a saved folder.

Input: a folder and groups. Output: raw scores (l_yes - l_no) in float32, from the bfloat16 weights in the
folder.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from batches import Encoder, batch
from groups import Group
from model import Reranker, Shape, load

TOKENS = 12000


@dataclass
class Scorer:
    """A loaded model with its tokenizer."""

    model: Reranker
    encoder: Encoder

    @classmethod
    def load(cls, folder: Path) -> "Scorer":
        """Reads the folder; every tensor must be there and be used."""
        words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = Reranker(Shape(words.get_vocab_size()), words, 0)
        load(model, folder)
        return cls(model.eval(), Encoder(words))

    @torch.no_grad()
    def scores(self, groups: list[Group]) -> list[list[float]]:
        """One list of raw scores per group, in the order of its documents."""
        encoded = [self.encoder.encode(group) for group in groups]
        order = sorted(range(len(groups)), key=lambda index: encoded[index].longest)
        result: list[list[float]] = [[] for _ in groups]
        part: list[int] = []
        for position, index in enumerate(order):
            part.append(index)
            following = order[position + 1] if position + 1 < len(order) else None
            documents = sum(len(encoded[each].documents) for each in part)
            if following is not None and (documents + len(encoded[following].documents)) * encoded[following].longest < TOKENS:
                continue
            values = batch([encoded[each] for each in part])
            values.bias, values.prefix_bias = values.bias.float(), values.prefix_bias.float()
            for score, owner in zip(self.model(values)[0].tolist(), values.owner.tolist(), strict=True):
                result[part[owner]].append(score)
            part = []
        return result
