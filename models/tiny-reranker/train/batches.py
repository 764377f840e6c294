"""Turns groups into batches of tokens.

Input: `Group`s and the tokenizer. Output: `model.Batch`. The ids are exactly those that the server
and transformers form: prefix and suffix are encoded by themselves, the body without added tokens.
"""

import json
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from groups import Document, Group
from model import Batch, Rows
from tokenizer import PREFIX, SUFFIX

LONGEST = 700
SHARE = 2  # query heads per key head, as in model.Shape


@dataclass
class Encoded:
    """Token ids of a group, and labels for the losses.

    `prefix`: system prompt, instruction and query. `documents`: each document with the suffix. `ends` of a
    document: for each sentence, the token index of its end, and whether the sentence answers.
    """

    prefix: list[int]
    documents: list[list[int]]
    relevant: list[bool]
    overlap: list[list[bool]]
    ends: list[list[tuple[int, bool]]]

    @property
    def longest(self) -> int:
        return max(map(len, self.documents))


class Encoder:
    """Encodes prefix and suffix with the tokenizer's added tokens, and users' texts without them."""

    def __init__(self, tokenizer: Tokenizer):
        self.prefix = tokenizer.encode(PREFIX).ids
        self.suffix = tokenizer.encode(SUFFIX).ids
        content = json.loads(tokenizer.to_str())
        content["added_tokens"] = []
        self.plain = Tokenizer.from_str(json.dumps(content))

    def body(self, instruction: str, query: str) -> list[int]:
        """The part of the prompt before the document's text."""
        return self.prefix + self.plain.encode(f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>:").ids

    def document(self, text: str) -> list[int]:
        """The document's text and the suffix."""
        return self.plain.encode(" " + text).ids[: LONGEST - len(self.suffix)] + self.suffix

    def encode(self, group: Group) -> Encoded:
        """The group's tokens and labels."""
        query = set(self.plain.encode(" " + group.query).ids) | set(self.plain.encode(group.query).ids)
        documents = [self.document(document.text()) for document in group.documents]
        return Encoded(
            prefix=self.body(group.instruction, group.query),
            documents=documents,
            relevant=[document.relevant for document in group.documents],
            overlap=[[token in query for token in ids] for ids in documents],
            ends=[self.ends(document) for document in group.documents],
        )

    def ends(self, document: Document) -> list[tuple[int, bool]]:
        """Finds the last token of each sentence by counting the tokens of the sentences."""
        result, count, space = [], 0, "" if document.language == "zh" else " "
        for index, (sentence, answers) in enumerate(document.sentences):
            count += len(self.plain.encode((" " if index == 0 else space) + sentence).ids)
            if count <= LONGEST - len(self.suffix):
                result.append((count - 1, answers and document.relevant))
        return result


def rows(lists: list[list[int]], offsets: list[int]) -> Rows:
    """Packs the tokens of the sequences; the first position of each sequence is its offset."""
    width = max(map(len, lists))
    places = [index * width + column for index, ids in enumerate(lists) for column in range(len(ids))]
    positions = torch.tensor(offsets)[:, None] + torch.arange(width)
    return Rows(torch.tensor([token for ids in lists for token in ids]), torch.tensor(places), positions)


def bias(seen: torch.Tensor) -> torch.Tensor:
    """The term that is added to attention's scores."""
    return torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, -1e9)


def batch(groups: list[Encoded]) -> Batch:
    """Puts groups side by side in one batch."""
    prefixes = rows([group.prefix for group in groups], [0] * len(groups))
    owner = [index for index, group in enumerate(groups) for _ in group.documents]
    lists = [ids for group in groups for ids in group.documents]
    documents = rows(lists, [len(groups[index].prefix) for index in owner])
    lengths = torch.tensor([len(group.prefix) for group in groups])[owner]
    (_, before), (_, width) = prefixes.size, documents.size
    seen = (torch.arange(before) < lengths[:, None])[:, None, None, :].expand(-1, 1, SHARE * width, -1)
    causal = torch.ones(width, width, dtype=torch.bool).tril().repeat(SHARE, 1).expand(len(lists), 1, -1, -1)
    prefix_causal = torch.ones(before, before, dtype=torch.bool).tril().repeat(SHARE, 1)[None, None]
    starts = torch.tensor([0] + [len(ids) for ids in lists]).cumsum(0)
    every_end = enumerate(ends for group in groups for ends in group.ends)
    marks = [(int(starts[index]) + place, answers) for index, ends in every_end for place, answers in ends]
    return Batch(
        prefixes=prefixes,
        documents=documents,
        owner=torch.tensor(owner),
        bias=bias(torch.cat((seen, causal), -1)),
        prefix_bias=bias(prefix_causal),
        last=starts[1:] - 1,
        relevant=torch.tensor([flag for group in groups for flag in group.relevant]).float(),
        overlap=torch.tensor([flag for group in groups for flags in group.overlap for flag in flags]).float(),
        ends=torch.tensor([place for place, _ in marks]),
        end_answers=torch.tensor([answers for _, answers in marks]).float(),
    )
