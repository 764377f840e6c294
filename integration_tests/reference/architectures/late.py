"""Writes fixtures/late/: late-interaction models (ColBERT) in the layouts of PyLate, of Stanford and of
sentence-transformers, with the vectors and scores of sentence-transformers, which reads all of them.

Run `python -m architectures.late [NAME…]` in the folder above; without names, all are made. PyLate 1.6 itself
does not run with sentence-transformers 6.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import sentence_transformers
import torch
from cases import MARS, PLANET, TULSA
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from tokenizers import AddedToken

from .fixture import FOLDER as ARCHITECTURES
from .fixture import Fixture, folder_bytes, numbers, random_tensor, store, write_json
from .decoders import QWEN3
from .encoders import EUROBERT, JINA_V3, SMALL
from .lfm2 import LFM2
from .lfm2 import layers as lfm2_layers
from .served import BERT, MODERNBERT, ROBERTA, model, special_ids
from .served_expected import JUPITER, LONG, SATURN, VENUS
from .served_tokenizers import KINDS as TOKENIZERS
from .served_tokenizers import Made

FOLDER = ARCHITECTURES.parent / "late"
QUERIES = [PLANET, "red", LONG]
DOCUMENTS = [VENUS, MARS, JUPITER, SATURN, TULSA, "a", "!?., -", LONG]
FLOAT = torch.float32


@dataclass(frozen=True)
class Late:
    """A folder: its body, tokenizer, width of vectors, and PyLate's settings."""

    body: str
    config: dict
    tokenizer: str
    seed: int
    width: int
    query_length: int
    document_length: int
    expansion: bool = True
    attended: bool = False
    # Stanford's layout, with this prefix of the body's tensors.
    stanford: str | None = None
    # Kept punctuation.
    skipped: list[str] | None = None
    # The layout of sentence-transformers: the texts before queries and documents.
    prompts: tuple[str, str] | None = None
    # There, the number of tokens up to which shorter queries are filled, and the widths of dense modules with
    # residuals before the last one.
    fill: int | None = None
    residuals: tuple[int, ...] = ()


MARKERS = {None: ["[Q] ", "[D] "], "bert": ["[unused0]", "[unused1]"], "roberta": ["[QueryMarker]", "[DocumentMarker]"]}

FIXTURES = {
    "colbert-pylate": Late("BertModel", BERT, "bert", 401, 17, 32, 40),
    "colbert-attended": Late("XLMRobertaModel", ROBERTA, "xlm-roberta", 402, 9, 21, 33, attended=True),
    "colbert-modern": Late("ModernBertModel", MODERNBERT, "modernbert", 403, 12, 24, 50, expansion=False, skipped=[]),
    "colbert-eurobert": Late("EuroBertModel", EUROBERT, "modernbert", 407, 11, 26, 34),
    "colbert-qwen3": Late("Qwen3Model", QWEN3 | {"is_causal": False}, "qwen2", 408, 14, 22, 31, attended=True, prompts=("[Q] ", "[D] "), fill=22),
    "colbert-lfm2": Late("Lfm2Model", LFM2 | lfm2_layers("cfcc") | {"hidden_size": 24}, "gemma", 409, 10, 21, 33),
    "colbert-own": Late("BertModel", BERT, "bert", 405, 17, 32, 40, prompts=("[Q] ", "[D] "), fill=32, skipped=["!", ","]),
    "colbert-prompts": Late(
        "ModernBertModel",
        MODERNBERT,
        "modernbert",
        406,
        12,
        30,
        50,
        attended=True,
        prompts=("query: ", "document: "),
        fill=15,
        residuals=(28, 28),
    ),
    "colbert-jina": Late("JinaEmbeddingsV3Model", SMALL | JINA_V3, "xlm-roberta", 410, 16, 32, 37, attended=True, stanford="roberta"),
    "colbert-stanford": Late("BertModel", BERT, "bert", 404, 13, 32, 44, stanford="bert"),
}


def with_markers(made: Made, markers: list[str]) -> None:
    """Adds the markers as PyLate does: plain added tokens, with their space."""
    made.tokenizer.add_tokens(markers)


def save_parts(folder: Path, late: Late) -> tuple[Made, Fixture]:
    """Saves body and tokenizer, with the markers in the vocabulary."""
    made = TOKENIZERS[late.tokenizer]()
    if late.prompts is None:
        with_markers(made, MARKERS[late.stanford])
    elif late.prompts[0] == "[Q] ":
        # As sentence-transformers saves the markers of a folder that it converts.
        made.tokenizer.add_special_tokens([AddedToken(prompt, special=True, normalized=False) for prompt in late.prompts])
    body = model(late.body, late.config, late.seed, FLOAT)(special_ids(made))
    store(folder, body)
    made.write(folder, 72)
    return made, body


def projection(folder: Path, late: Late) -> torch.Tensor:
    """The random matrix from hidden states to vectors."""
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    return random_tensor("linear.weight", (late.width, hidden), late.seed, 1.5, 1.0)


def save_pylate(folder: Path, late: Late) -> None:
    """PyLate's layout."""
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", rows)
    weight = projection(folder, late)
    (folder / "1_Dense").mkdir()
    identity = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": weight.shape[1], "out_features": late.width, "bias": False}
    write_json(folder / "1_Dense/config.json", sizes | {"activation_function": identity, "use_residual": False})
    save_file({"linear.weight": weight}, folder / "1_Dense/model.safetensors", {"format": "pt"})
    (folder / "1_Dense/model.safetensors").chmod(0o644)
    # PyLate leaves the length of its last call.
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 31, "do_lower_case": False})
    settings = {"model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim"}
    settings |= {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": late.query_length}
    settings |= {"document_length": late.document_length, "do_query_expansion": late.expansion}
    settings |= {"attend_to_expansion_tokens": late.attended}
    settings |= {} if late.skipped is None else {"skiplist_words": late.skipped}
    write_json(folder / "config_sentence_transformers.json", settings)


def save_own(folder: Path, late: Late) -> None:
    """The layout of sentence-transformers, written by it."""
    strategy = "fixed" if late.fill == late.query_length else "min"
    expansion = {"strategy": strategy, "attend": late.attended, "length": late.fill}
    lengths = {"document_length": late.document_length} | ({} if strategy == "fixed" else {"query_length": late.query_length})
    modules = [Transformer(str(folder), model_kwargs={"dtype": FLOAT}, query_expansion=expansion, **lengths)]
    inputs = modules[0].get_embedding_dimension()
    options = {"bias": False, "activation_function": torch.nn.Identity(), "module_input_name": "token_embeddings"}
    for index, width in enumerate((*late.residuals, late.width)):
        dense = Dense(inputs, width, use_residual=index < len(late.residuals), **options)
        for name, matrix in dense.named_parameters():
            matrix.data = random_tensor(f"{index}.{name}", tuple(matrix.shape), late.seed, 1.5, 1.0)
        modules.append(dense)
        inputs = width
    modules += [MultiVectorMask(skiplist_words=late.skipped), Normalize(module_input_name="token_embeddings")]
    saved = MultiVectorEncoder(modules=modules, prompts=dict(zip(("query", "document"), late.prompts, strict=True)), device="cpu")
    saved.save_pretrained(str(folder), create_model_card=False)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)


def save_stanford(folder: Path, late: Late) -> None:
    """The layout of Stanford's ColBERT: prefixed body and matrix in one file."""
    tensors = {f"{late.stanford}.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = projection(folder, late)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": ["HF_ColBERT"]})
    query, document = MARKERS[late.stanford]
    settings = {"query_token_id": query, "doc_token_id": document, "query_token": "[Q]", "doc_token": "[D]"}
    settings |= {"query_maxlen": late.query_length, "doc_maxlen": late.document_length, "similarity": "cosine"}
    settings |= {"dim": late.width, "mask_punctuation": True, "attend_to_mask_tokens": late.attended, "nbits": 2}
    (folder / "artifact.metadata").write_text(json.dumps(settings, indent=2))


def with_jinas_config(folder: Path) -> None:
    """Replaces transformers' config.json by one with the keys of jina-colbert-v2's, which names code in
    another repository. The tensors have that code's names already: transformers renames them when it reads
    and writes."""
    config = json.loads((folder / "config.json").read_text())
    place = "jinaai/xlm-roberta-flash-implementation--"
    mine = {
        "auto_map": {
            "AutoConfig": f"{place}configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModel": f"{place}modeling_xlm_roberta.XLMRobertaModel",
        },
        "model_type": "xlm-roberta",
        "position_embedding_type": "rotary",
        "rotary_emb_base": config.pop("rope_parameters")["rope_theta"],
        "use_flash_attn": True,
    }
    write_json(folder / "config.json", config | mine)


@torch.no_grad()
def write(name: str) -> str:
    """Makes a folder and its answers, replacing the old ones. Returns a line for the summary."""
    late = FIXTURES[name]
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / name
        fresh.mkdir()
        save_parts(fresh, late)
        save = save_own if late.prompts else save_stanford if late.stanford else save_pylate
        save(fresh, late)
        found = MultiVectorEncoder(str(fresh), device="cpu", local_files_only=True, model_kwargs={"dtype": FLOAT})
        options = {"batch_size": 1, "show_progress_bar": False}
        queries = [found.encode_query([text], **options)[0].float() for text in QUERIES]
        documents = [found.encode_document([text], **options)[0].float() for text in DOCUMENTS]
        scores = [[found.similarity([q], [d])[0, 0].item() for d in documents] for q in queries]
        plain = [[(q @ d.T).max(dim=1).values.sum().item() for d in documents] for q in queries]
        assert (torch.tensor(scores) - torch.tensor(plain)).abs().max() < 1e-4
        rows = {
            "queries": [{"text": t, "vectors": numbers(v)} for t, v in zip(QUERIES, queries, strict=True)],
            "documents": [{"text": t, "vectors": numbers(v)} for t, v in zip(DOCUMENTS, documents, strict=True)],
            "scores": [[float(f"{score:.7g}") for score in row] for row in scores],
        }
        if late.stanford == "roberta":
            with_jinas_config(fresh)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.copytree(fresh, FOLDER / name, copy_function=shutil.copyfile)
    text = json.dumps({"source": f"sentence-transformers {sentence_transformers.__version__}"} | rows, ensure_ascii=False, separators=(",", ":"))
    (FOLDER / f"{name}.expected.json").write_text(text + "\n", encoding="utf-8")
    spread = max(max(row) - min(row) for row in rows["scores"])
    return f"{name:20} {[len(v) for v in queries]} {[len(v) for v in documents]} {folder_bytes(FOLDER / name) / 1000:6.1f} KB, spread {spread:.2f}"


def main() -> None:
    """Makes the named fixtures and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*FIXTURES, []], help="fixtures (default: all)")
    torch.set_num_threads(1)
    for name in parser.parse_args().names or list(FIXTURES):
        print(write(name), flush=True)


if __name__ == "__main__":
    main()
