"""The prompt of Qwen3-Reranker: its text, its ids, and the truncation of a pair that is too long.

Input: texts and a `tokenizers.Tokenizer`. Output: ids. The Rust code follows this specification (see
README.md): a user's text never becomes an added token, and frame, prefix and suffix are never truncated.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM_LINE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
PREFIX = f"<|im_start|>system\n{SYSTEM_LINE}<|im_end|>\n<|im_start|>user\n"
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def plain_tokenizer(tokenizer_json: Path) -> Tokenizer:
    """The tokenizer of the file without added tokens: control tokens in a text stay text."""
    content = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    content["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(content))


def body_parts(case: dict) -> tuple[str, str, str, str]:
    """Frame before the query, query, frame before the document, document. Together they are the body."""
    instruction = DEFAULT_INSTRUCTION if case["instruction"] is None else case["instruction"]
    document = case["document"]
    if isinstance(document, dict):
        document = document["repeat"] * document["times"]
    return f"<Instruct>: {instruction}\n<Query>: ", case["query"], "\n<Document>: ", document


class Prompt:
    """Makes the ids of a case, with two tokenizers: one with added tokens for prefix and suffix, one without
    for the body."""

    def __init__(self, tokenizer_json: Path):
        full = Tokenizer.from_file(str(tokenizer_json))
        self.plain = plain_tokenizer(tokenizer_json)
        self.prefix = full.encode(PREFIX, add_special_tokens=False).ids
        self.suffix = full.encode(SUFFIX, add_special_tokens=False).ids

    def body_limit(self, case: dict) -> int:
        """The number of tokens that the body of this case may have."""
        return case["max_length"] - len(self.prefix) - len(self.suffix)

    def body_ids(self, case: dict) -> list[int]:
        """The ids of the body, truncated to the limit. Raises ValueError if the frame alone is longer."""
        parts = body_parts(case)
        encoding = self.plain.encode("".join(parts), add_special_tokens=False)
        query, document = token_ranges(parts, [end for _, end in encoding.offsets])
        excess = len(encoding.ids) - self.body_limit(case)
        from_start = case["truncation_direction"] == "left"
        dropped = set()
        for part in (document, query):
            cut = min(max(excess, 0), len(part))
            dropped.update(part[:cut] if from_start else part[len(part) - cut :])
            excess -= cut
        if excess > 0:
            raise ValueError(f"case {case['name']}: max_length {case['max_length']} leaves no room for the frame")
        return [token for index, token in enumerate(encoding.ids) if index not in dropped]

    def ids(self, case: dict) -> list[int]:
        """All ids of the prompt: prefix, body, suffix."""
        return self.prefix + self.body_ids(case) + self.suffix


def token_ranges(parts: tuple[str, str, str, str], ends: list[int]) -> tuple[range, range]:
    """The indices of the query's and of the document's tokens. A token belongs to the part that has its last
    character."""
    query_start = len(parts[0])
    query_end = query_start + len(parts[1])
    document_start = query_end + len(parts[2])
    assert ends == sorted(ends), "token ends must not decrease"

    def first_after(position: int) -> int:
        return next((index for index, end in enumerate(ends) if end > position), len(ends))

    query = range(first_after(query_start), first_after(query_end))
    return query, range(first_after(document_start), len(ends))
