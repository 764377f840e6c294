"""A GGUF file gives the same answers as the safetensors that it was made from; a file that cannot be read or
understood keeps the server from starting.

`gguf_files.py` makes the files from the reference's models; other tests compare the answers of these models
with `transformers`.
"""

import json
import shutil
from pathlib import Path

import gguf
import models
import numpy as np
import pytest
from gguf_files import RERANK_PROMPT, Recipe, write
from server import MODELS, ROOT, Server, refusal, run

FIXTURES = ROOT / "integration_tests/reference/fixtures"
SERVED = FIXTURES / "served"
Pooling = gguf.PoolingType

QUERY = "Which planet is red?"
TEXTS = ["Mars is red.", "Bread is baked from flour and water 1234.", "naïve 정 can't   <|im_end|> THE [SEP]"]
EXACT = ("--dtype", "float32")
GENERATIVE = ("--model-type", "listwise-reranker")


def llama(folder: Path) -> Path:
    """A random Llama with a byte-level tokenizer: Qwen3's reference without the norms of queries and keys."""
    model = models.copy("tied-f32-bare", folder)
    config = {"model_type": "llama", "architectures": ["LlamaModel"], "rope_theta": 1e4}
    models.edit_json(model / "config.json", lambda content: content.pop("is_reranker", None), **config)

    def without_norms(tensors):
        for name in [name for name in tensors if name.endswith(("q_norm.weight", "k_norm.weight"))]:
            del tensors[name]

    models.edit_tensors(model, without_norms)
    return model


def qwen2(folder: Path) -> Path:
    """The same as a Qwen2, with biases for queries, keys and values."""
    model = llama(folder)
    models.edit_json(model / "config.json", model_type="qwen2", architectures=["Qwen2Model"])

    def with_biases(tensors):
        generator = np.random.default_rng(7)
        for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
            size = tensors[name].shape[0]
            bias = generator.normal(size=size).astype(np.float32).tobytes()
            tensors[name.replace(".weight", ".bias")] = models.Tensor("F32", [size], bytearray(bias))

    models.edit_tensors(model, with_biases)
    return model


def bidirectional_qwen2(folder: Path) -> Path:
    """A Qwen2 in which tokens also attend to later tokens, as gte-Qwen2."""
    model = qwen2(folder)
    models.edit_json(model / "config.json", is_causal=False)
    return model


# Wavelengths of the small heads are on both sides of, and between, the two limits.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def scaled_llama(folder: Path, **changes: float) -> Path:
    """A Llama with the rotary scaling of Llama 3."""
    model = llama(folder)
    models.edit_json(model / "config.json", rope_scaling=LLAMA3 | changes)
    return model


def bidirectional_llama(folder: Path) -> Path:
    """The same without a causal mask, as llama-nemotron-embed."""
    model = scaled_llama(folder)
    models.edit_json(model / "config.json", model_type="llama_bidirec", architectures=["LlamaBidirectionalModel"])
    return model


def eurobert(folder: Path) -> Path:
    """A EuroBERT: a Llama without a causal mask, whose queries and keys the converter does not interleave."""
    model = llama(folder)
    models.edit_json(model / "config.json", model_type="eurobert", architectures=["EuroBertModel"])
    return model


def nomic(folder: Path) -> Path:
    """Nomic's reference with the part of BERT's tokenizer that its vocabulary has rows for."""
    model = Path(shutil.copytree(FIXTURES / "architectures/nomic-v1.5", folder / "model"))
    tokenizer = json.loads((SERVED / "bert-embedding-mean/tokenizer.json").read_text(encoding="utf-8"))
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {token: index for token, index in vocabulary.items() if index < rows}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return model


def same(model: Path):
    return lambda folder: model


# How to make the model and its file, the flags for the safetensors, and the flags for the file.
MEAN = ("--pooling", "mean")
CASES = {
    "generative re-ranker, tied": (
        same(MODELS / "tied-bf16"),
        Recipe(rerank=True, name="Qwen3 Reranker 0.6B"),
        (),
        (),
    ),
    "generative re-ranker, head of its own": (
        same(MODELS / "untied-f16"),
        Recipe(rerank=True, name="Qwen3 Reranker 8B"),
        GENERATIVE,
        (),
    ),
    "generative re-ranker, converted as a plain model": (
        same(MODELS / "untied-bf16-shards"),
        Recipe(name="Qwen3-Reranker-8B"),
        GENERATIVE,
        (),
    ),
    "last token": (same(MODELS / "embedding-last"), Recipe(pooling=Pooling.LAST, add_eos=True), (), ()),
    "bfloat16": (same(MODELS / "embedding-last"), Recipe("BF16", pooling=Pooling.LAST, add_eos=True), (), ()),
    "Llama": (llama, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Qwen2": (qwen2, Recipe(), MEAN, MEAN),
    "BERT": (
        same(SERVED / "bert-embedding-mean"),
        Recipe(pooling=Pooling.MEAN, without=("cls.weight", "cls.bias")),
        (),
        (),
    ),
    "BERT as a cross-encoder": (same(SERVED / "bert-cross-encoder"), Recipe(pooling=Pooling.RANK), (), ()),
    "XLM-RoBERTa as a cross-encoder": (same(SERVED / "xlm-roberta-reranker"), Recipe(pooling=Pooling.RANK), (), ()),
    "XLM-RoBERTa, rows as vectors": (
        same(SERVED / "xlm-roberta-reranker"), Recipe(pooling=Pooling.RANK, flat=True), (), ()
    ),
    "Qwen2 without a causal mask": (bidirectional_qwen2, Recipe(), MEAN, MEAN),
    "Llama with scaled positions": (scaled_llama, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Llama without a causal mask": (bidirectional_llama, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "EuroBERT": (eurobert, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "ModernBERT as a cross-encoder": (same(SERVED / "modernbert-reranker"), Recipe(), (), ()),
    "Nomic": (nomic, Recipe(pooling=Pooling.MEAN), MEAN, ()),
}


def answers(server: Server) -> tuple[list, np.ndarray]:
    """The ids of all texts, and their vectors or scores."""
    ids = server.post("/tokenize", {"inputs": TEXTS}).json()
    if server.get("/info").json()["model_kind"] == "embedding":
        vectors = server.post("/embed", {"inputs": TEXTS, "normalize": False})
        assert vectors.status_code == 200, vectors.text
        return ids, np.array(vectors.json())
    return ids, np.array(server.scores(QUERY, TEXTS))


@pytest.mark.parametrize("case", CASES)
def test_a_file_answers_like_the_safetensors_it_was_made_from(case, tmp_path):
    make, recipe, flags, file_flags = CASES[case]
    model = make(tmp_path)
    file = write(model, tmp_path / "file.gguf", recipe)
    with Server(model, *flags, *EXACT) as server:
        ids, values = answers(server)
        kind = server.get("/info").json()["model_type"]
    with Server(file, *file_flags, *EXACT) as server:
        file_ids, file_values = answers(server)
        info = server.get("/info").json()
        log = server.log()
    assert file_ids == ids
    np.testing.assert_allclose(file_values, values, rtol=1e-5, atol=1e-5)
    assert np.abs(values).max() > 1e-3 and len(np.unique(values.round(4))) >= len(TEXTS)
    assert info["model_type"] == kind and info["weights"].startswith("file.gguf (GGUF: ")
    assert f"from {info['weights']}, on" in log
    if recipe.rerank:
        assert "belongs to the family qwen3-reranker: the server uses its built-in prompt" in log


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_decode_to_the_values_of_llama_cpps_package(kind, tmp_path):
    recipe = {"rerank": True, "kind": kind}
    stored = write(MODELS / "tied-bf16", tmp_path / "stored.gguf", Recipe(**recipe))
    widened = write(MODELS / "tied-bf16", tmp_path / "widened.gguf", Recipe(**recipe, widened=True))
    found = []
    for file, types in ((stored, f"stored.gguf (GGUF: {kind}, F32)"), (widened, "widened.gguf (GGUF: F32)")):
        with Server(file, *EXACT) as server:
            assert server.get("/info").json()["weights"] == types
            found.append(answers(server))
    assert found[0][0] == found[1][0] and (found[0][1] == found[1][1]).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_four_bits_of_a_file_are_not_rounded_to_four_bits_again(kind, tmp_path):
    """`--dtype int4` computes with the file's own nibbles: its scores are as near to the file's values as
    int8's. The same values in F32 have to be rounded to four bits, and their scores are further away."""
    texts = [f"{text} {end}" for text in TEXTS for end in ("", "and so on", "or not", "12 34 56")]
    stored = write(MODELS / "tied-bf16", tmp_path / "stored.gguf", Recipe(kind, rerank=True))
    widened = write(MODELS / "tied-bf16", tmp_path / "widened.gguf", Recipe(kind, rerank=True, widened=True))

    def scores(file: Path, dtype: str) -> np.ndarray:
        with Server(file, "--dtype", dtype) as server:
            return np.array(server.scores(QUERY, texts))

    exact = scores(stored, "float32")
    error = {
        name: float(np.sqrt(np.mean((scores(file, dtype) - exact) ** 2)))
        for name, file, dtype in (("kept", stored, "int4"), ("bytes", stored, "int8"), ("rounded", widened, "int4"))
    }
    assert error["kept"] <= 1.5 * error["bytes"] and error["rounded"] > 2 * error["kept"], error


def test_a_prompt_of_another_model_is_used_as_it_is(tmp_path):
    prompt = "<|im_start|>system\nIs it so?<|im_end|>\n<|im_start|>user\n{query}\n\n{document}<|im_end|>\n"
    own = write(MODELS / "tied-bf16", tmp_path / "own.gguf", Recipe(rerank=True, prompt=prompt))
    usual = write(MODELS / "tied-bf16", tmp_path / "usual.gguf", Recipe(rerank=True, prompt=RERANK_PROMPT))
    with Server(own, *EXACT) as server:
        scores = server.scores(QUERY, TEXTS)
        assert "is not built in: the server uses it as it is" in server.log()
    with Server(usual, *EXACT) as server:
        assert max(abs(a - b) for a, b in zip(scores, server.scores(QUERY, TEXTS))) > 1e-3


def test_one_of_several_files_is_chosen_by_name(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("a.gguf", "b.gguf"):
        write(MODELS / "embedding-last", folder / name, Recipe(pooling=Pooling.LAST, add_eos=True))
    assert "choose one with `--gguf-file`: a.gguf, b.gguf" in refusal(folder)
    assert "has no GGUF file `c.gguf`; its GGUF files: a.gguf, b.gguf" in refusal(folder, "--gguf-file", "c.gguf")
    assert "name different files" in refusal(folder / "a.gguf", "--gguf-file", "b.gguf")
    asked = ("rerank", "--query", "x", "y")
    for flags, environment in (
        (("--model-id", f"{folder}:a.gguf"), {}),
        (("--model-id", str(folder), "--gguf-file", "b.gguf"), {}),
        (("--model-id", str(folder)), {"GGUF_FILE": "b.gguf"}),
    ):
        ended = run(*asked, *flags, environment=environment)
        # The file was found and read if the error says that an embedding model does not re-rank.
        assert ended.returncode != 0 and "embedding" in ended.stderr, ended.stderr
    (folder / "b.gguf").unlink()
    with Server(folder) as server:
        assert server.get("/info").json()["weights"] == "a.gguf (GGUF: F32)"


def recipes(**fields: object):
    return lambda folder: write(MODELS / "tied-bf16", folder / "file.gguf", Recipe(**fields))


def of(model: Path, **fields: object):
    return lambda folder: write(model, folder / "file.gguf", Recipe(**fields))


def cut(keep: int):
    def change(folder: Path) -> Path:
        file = recipes()(folder)
        content = file.read_bytes()
        file.write_bytes(content[:keep])
        return file

    return change


BERT = SERVED / "bert-cross-encoder"
REFUSED = {
    "an architecture that is not known": (
        recipes(metadata={"general.architecture": "mamba"}),
        "(`general.architecture`) is \"mamba\", which is not supported",
    ),
    "words that are cut by an unknown rule": (recipes(pre="tekken"), "(`tokenizer.ggml.pre`) is \"tekken\""),
    "a vocabulary of another kind": (
        recipes(metadata={"tokenizer.ggml.model": "llama"}),
        "(`tokenizer.ggml.model`) is \"llama\"",
    ),
    "no vocabulary": (recipes(metadata={"tokenizer.ggml.tokens": None}), "no vocabulary"),
    "no sizes": (recipes(metadata={"qwen3.block_count": None}), "`qwen3.block_count` is missing or not a number"),
    "layers without end": (recipes(metadata={"qwen3.block_count": 2**31 - 1}), "there are tensors of 3 layers"),
    "heads of gigabytes": (
        recipes(metadata={"qwen3.attention.key_length": 2**31 - 2, "qwen3.attention.value_length": 2**31 - 2}),
        "`qwen3.attention.head_count` does not fit the shape",
    ),
    "a width of gigabytes": (
        recipes(metadata={"qwen3.embedding_length": 2**31 - 2}),
        "does not fit the shape",
    ),
    "an endless MLP": (
        recipes(metadata={"qwen3.feed_forward_length": 2**31 - 2}),
        "`qwen3.feed_forward_length` does not fit the shape",
    ),
    "rotary positions that are stretched": (
        recipes(metadata={"qwen3.rope.scaling.type": "yarn"}),
        "`qwen3.rope.scaling.type` is \"yarn\"",
    ),
    "a BERT that does not see what is behind": (
        of(SERVED / "bert-embedding-mean", metadata={"bert.attention.causal": True}),
        "`bert.attention.causal` is true",
    ),
    "divisors of positions that are none": (
        lambda folder: write(scaled_llama(folder, factor=-8.0), folder / "file.gguf", Recipe()),
        "`rope_freqs.weight` has numbers that cannot be divisors",
    ),
    "an unknown pooling": (recipes(metadata={"qwen3.pooling_type": 9}), "`qwen3.pooling_type` must be 0"),
    "a re-ranker without its head": (
        recipes(rerank=True, without=("cls.output.weight",)),
        "its head was left out",
    ),
    "a cross-encoder without its head": (
        of(BERT, pooling=Pooling.RANK, without=("cls.output.weight", "cls.output.bias", "cls.weight", "cls.bias")),
        "its head was left out",
    ),
    "a cross-encoder without its pooler": (
        of(BERT, pooling=Pooling.RANK, without=("cls.weight", "cls.bias")),
        "it has `cls.output.weight` and no `cls.weight`",
    ),
    "a cross-encoder by its name only": (
        of(BERT, name="bge reranker", without=("cls.output.weight", "cls.output.bias", "cls.weight", "cls.bias")),
        "its head was left out",
    ),
    "a missing layer": (recipes(rerank=True, without=("blk.0.ffn_down.weight",)), "no tensor `layers.0.mlp.down_proj.weight`"),
    "one part of several": (recipes(metadata={"split.count": 3}), "llama-gguf-split --merge"),
    "a file that ends in its metadata": (cut(1000), "claim to be a list of"),
    "a file that ends in its tensors": (cut(200_000), "does not fit its place in the file"),
}


@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_a_block_with_an_infinite_scale_is_refused(dtype, tmp_path):
    name = "blk.1.attn_q.weight"
    file = write(MODELS / "tied-bf16", tmp_path / "file.gguf", Recipe("Q4_0", rerank=True))
    start = int(next(tensor.data_offset for tensor in gguf.GGUFReader(file).tensors if tensor.name == name))
    content = bytearray(file.read_bytes())
    content[start : start + 2] = np.float16(np.inf).tobytes()
    file.write_bytes(content)
    message = refusal(file, "--dtype", dtype)
    assert "first answer is not a number: tensor `model.layers.1.self_attn.q_proj.weight`" in message, message


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_cannot_be_right_is_refused(case, tmp_path):
    make, part = REFUSED[case]
    message = refusal(make(tmp_path))
    assert part in message, message
