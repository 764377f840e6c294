"""Trains the small byte-level BPE tokenizer of the fixtures: Qwen3's structure with about 1,300 tokens.

Input: the texts of corpus.py. Output: `tokenizer.json` and `tokenizer_config.json`. The added tokens are
Qwen3's, in Qwen3's order, at the end of the vocabulary; `yes`, `no`, `Yes` and `No` are single plain tokens.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from corpus import CORPUS
from prompt import DEFAULT_INSTRUCTION, SYSTEM_LINE
from weights import write_json

PLAIN_SIZE = 1300
# Qwen's own rule for splitting a text into words: each digit is a word, and a space belongs to the next word.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
NOT_SPECIAL = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip
ANSWERS = ["yes", "no", "Yes", "No"]
PROMPT_WORDS = [SYSTEM_LINE, DEFAULT_INSTRUCTION, "<Instruct>: a\n<Query>: a\n<Document>: a", "system\n", "user\n", "assistant\n"]


def train() -> Tokenizer:
    """The trained tokenizer with Qwen3's normaliser, splitting and added tokens."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(**byte_level)]
    )
    tokenizer.post_processor = processors.ByteLevel(**byte_level)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PLAIN_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(ANSWERS * 100 + PROMPT_WORDS * 10 + CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in NOT_SPECIAL])
    return tokenizer


def check(tokenizer: Tokenizer) -> None:
    """Checks the needs of the fixtures: the size, the ids of the added tokens, the four answers."""
    added = [tokenizer.token_to_id(token) for token in SPECIAL + NOT_SPECIAL]
    assert added == list(range(PLAIN_SIZE, PLAIN_SIZE + len(added))), added
    for answer in ANSWERS:
        assert tokenizer.encode(answer).tokens == [answer], answer


def write_tokenizer(folder: Path) -> None:
    """Trains, checks and writes the two files."""
    tokenizer = train()
    check(tokenizer)
    content = json.loads(tokenizer.to_str())
    # Qwen's file has these options in the decoder, too. Python's decoder does not take options.
    content["decoder"] = content["post_processor"]
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "additional_special_tokens": SPECIAL[1:],
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "padding_side": "left",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
    )
