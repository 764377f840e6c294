"""A GGUF file gives the same answers as the safetensors that it was made from; a file that cannot be read or
understood keeps the server from starting.

`gguf_files.py` makes the files from the reference's models; other tests compare the answers of these models
with `transformers`.
"""

from functools import partial
from pathlib import Path

import gguf
import minilm
import models
import numpy as np
import pytest
from gguf_files import RERANK_PROMPT, Recipe, write
from gguf_models import (
    SERVED,
    bidirectional_llama,
    bidirectional_qwen2,
    cased,
    embedding_gemma,
    eurobert,
    gemma,
    jina_v3,
    lfm2,
    llama,
    nomic_moe,
    padded,
    qwen2,
    scaled_llama,
    with_words,
)
from server import MODELS, Server, refusal, run

Pooling = gguf.PoolingType

QUERY = "Which planet is red?"
TEXTS = ["Mars is red.", "Bread is baked from flour and water 1234.", "naïve 정 can't   <|im_end|> THE [SEP]"]
EXACT = ("--dtype", "float32")
GENERATIVE = ("--model-type", "listwise-reranker")


def trained(_: Path) -> Path:
    """A trained model, for its whole vocabulary."""
    return minilm.folder() or pytest.skip("the package with all-MiniLM-L6-v2 is not installed")


def narrow(model: Path) -> Path:
    """With two rows in the dense layer of the head, as in a file whose classifier llama.cpp took for it."""

    def cut(tensors):
        for name in [name for name in tensors if "pooler.dense" in name]:
            old = tensors[name]
            row = len(old.data) // old.shape[0]
            tensors[name] = models.Tensor(old.dtype, [2, *old.shape[1:]], old.data[: 2 * row])

    models.edit_tensors(model, cut)
    return model


def same(model: Path):
    return lambda folder: model


PRISM = MODELS.parent / "rerankers/Prism-Qwen3.5-Reranker-0.8B"
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
    "Qwen3.5": (same(PRISM), Recipe(name=PRISM.name), (), ()),
    "LFM2": (partial(lfm2, "lfm2-causal"), Recipe(pooling=Pooling.CLS), ("--pooling", "cls"), ()),
    "LFM2 without a causal mask": (partial(lfm2, "lfm2-bidirectional"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "BERT": (
        same(SERVED / "bert-embedding-mean"),
        Recipe(pooling=Pooling.MEAN, without=("cls.weight", "cls.bias")),
        (),
        (),
    ),
    "BERT with padding": (padded, Recipe(pooling=Pooling.MEAN, without=("cls.weight", "cls.bias")), (), ()),
    "BERT with capitals": (
        cased,
        Recipe(
            pooling=Pooling.MEAN,
            without=("cls.weight", "cls.bias"),
            metadata={"tokenizer.ggml.normalizer.lowercase": False, "tokenizer.ggml.normalizer.strip_accents": False},
        ),
        (),
        (),
    ),
    "last token, as early files": (
        same(MODELS / "embedding-last"),
        Recipe(pooling=Pooling.LAST, metadata={"tokenizer.ggml.add_eos_token": None}),
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
    "Nomic": (partial(with_words, "nomic-v1.5"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Nomic with experts": (nomic_moe, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Jina with ALiBi": (partial(with_words, "jina-v2-base"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Jina with ALiBi, halves apart": (
        partial(with_words, "jina-v2-base"), Recipe(pooling=Pooling.MEAN, separate=True), MEAN, ()
    ),
    "Jina for code": (partial(with_words, "jina-v2-code"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Jina for code, halves apart": (
        partial(with_words, "jina-v2-code"), Recipe(pooling=Pooling.MEAN, separate=True), MEAN, ()
    ),
    "Jina with rotary positions": (jina_v3, Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Gemma": (partial(gemma, "gemma-embedding"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "Gemma 3": (partial(gemma, "gemma3-embedding"), Recipe(pooling=Pooling.MEAN), MEAN, ()),
    "MiniLM, trained": (trained, Recipe(pooling=Pooling.MEAN), (), ()),
    "EmbeddingGemma": (embedding_gemma, Recipe(pooling=Pooling.MEAN), (), ()),
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


def test_a_llama_3_begins_with_its_first_token_if_the_file_says_nothing(tmp_path):
    silent = {"tokenizer.ggml.bos_token_id": 7, "tokenizer.ggml.add_bos_token": None}
    file = write(llama(tmp_path), tmp_path / "file.gguf", Recipe(pre="llama-bpe", pooling=Pooling.MEAN, metadata=silent))
    with Server(file, *EXACT) as server:
        assert [row[0]["id"] for row in answers(server)[0]] == [7] * len(TEXTS)


def test_a_gemma_without_its_dense_modules_says_so(tmp_path):
    file = write(embedding_gemma(tmp_path), tmp_path / "file.gguf", Recipe(pooling=Pooling.MEAN, dense=False))
    with Server(file, *EXACT) as server:
        assert "its vectors are not those of EmbeddingGemma" in server.log()
        assert len(answers(server)[1][0]) == 24


def test_a_dense_module_beside_the_file_is_named_by_its_path(tmp_path):
    model = embedding_gemma(tmp_path)
    file = write(model, model / "file.gguf", Recipe(pooling=Pooling.MEAN, dense=False))
    with Server(file, *EXACT, "--dense-path", "2_Dense") as server:
        assert len(answers(server)[1][0]) == 40


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/link.gguf").symlink_to("nothing.gguf")
    monkeypatch.chdir(tmp_path)
    for name in ("models/missing.gguf", "./models/missing.gguf", "models/link.gguf"):
        message = run("rerank", "--query", "x", "y", "--model-id", name).stderr
        assert f"`--model-id {name}` looks like a path, but there is no such directory or file" in message, message
    assert "`owner/name:FILE.gguf` names a GGUF file" in run("rerank", "--query", "x", "y", "--model-id", "owner/name:Q8_0").stderr


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
        (("--model-id", f"{folder}/b.gguf"), {"GGUF_FILE": "", "ONNX_FILE": ""}),
    ):
        ended = run(*asked, *flags, environment=environment)
        # An embedding model ranks by cosine.
        assert ended.returncode == 0 and "score" in ended.stdout, ended.stderr
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
    "words that are cut by an unknown rule": (recipes(pre="kimi-k2"), "(`tokenizer.ggml.pre`) is \"kimi-k2\""),
    "a vocabulary of another kind": (
        recipes(metadata={"tokenizer.ggml.model": "rwkv"}),
        "(`tokenizer.ggml.model`) is \"rwkv\"",
    ),
    "pieces without scores": (
        recipes(metadata={"tokenizer.ggml.model": "llama"}),
        "does not have one score (`tokenizer.ggml.scores`) for each token",
    ),
    "pieces of sentences in a BERT": (
        of(SERVED / "bert-embedding-mean", metadata={"tokenizer.ggml.model": "llama"}),
        "its vocabulary is \"llama\", which is only supported for decoders",
    ),
    "a vocabulary in lower case that cannot be": (
        recipes(metadata={"tokenizer.ggml.normalizer.lowercase": True}),
        "`tokenizer.ggml.normalizer.lowercase` is true, which is only supported for",
    ),
    "a classifier without the layer before it": (
        lambda folder: write(
            narrow(padded(folder)), folder / "file.gguf", Recipe(pooling=Pooling.MEAN)
        ),
        "its classifier (`cls.weight`) lacks the dense layer before it",
    ),
    "a DistilBERT with a head": (
        of(BERT, pooling=Pooling.RANK, without=("token_types.weight",)),
        "it is a DistilBERT with a head",
    ),
    "windows layer by layer": (
        lambda folder: write(
            embedding_gemma(folder),
            folder / "file.gguf",
            Recipe(metadata={"gemma-embedding.attention.sliding_window_pattern": [1, 0, 1]}),
        ),
        "`gemma-embedding.attention.sliding_window_pattern` is not a number of layers",
    ),
    "a delta rule of gigabytes": (
        of(PRISM, metadata={"qwen35.ssm.state_size": 2**31 - 2}),
        "`qwen35.ssm.inner_size` does not fit the shape",
    ),
    "an endless convolution": (of(PRISM, metadata={"qwen35.ssm.conv_kernel": 65}), "linear_conv_kernel_dim at most 64"),
    "rotation of more than a head": (of(PRISM, metadata={"qwen35.rope.dimension_count": 18}), "partial_rotary_factor"),
    "experts that nobody counted": (
        lambda folder: write(
            nomic_moe(folder), folder / "file.gguf", Recipe(metadata={"nomic-bert-moe.expert_count": None})
        ),
        "`nomic-bert-moe.expert_count` is missing or not a number",
    ),
    "more experts than there are": (
        lambda folder: write(
            nomic_moe(folder), folder / "file.gguf", Recipe(metadata={"nomic-bert-moe.expert_count": 9})
        ),
        "`encoder.layers.1.mlp.router.layer.weight`",
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
    "rotary positions that are stretched by an unnamed rule": (
        recipes(metadata={"qwen3.rope.scaling.factor": 8.0}),
        "`qwen3.rope.scaling.factor` is 8.0",
    ),
    "an adapter": (
        recipes(metadata={"general.type": "adapter", "qwen3.embedding_length": None}),
        "it is an adapter: merge it into its base",
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
