"""Malicious model folders: the server names the mistake in one line, and ends with exit code 1."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from server import MODELS, refusal

ROLES = "".join(
    "{%- set @ = messages | selectattr('role', 'eq', '@') | map(attribute='content') | first -%}".replace("@", role)
    for role in ("query", "document")
)
GROW = "{% set it = namespace(x='aaaaaaaaaaaaaaaa') %}{% for _ in range(60) %}{% set it.x = STEP %}{% endfor %}{{ it.x }}"

# Attacks by a chat template (the code before it writes the texts), and a part of the server's message.
TEMPLATES = {
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
    "doubles": (GROW.replace("STEP", "it.x ~ it.x"), "MiB of memory"),
    "squares": (GROW.replace("STEP", "it.x | replace('a', it.x)"), "MiB of memory"),
    "pads": ("{{ '{:>1000000000000}'.format('x') }}", "a width"),
    "indents": ("{{ 'x' | indent(1000000000000) }}", "indent"),
    "repeats": ("{{ 'x' * 1000000000 }}", "too large"),
    "writes without end": ("{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}", "more than 4194304 bytes"),
    "calls itself": ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(0) }}", "recursion"),
    "shows itself": ("{% set it = namespace() %}{% set it.x = it %}{{ it }}", "MiB of memory"),
    "nests": ("{{ " + "not " * 4_000_000 + "1 }}", "MiB of memory"),
}

TIMES_1000 = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}], "pair": [], "special_tokens": {}}
# Attacks by a field of tokenizer.json, and a part of the server's message.
TOKENIZERS = {
    "a normalizer bomb": ("normalizer", {"type": "Sequence", "normalizers": [TIMES_1000] * 4}, "the normalizer of"),
    "a decoder bomb": ("decoder", {"type": "Sequence", "decoders": [TIMES_1000] * 4}, "the decoder of"),
    "many rules": ("normalizer", {"type": "Sequence", "normalizers": [{**TIMES_1000, "content": "a"}] * 2000}, "go through"),
    "many splits": ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}] * 2000}, "go through"),
    "a long prefix": ("normalizer", {"type": "Prepend", "prepend": "a" * 10_000_000}, "before each text"),
    "an unknown token": ("post_processor", TEMPLATE, "it is not understood (no entry found for key)"),
    "words of no characters": ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "it is not understood"),
    "a token of a large id": ("model", {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"}, "the id 4294967295"),
    "a text for a list": ("added_tokens", "a" * 10_000_000, " … "),
}

# Something else than a file at a file's path, and a part of the server's message.
PLACES = {
    "a pipe": (os.mkfifo, "not a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a file"),
    "a directory": (Path.mkdir, "a directory"),
}


def changed(folder: Path, change: Callable[[Path], None]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(MODELS / "tied-bf16", folder)
    change(folder)
    return folder


def refused(folder: Path, change: Callable[[Path], None]) -> str:
    return refusal(changed(folder, change), "--model-type", "listwise-reranker")


def test_templates(tmp_path, record):
    for name, (bomb, part) in TEMPLATES.items():
        source = ROLES + bomb + "{{ query }}{{ document }}"
        sentence = refused(tmp_path / "model", lambda folder: (folder / "chat_template.jinja").write_text(source))
        assert part in sentence and "chat_template.jinja" in sentence, f"{name}: {sentence}"
    record("chat templates that loop, double, pad or nest", len(TEMPLATES), 0, "exit 1 with a sentence")


def test_tokenizers(tmp_path, record):
    for name, (part, value, words) in TOKENIZERS.items():

        def change(folder: Path) -> None:
            path = folder / "tokenizer.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))

        sentence = refused(tmp_path / "model", change)
        assert words in sentence and "tokenizer.json" in sentence, f"{name}: {sentence}"
        assert len(sentence) < 2000, name
    record("tokenizers whose rules make gigabytes of a word, or hours, or a panic", len(TOKENIZERS), 0, "exit 1 with a sentence")


def test_padding_of_a_tokenizer_is_left_out(tmp_path, target, record):
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None}
        padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
        path.write_text(json.dumps({**json.loads(path.read_text()), "padding": padding}))

    folder = changed(tmp_path / "model", change)
    assert target("--model-type", "listwise-reranker", model=folder).is_alive()
    record("tokenizers that pad to 10¹² tokens", 1, 0, "nothing is padded")


def test_paths_that_are_not_files(tmp_path, record):
    names = ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja", "modules.json")
    for place, (put, part) in PLACES.items():
        for name in names:

            def change(folder: Path) -> None:
                (folder / name).unlink()
                put(folder / name)

            sentence = refused(tmp_path / "model", change)
            assert part in sentence and name in sentence, f"{place} for {name}: {sentence}"
    record("pipes, devices and folders instead of a model's files", len(names) * len(PLACES), 0, "exit 1 with a sentence")


def test_weights_that_change_while_they_are_served(tmp_path, target, record):
    """The server no longer reads the files: truncating or overwriting them changes no answer."""
    folder = changed(tmp_path / "model", lambda folder: None)
    weights = folder / "model.safetensors"
    aim = target("--model-type", "listwise-reranker", "--prefix-cache-bytes", "0", model=folder)
    # Each text has other words, so that other rows of the embedding are needed.
    bodies = [{"query": "red planet", "texts": [f"Mars number {n} {'abcdefghij' * n}"]} for n in range(20)]
    ask = lambda: [aim.post("/rerank", body).json() for body in bodies[10:]]  # noqa: E731
    aim.post("/rerank", bodies[0])
    with weights.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.truncate(0)
        short = ask()
        file.truncate(size)
        zeros = ask()
        file.seek(0)
        file.write(b"\xff" * size)
    assert short == zeros == ask() and aim.is_alive()
    record("weights cut and overwritten while they are served", 3, 0, "the same answers as before")
