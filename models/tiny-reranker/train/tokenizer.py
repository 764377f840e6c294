"""Trains the tokenizer: Qwen3's structure with 7,000 plain tokens.

The structure: byte-level BPE, digits one by one, Qwen3's added tokens in Qwen3's order. Input: sentences of
all five languages. Output: `tokenizer.json` and `tokenizer_config.json`. `yes` and `no` are single plain
tokens.
"""

import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from groups import DEFAULT_INSTRUCTION, OTHER_WORDINGS, Maker, Settings
from instructed import instructed_group
from languages import LANGUAGES, everyday, lexicon, relations, words

PLAIN_SIZE = 7000
SYSTEM_LINE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
PREFIX = f"<|im_start|>system\n{SYSTEM_LINE}<|im_end|>\n<|im_start|>user\n"
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
MARKERS = ("<Query", "<Document")  # single tokens; model.py makes the first layer look for them
# Qwen's tokenizer splits a text into words this way: digits stand alone; a space belongs to the next word.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
NOT_SPECIAL = [
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
]  # fmt: skip


def corpus(seed: int) -> list[str]:
    """Generated sentences, and the word lists and facts themselves, so that rare words get tokens too."""
    maker = Maker(random.Random(seed), Settings())
    frame = "<Instruct>: a\n<Query>: a\n<Document>: a"
    texts = [PREFIX, SUFFIX, frame, DEFAULT_INSTRUCTION, "yes", "no"] * 3000 + OTHER_WORDINGS * 200
    for index in range(3000):
        group = instructed_group(maker) if index % 10 == 0 else maker.everyday_group() if index % 10 < 3 else maker.relation_group()
        texts += [group.instruction, group.query] + [document.text() for document in group.documents[:3]]
    for language in LANGUAGES:
        facts = everyday(language).values()
        forms = relations(language).values()
        texts += [text for fact in facts for text in fact.queries + fact.passages] * 25
        texts += [text for form in forms for text in form.questions + form.keywords + form.statements] * 15
        texts += [" " + entry[language] for entries in lexicon().values() for entry in entries] * 50
        texts += [("" if language == "zh" else " ") + word for word in words(language)] * 100
    return texts


def train(seed: int) -> Tokenizer:
    """The trained tokenizer with Qwen3's normaliser, splitting and added tokens."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(**byte_level)]
    )
    tokenizer.post_processor = processors.ByteLevel(**byte_level)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=PLAIN_SIZE, initial_alphabet=alphabet, max_token_length=16, show_progress=False)
    tokenizer.train_from_iterator(corpus(seed), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in NOT_SPECIAL])
    added = [tokenizer.token_to_id(token) for token in SPECIAL + NOT_SPECIAL]
    assert added == list(range(PLAIN_SIZE, PLAIN_SIZE + len(added))), added
    for answer in ("yes", "no", *MARKERS):
        assert tokenizer.encode(answer).ids == [tokenizer.token_to_id(answer)], answer
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the two tokenizer files of a real folder."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "additional_special_tokens": SPECIAL[1:],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": "<|endoftext|>",
        "padding_side": "left",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
