"""`pytorch_model.bin` answers like safetensors with the same tensors; any other pickle is refused."""

import json
import zipfile
from pathlib import Path

import models
import torch_file
from server import Server, refusal

GENERATIVE = ("--model-type", "listwise-reranker")
QUERY, TEXTS = "red planet", ["Mars is red.", "Bread is baked."]


def scores(model: Path) -> tuple[list[float], str]:
    with Server(model, *GENERATIVE) as server:
        return server.scores(QUERY, TEXTS), server.get("/info").json()["weights"]


def test_one_file_or_several_answer_like_safetensors(tmp_path):
    model = models.copy("untied-bf16-shards", tmp_path)
    expected, stored = scores(model)
    assert stored.endswith(" and 1 more (safetensors: BF16)")
    tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        tensors |= models.read_tensors(file)
        file.unlink()
    (model / "model.safetensors.index.json").unlink()
    # With a transposed matrix.
    name = "model.layers.0.mlp.up_proj.weight"
    whole = model / "pytorch_model.bin"
    torch_file.write(whole, tensors, transposed=(name,))
    assert scores(model) == (expected, "pytorch_model.bin (PyTorch pickle: BF16)")
    assert scores(whole) == scores(model)
    whole.unlink()
    half = len(tensors) // 2
    parts = {
        "pytorch_model-00001-of-00002.bin": dict(list(tensors.items())[:half]),
        "pytorch_model-00002-of-00002.bin": dict(list(tensors.items())[half:]),
    }
    weight_map = {}
    for file, part in parts.items():
        torch_file.write(model / file, part)
        weight_map |= {name: file for name in part}
    index = model / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 10**6}, "weight_map": weight_map}))
    assert scores(model) == (expected, "pytorch_model-00001-of-00002.bin and 1 more (PyTorch pickle: BF16)")
    (model / "pytorch_model-00002-of-00002.bin").unlink()
    assert "`pytorch_model-00002-of-00002.bin` is missing" in refusal(model)


def test_two_names_of_one_storage_are_two_tensors(tmp_path):
    model = models.copy("tied-f32-bare", tmp_path)
    expected, _ = scores(model)
    tensors = models.read_tensors(model / "model.safetensors")
    torch_file.write(model / "pytorch_model.bin", tensors, tied={"lm_head.weight": "embed_tokens.weight"})
    (model / "model.safetensors").unlink()
    assert scores(model)[0] == expected


def test_a_pickle_is_read_and_never_run(tmp_path):
    model = models.copy("tied-f32-bare", tmp_path)
    tensors = models.read_tensors(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    file, proof = model / "pytorch_model.bin", tmp_path / "proof"
    command = f"touch {proof}".encode()
    program = b"\x80\x02cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R."
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", program)
    message = refusal(model, *GENERATIVE)
    assert "pytorch_model.bin: its pickle calls `posix.system`" in message and not proof.exists()
    # Compressed archives are refused without being unpacked.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 20))
    assert "is compressed or encrypted" in refusal(model, *GENERATIVE)
    torch_file.write(file, tensors)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "its zip archive is not readable" in refusal(model, *GENERATIVE)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert "git lfs pull" in refusal(model, *GENERATIVE)
