"""`--backend python` with PyTorch: its values equal sentence-transformers'.

Input: PYTHON_BACKEND_PYTHON, an interpreter with torch and sentence-transformers (`make
python-backend-test`). sentence-transformers computes the references in the same interpreter, text by text.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import models
import numpy
import pytest
from fake_hub import FakeHub
from python_backend import (
    INTERPRETER,
    SERVED,
    TEXTS,
    TORCH_LIMIT,
    ask,
    children,
    close,
    embedded,
    killed_under_load,
    refused,
    torch_server,
    wait_for_end,
)
from server import BINARY, MODELS, refusal, variables

pytestmark = pytest.mark.skipif(
    not INTERPRETER,
    reason="PYTHON_BACKEND_PYTHON names no interpreter with torch and sentence-transformers (`make python-backend-test`)",
)

PAIRS = [["What is the capital of China?", text] for text in TEXTS]
# The beginning of the programs for `ask`.
LOAD = (
    "import torch\nfrom sentence_transformers import SentenceTransformer, CrossEncoder\n"
    "exact = {'device': 'cpu', 'model_kwargs': {'dtype': torch.float32}}\n"
)
VECTORS = LOAD + "answer = SentenceTransformer(folder, **exact).encode(texts, batch_size=1).tolist()"
LOGITS = LOAD + (
    "model = CrossEncoder(folder, **exact)\n"
    "answer = model.predict(pairs, batch_size=1, activation_fn=torch.nn.Identity()).tolist()"
)


def small(folder: Path, program: str, tokenizer: Path) -> Path:
    """Makes a small random model with `program`, which uses transformers, and a fixture's tokenizer."""
    root = folder / "small"
    root.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (root / name).write_bytes((tokenizer / name).read_bytes())
    # Otherwise sentence-transformers would not cut texts at 512 positions, where this server cuts them.
    models.edit_json(root / "tokenizer_config.json", model_max_length=512)
    vocabulary = len(json.loads((root / "tokenizer.json").read_text())["model"]["vocab"]) + 10
    head = "import torch, transformers as hf\ntorch.manual_seed(7)\n"
    ask(head + program + "\nmodel.save_pretrained(folder)\nanswer = None", folder=str(root), vocabulary=vocabulary)
    return root


def torch_refusal(model: str | Path, *flags: str) -> str:
    """Like `refused`, with enough time to import PyTorch."""
    return refused("--python", INTERPRETER, *flags, model=model, limit=TORCH_LIMIT)


@pytest.mark.parametrize("folder", [MODELS / "embedding-mean-dense", MODELS / "embedding-last", SERVED / "mpnet-embedding"])
def test_vectors_are_those_of_sentence_transformers(folder: Path) -> None:
    expected = ask(VECTORS, folder=str(folder), texts=TEXTS)
    with torch_server(folder) as server:
        close(embedded(server, TEXTS), expected)
        for text, vector in zip(TEXTS, expected, strict=True):
            close(embedded(server, [text]), [vector])
        info = server.get("/info").json()
        assert (info["backend"], info["model_dtype"], info["instruction_set"]) == ("python", "float32", None)
        answer = server.post("/embed", {"inputs": TEXTS[0]})
        assert answer.headers["x-compute-type"] == "cpu"
        assert "float32 by python (torch " in server.log()


def test_the_vectors_of_tokens_are_those_of_sentence_transformers() -> None:
    folder = SERVED / "bert-embedding-mean"
    program = LOAD + (
        "model = SentenceTransformer(folder, **exact)\n"
        "answer = [model.encode(text, output_value='token_embeddings').tolist() for text in texts]"
    )
    expected = ask(program, folder=str(folder), texts=TEXTS)
    with torch_server(folder) as server:
        answer = server.post("/embed_all", {"inputs": TEXTS})
        assert answer.status_code == 200, answer.text
        for found, vectors in zip(answer.json(), expected, strict=True):
            close(found, vectors)


@pytest.mark.parametrize("name", ["bert-cross-encoder", "xlm-roberta-reranker", "ettin-modular"])
def test_raw_scores_are_those_of_a_cross_encoder(name: str) -> None:
    expected = ask(LOGITS, folder=str(SERVED / name), pairs=PAIRS)
    with torch_server(SERVED / name) as server:
        close(server.scores(PAIRS[0][0], TEXTS), expected)
        close([server.scores(PAIRS[0][0], [text])[0] for text in TEXTS], expected)


def test_a_classifier_s_logits_are_those_of_a_cross_encoder() -> None:
    expected = ask(LOGITS, folder=str(SERVED / "bert-classifier-3"), pairs=PAIRS)
    with torch_server(SERVED / "bert-classifier-3") as server:
        answer = server.post("/predict", {"inputs": PAIRS, "raw_scores": True})
        assert answer.status_code == 200, answer.text
        labels = json.loads((SERVED / "bert-classifier-3/config.json").read_text())["id2label"]
        found = [{entry["label"]: entry["score"] for entry in entries} for entries in answer.json()]
        close([[scores[labels[str(index)]] for index in range(3)] for scores in found], expected)


def only_in_python(folder: Path, kind: str, sizes: str, model: str, tokenizer: Path) -> Path:
    """A small random model of transformers that no other backend has: the default backend must refuse it."""
    program = f"config = hf.{kind}Config(vocab_size=vocabulary, {sizes})\nmodel = hf.{kind}{model}(config)"
    root = small(folder, program, tokenizer)
    message = refusal(root)
    assert kind.lower() in message.lower() and "`--backend python` may serve it" in message, message
    return root


def test_an_architecture_that_only_python_has(tmp_path: Path) -> None:
    sizes = "embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24"
    root = only_in_python(tmp_path, "Albert", sizes, "Model", SERVED / "bert-embedding-mean")
    expected = ask(VECTORS, folder=str(root), texts=TEXTS)
    with torch_server(root, "--pooling", "mean") as server:
        close(embedded(server, TEXTS), expected)
    # Without the flag, the first token's vector, as for every BERT whose files do not name a pooling.
    program = VECTORS.replace("**exact).", "**exact)\nmodel[1].pooling_mode = 'cls'\nanswer = model.")
    program = program.replace("answer = SentenceTransformer", "model = SentenceTransformer")
    with torch_server(root) as server:
        close(embedded(server, TEXTS), ask(program, folder=str(root), texts=TEXTS))


def test_a_cross_encoder_that_only_python_has(tmp_path: Path) -> None:
    sizes = "hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, num_labels=1, embedding_size=32"
    root = only_in_python(tmp_path, "SqueezeBert", sizes, "ForSequenceClassification", SERVED / "bert-cross-encoder")
    expected = ask(LOGITS, folder=str(root), pairs=PAIRS)
    with torch_server(root) as server:
        close(server.scores(PAIRS[0][0], TEXTS), expected)


@pytest.mark.parametrize("stated", [None, 24])
def test_texts_are_cut_where_sentence_transformers_cuts_them(tmp_path: Path, stated: int | None) -> None:
    """`model_max_length` of tokenizer_config.json counts unless sentence_bert_config.json has
    `max_seq_length`."""
    root = models.copy("embedding-mean-dense", tmp_path)
    models.edit_json(root / "tokenizer_config.json", model_max_length=16)
    settings = root / "sentence_bert_config.json"
    models.edit_json(settings, lambda content: content.pop("max_seq_length", None))
    if stated:
        models.edit_json(settings, max_seq_length=stated)
    long = [" ".join(TEXTS), *TEXTS]
    program = LOAD + (
        "model = SentenceTransformer(folder, **exact)\n"
        "answer = [model.max_seq_length, model.encode(texts, batch_size=1).tolist()]"
    )
    longest, expected = ask(program, folder=str(root), texts=long)
    assert longest == (stated or 16)
    with torch_server(root) as server:
        assert server.get("/info").json()["max_input_length"] == longest
        answer = server.post("/embed", {"inputs": long, "normalize": False, "truncate": True})
        assert answer.status_code == 200, answer.text
        close(answer.json(), expected)


def test_weights_in_a_pickle(tmp_path: Path) -> None:
    root = models.copy("embedding-mean-dense", tmp_path)
    expected = ask(VECTORS, folder=str(root), texts=TEXTS)
    program = (
        "import torch, safetensors.torch\nfor name in ['', '2_Dense/']:\n"
        "    torch.save(safetensors.torch.load_file(folder + name + 'model.safetensors'), folder + name + 'pytorch_model.bin')\n"
        "answer = None"
    )
    ask(program, folder=f"{root}/")
    for path in root.rglob("model.safetensors"):
        path.unlink()
    with torch_server(root) as server:
        close(embedded(server, TEXTS), expected)


def test_lower_precision_is_the_requested_one() -> None:
    folder = MODELS / "embedding-mean-dense"
    exact = numpy.array(ask(VECTORS, folder=str(folder), texts=TEXTS))
    for dtype in ("bfloat16", "float16"):
        with torch_server(folder, "--dtype", dtype) as server:
            assert server.get("/info").json()["model_dtype"] == dtype
            found = numpy.array(embedded(server, TEXTS))
            assert 1e-5 < numpy.abs(found - exact).max() < 0.05


def test_a_tokenizer_that_is_not_the_model_s_own_is_refused(tmp_path: Path) -> None:
    # XLNet's tokenizers give the last token a type of its own, which the router cannot send.
    program = (
        "config = hf.XLNetConfig(vocab_size=vocabulary, d_model=32, n_layer=2, n_head=2, d_inner=24)\n"
        "model = hf.XLNetModel(config)"
    )
    root = small(tmp_path, program, SERVED / "bert-embedding-mean")
    tokenizer = json.loads((root / "tokenizer.json").read_text())
    for part in tokenizer["post_processor"].get("single", []):
        next(iter(part.values()))["type_id"] = 2
    (root / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = torch_refusal(root, "--pooling", "mean")
    assert "token_type_ids" in message and "tokenizer.json" in message, message


def test_code_of_the_model_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    root = models.copy("embedding-mean-dense", tmp_path)
    expected = ask(VECTORS, folder=str(root), texts=TEXTS)
    (root / "doubling.py").write_text(
        "import torch\n\n\nclass Doubling(torch.nn.Module):\n"
        "    def forward(self, features):\n"
        "        features['sentence_embedding'] = 2 * features['sentence_embedding']\n        return features\n\n"
        "    @classmethod\n    def load(cls, *arguments, **fields):\n        return cls()\n"
    )
    entry = {"idx": 4, "name": "4", "path": "", "type": "doubling.Doubling"}
    path = root / "modules.json"
    path.write_text(json.dumps([*json.loads(path.read_text()), entry]))
    message = torch_refusal(root)
    assert "doubling.Doubling" in message and "--trust-remote-code" in message, message
    with torch_server(root, "--trust-remote-code") as server:
        close(embedded(server, TEXTS), 2 * numpy.array(expected))
        assert "--trust-remote-code" in server.log()


def test_a_worker_that_is_killed_costs_its_batch_and_no_other() -> None:
    with torch_server(MODELS / "embedding-mean-dense", "--max-batch-requests", "4") as server:
        expected = embedded(server, TEXTS)
        (worker,) = children(server.process.pid)
        killed_under_load(server, worker)
        close(embedded(server, TEXTS), expected)


def test_the_worker_ends_with_a_server_that_is_killed() -> None:
    server = torch_server(MODELS / "embedding-mean-dense")
    (worker,) = children(server.process.pid)
    # A stopped worker does not notice that the server has ended: only the kernel can end it.
    os.kill(worker, signal.SIGSTOP)
    server.process.kill()
    wait_for_end(worker, TORCH_LIMIT)
    server._close()


def test_from_the_hub(tmp_path: Path) -> None:
    folder = MODELS / "embedding-mean-dense"
    others = {"onnx/model.onnx": b"x", "code.py": b"raise SystemExit", "README.md": b"# A model", "2_Dense/pytorch_model.bin": b"x"}
    more = {"deep/er/notes.txt": b"words", "vocab.txt": b"a"}

    def download(cache: str, *flags: str) -> set[str]:
        environment = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / cache), "HOME": str(tmp_path)}
        arguments = [str(BINARY), "download", "owner/model", "--backend", "python", *flags]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=TORCH_LIMIT, env=variables(environment))
        assert ended.returncode == 0, ended.stderr
        (snapshot,) = (tmp_path / cache).glob("models--owner--model/snapshots/*")
        return {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}

    own = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    with FakeHub("owner/model", folder, more=others | more) as hub:
        assert download("untrusted") == own | set(more)
        assert download("trusted", "--trust-remote-code") == own | set(more) | {"code.py"}
    (snapshot,) = (tmp_path / "untrusted").glob("models--owner--model/snapshots/*")
    with torch_server(snapshot) as server:
        close(embedded(server, TEXTS), ask(VECTORS, folder=str(folder), texts=TEXTS))
