"""Small tokenizers of the kinds that repositories have, learnt from ../corpus.py.

Input: the corpus. Output: `tokenizer.json`, `tokenizer_config.json` and, where such repositories have it,
`special_tokens_map.json`. The vocabularies are counted in this file, because the trainers of the `tokenizers`
library give other results in each run.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from corpus import CORPUS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .fixture import write_json

Words = Counter[tuple[str, ...]]
# The rule by which Qwen2 and Qwen3 split a text into words.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
META = "▁"


@dataclass(frozen=True)
class Made:
    """A tokenizer and its configuration. `roles` maps roles such as `cls_token` to special tokens."""

    tokenizer: Tokenizer
    class_name: str
    roles: dict[str, str]
    options: dict

    def write(self, folder: Path, max_length: int, with_map: bool = True, with_padding: bool = False) -> None:
        """Writes the files. With `with_padding`, tokenizer.json truncates and pads to `max_length`."""
        if with_padding:
            pad = self.roles["pad_token"]
            self.tokenizer.enable_truncation(max_length)
            self.tokenizer.enable_padding(length=max_length, pad_id=self.id(pad), pad_token=pad)
        self.tokenizer.save(str(folder / "tokenizer.json"))
        config = (
            self.roles | self.options | {"tokenizer_class": self.class_name, "model_max_length": max_length}
        )
        write_json(folder / "tokenizer_config.json", config)
        if with_map:
            write_json(folder / "special_tokens_map.json", self.roles)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return self.tokenizer.get_vocab_size()

    def id(self, token: str) -> int:
        """The id of a token, which must exist."""
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return found


def counted(words: Iterable[str]) -> Words:
    """Counts words, as tuples of characters."""
    return Counter(tuple(word) for word in words)


def most(counter: Counter, count: int) -> list:
    """The `count` most frequent keys. Among equally frequent keys, the smaller comes first."""
    return [key for key, _ in sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:count]]


def learn_merges(words: Words, count: int) -> list[tuple[str, str]]:
    """The pairs that byte-pair encoding joins, most frequent first."""
    merges = []
    for _ in range(count):
        pairs: Counter = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += times
        best = most(pairs, 1)[0]
        merges.append(best)
        joined: Words = Counter()
        for word, times in words.items():
            joined[merge(word, best)] += times
        words = joined
    return merges


def merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """The word with every occurrence of the pair joined."""
    parts, index = [], 0
    while index < len(word):
        step = 2 if word[index : index + 2] == pair else 1
        parts.append("".join(word[index : index + step]))
        index += step
    return tuple(parts)


def split_words(tokenizer: Tokenizer) -> list[str]:
    """The words of the corpus after the tokenizer's normaliser and splitting."""
    texts = [tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text for text in CORPUS]
    return [word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def numbered(tokens: Iterable[str]) -> dict[str, int]:
    """Ids for the tokens in order of first appearance."""
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def special(tokens: Iterable[str], mask: str | None = None) -> list[AddedToken]:
    """Special tokens. The mask token includes the space before it."""
    return [AddedToken(token, special=True, normalized=False, lstrip=token == mask) for token in tokens]


def template(tokenizer: Tokenizer, first: str, end: str, pair: str, type_of_second: int = 0) -> None:
    """Puts `first` before a text and `end` after it. `pair` is the template of two texts, without types."""
    types = [1 if "$B" in pair.split()[: index + 1] else 0 for index in range(len(pair.split()))]
    pair = " ".join(f"{part}:{kind * type_of_second}" for part, kind in zip(pair.split(), types, strict=True))
    single = " ".join(f"{part}:0" for part in (first, "$A", end) if part)
    ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((first, end)) if token]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def roles(bos: str, eos: str, cls: str, sep: str, pad: str, unk: str, mask: str) -> dict[str, str]:
    """Special tokens by role, without roles whose token is empty."""
    named = {
        "bos_token": bos,
        "eos_token": eos,
        "cls_token": cls,
        "sep_token": sep,
        "pad_token": pad,
        "unk_token": unk,
        "mask_token": mask,
    }
    return {role: token for role, token in named.items() if token}


def word_piece(specials: tuple[str, ...], unknown: str) -> Tokenizer:
    """Lower-cased WordPiece: characters, frequent words, frequent ends of words."""
    tokenizer = Tokenizer(models.WordPiece({unknown: 0}, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = Counter(split_words(tokenizer))
    letters = Counter(letter for word, count in words.items() for letter in word * count)
    alphabet = sorted(
        {chr(code) for code in range(33, 127) if not chr(code).isupper()} | set(most(letters, 60))
    )
    ends: Counter = Counter()
    for word, count in words.items():
        for start in range(1, len(word) - 1):
            ends[f"##{word[start:][:4]}"] += count
    tokens = [
        *specials,
        *alphabet,
        *(f"##{letter}" for letter in alphabet),
        *most(words, 150),
        *most(ends, 130),
    ]
    tokenizer.model = models.WordPiece(numbered(tokens), unk_token=unknown, max_input_chars_per_word=100)
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def bert() -> Made:
    """Like bert-base-uncased: `[CLS] A [SEP] B [SEP]` with types 0 and 1."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer = word_piece(specials, "[UNK]")
    tokenizer.add_special_tokens(special(specials))
    template(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B [SEP]", 1)
    options = {
        "do_lower_case": True,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "clean_up_tokenization_spaces": True,
    }
    return Made(
        tokenizer, "BertTokenizer", roles("", "", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"), options
    )


def mpnet() -> Made:
    """Like all-mpnet-base-v2: WordPiece, RoBERTa's special tokens, no types."""
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    tokenizer = word_piece((*specials, "[UNK]", "<mask>"), "[UNK]")
    tokenizer.add_special_tokens(special((*specials, "[UNK]", "<mask>"), "<mask>"))
    template(tokenizer, "<s>", "</s>", "<s> $A </s> </s> $B </s>")
    options = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    return Made(
        tokenizer, "MPNetTokenizer", roles("<s>", "</s>", "<s>", "</s>", "<pad>", "[UNK]", "<mask>"), options
    )


def unigram(specials: tuple[str, ...], mask: str, unknown: int) -> Tokenizer:
    """SentencePiece's model: letters and frequent parts of words, with the logarithms of their counts."""
    tokenizer = Tokenizer(models.Unigram([("x", 0.0)], 0, False))
    # Published files have a compiled table instead, SentencePiece's nmt_nfkc.
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
    split = [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(replacement=META, prepend_scheme="always"),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    words = Counter(split_words(tokenizer))
    letters: Counter = Counter()
    parts: Counter = Counter()
    for word, count in words.items():
        letters.update({letter: word.count(letter) * count for letter in set(word)})
        for start in range(len(word)):
            for end in range(start + 2, min(len(word), start + 8) + 1):
                parts[word[start:end]] += count * (end - start)
    chosen = most(letters, 230) + most(
        Counter({part: value for part, value in parts.items() if value > 2 * len(part)}), 330
    )
    total = sum(letters.values())
    weights = {part: (letters[part] if len(part) == 1 else parts[part] / len(part)) for part in chosen}
    pieces = [(token, 0.0) for token in specials] + [
        (part, math.log(weight / total)) for part, weight in weights.items()
    ]
    tokenizer.model = models.Unigram(
        [*((piece, round(score, 5)) for piece, score in pieces), (mask, 0.0)], unknown, False
    )
    tokenizer.decoder = decoders.Metaspace(replacement=META, prepend_scheme="always")
    tokenizer.add_special_tokens(special((*specials, mask), mask))
    return tokenizer


def xlm_roberta() -> Made:
    """Like xlm-roberta-base: `<s> A </s></s> B </s>`, all types 0."""
    tokenizer = unigram(("<s>", "<pad>", "</s>", "<unk>"), "<mask>", 3)
    template(tokenizer, "<s>", "</s>", "<s> $A </s> </s> $B </s>")
    return Made(
        tokenizer, "XLMRobertaTokenizer", roles("<s>", "</s>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"), {}
    )


def t5() -> Made:
    """Like sentence-t5: `A </s>`, nothing before a text."""
    tokenizer = unigram(("<pad>", "</s>", "<unk>"), "<extra_id_0>", 2)
    template(tokenizer, "", "</s>", "$A </s> $B </s>")
    return Made(tokenizer, "T5Tokenizer", roles("", "</s>", "", "", "<pad>", "<unk>", ""), {})


def deberta() -> Made:
    """Like mxbai-rerank-base-v1: `[CLS] A [SEP] B [SEP]`, with types that the model does not embed."""
    tokenizer = unigram(("[PAD]", "[CLS]", "[SEP]", "[UNK]"), "[MASK]", 3)
    template(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B [SEP]", 1)
    options = {"do_lower_case": False, "split_by_punct": False, "vocab_type": "spm", "sp_model_kwargs": {}}
    return Made(
        tokenizer,
        "PreTrainedTokenizerFast",
        roles("[CLS]", "[SEP]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
        options,
    )


def byte_level(
    first: tuple[str, ...], last: tuple[str, ...], split: pre_tokenizers.PreTokenizer, merges: int = 280
) -> Tokenizer:
    """Byte-level byte-pair encoding. The special tokens `first` have the first ids, `last` the last ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    learnt = learn_merges(counted(split_words(tokenizer)), merges)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = numbered([*first, *alphabet, *(left + right for left, right in learnt), *last])
    tokenizer.model = models.BPE(vocabulary, learnt)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special((*first, *last), "<mask>" if "<mask>" in last else "[MASK]"))
    return tokenizer


def roberta() -> Made:
    """Like roberta-base: `<s> A </s></s> B </s>`, made by RoBERTa's own processor."""
    tokenizer = byte_level(
        ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",), pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    options = {"add_prefix_space": False, "errors": "replace", "trim_offsets": True}
    return Made(
        tokenizer,
        "RobertaTokenizer",
        roles("<s>", "</s>", "<s>", "</s>", "<pad>", "<unk>", "<mask>"),
        options,
    )


def modernbert() -> Made:
    """Like ModernBERT-base: `[CLS] A [SEP] B [SEP]` with types. The special tokens have the last ids."""
    specials = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
    tokenizer = byte_level((), specials, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.normalizer = normalizers.NFC()
    template(tokenizer, "[CLS]", "[SEP]", "[CLS] $A [SEP] $B [SEP]", 1)
    options = {"clean_up_tokenization_spaces": True, "model_input_names": ["input_ids", "attention_mask"]}
    return Made(
        tokenizer,
        "PreTrainedTokenizerFast",
        roles("", "", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"),
        options,
    )


def qwen2() -> Made:
    """Like gte-Qwen2: one token at the end of a text."""
    words = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    split = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    end = "<|endoftext|>"
    tokenizer = byte_level((), (end, "<|im_start|>", "<|im_end|>"), split)
    tokenizer.normalizer = normalizers.NFC()
    template(tokenizer, "", end, f"$A {end} $B {end}")
    options = {
        "add_prefix_space": False,
        "errors": "replace",
        "split_special_tokens": False,
        "add_eos_token": True,
    }
    return Made(tokenizer, "PreTrainedTokenizerFast", roles("", end, "", "", end, "", ""), options)


def gemma() -> Made:
    """Like embeddinggemma: SentencePiece's byte-pair encoding that falls back to bytes, `<bos> A <eos>`."""
    specials = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", META)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    text = [part for word in split_words(tokenizer) for part in word.replace(META, f" {META}").split()]
    words = counted(text)
    letters = Counter(letter for word, count in words.items() for letter in word * count)
    alphabet = most(letters, 90)
    learnt = [
        pair for pair in learn_merges(words, 230) if all(letter in alphabet for letter in "".join(pair))
    ]
    by_byte = [f"<0x{value:02X}>" for value in range(256)]
    vocabulary = numbered([*specials, *by_byte, *(left + right for left, right in learnt), *alphabet])
    tokenizer.model = models.BPE(
        vocabulary, learnt, unk_token="<unk>", fuse_unk=True, byte_fallback=True, ignore_merges=False
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(special(specials))
    template(tokenizer, "<bos>", "<eos>", "<bos> $A <eos> <bos> $B <eos>", 1)
    options = {
        "add_bos_token": True,
        "add_eos_token": True,
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
    }
    return Made(
        tokenizer, "GemmaTokenizer", roles("<bos>", "<eos>", "", "", "<pad>", "<unk>", "<mask>"), options
    )


KINDS: dict[str, Callable[[], Made]] = {
    "bert": bert,
    "mpnet": mpnet,
    "xlm-roberta": xlm_roberta,
    "deberta": deberta,
    "t5": t5,
    "roberta": roberta,
    "modernbert": modernbert,
    "qwen2": qwen2,
    "gemma": gemma,
}
