"""Computes with transformers and ONNX Runtime for `test_trained.py`. Runs in an interpreter with PyTorch.

Input: a JSON object on stdin with the `method` below, and its arguments. Output: a JSON list on stdout with a
row for each text.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def unit(vector: np.ndarray) -> list[float]:
    return (vector / np.linalg.norm(vector)).tolist()


def pooled(states: np.ndarray, pooling: str) -> list[float]:
    return unit(states[0] if pooling == "cls" else states.mean(axis=0))


def tokenizer_of(folder: str, longest: int):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer


def convert_words(folder: str) -> list:
    """Writes the `tokenizer.json` of a folder that has BERT's list of words alone."""
    path = Path(folder)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    tokenizer = transformers.BertTokenizerFast(str(path / "vocab.txt"), **settings)
    tokenizer.backend_tokenizer.save(str(path / "tokenizer.json"))
    return []


def ids(folder: str, texts: list[str]) -> list[list[int]]:
    """By tokenizers, without a limit."""
    tokenizer = tokenizer_of(folder, 2**30)
    return [tokenizer.encode(text).ids for text in texts]


def sentence_transformers(folder: str, texts: list[str]) -> list[dict]:
    """By sentence-transformers, from a folder with its files."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    vectors = model.encode(texts, batch_size=1, normalize_embeddings=True)
    ids = [model.tokenizer(text, truncation=True, max_length=model.max_seq_length)["input_ids"] for text in texts]
    return [{"ids": row, "values": vector.tolist()} for row, vector in zip(ids, vectors)]


def encoder(folder: str, texts: list[str], pooling: str, longest: int) -> list[dict]:
    """By transformers, in float32."""
    tokenizer = tokenizer_of(folder, longest)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        rows.append({"ids": ids, "values": pooled(states, pooling)})
    return rows


def static_model(folder: str, texts: list[str]) -> list[dict]:
    """By model2vec, from a folder with its files."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder)
    vectors = model.encode(texts)
    longest = model.max_length * model.median_token_length
    ids = model.tokenize([text[:longest] for text in texts])
    return [{"ids": row, "values": vector.tolist()} for row, vector in zip(ids, vectors)]


def graph(folder: str, texts: list[str], pooling: str, longest: int) -> list[dict]:
    """By ONNX Runtime: vectors, or the logits of a classifier if `pooling` is empty."""
    import onnxruntime

    tokenizer = tokenizer_of(folder, longest)
    session = onnxruntime.InferenceSession(str(Path(folder) / "onnx/model.onnx"))
    names = {entry.name for entry in session.get_inputs()}
    rows = []
    for text in texts:
        encoded = tokenizer.encode(text)
        inputs = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        output = session.run(None, {name: np.array([row], np.int64) for name, row in inputs.items() if name in names})[0][0]
        rows.append({"ids": encoded.ids, "values": pooled(output, pooling) if pooling else output.astype(float).tolist()})
    return rows


def answers(file: str, prompts: list[list[int]], yes: int, no: int) -> list[float]:
    """The difference of two tokens' logits after each prompt, by transformers from a GGUF file."""
    path = Path(file)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    rows = []
    for ids in prompts:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        rows.append(float(logits[yes] - logits[no]))
    return rows


def mteb(questions: dict, folder: str, url: str, is_reranking: bool) -> list[dict]:
    """The measures by mteb of the server at `url`, and of sentence-transformers with the model in `folder`.
    A re-ranking task ranks `candidates`, another one all documents."""
    import mteb as library
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata
    from sentence_transformers import SentenceTransformer

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
    from text_embeddings_router import Client
    from text_embeddings_router.evaluation.mteb_models import MtebCrossEncoder, MtebEncoder

    def dataset(texts: dict[str, str]) -> Dataset:
        return Dataset.from_list([{"id": name, "text": text, "title": ""} for name, text in texts.items()])

    class Questions(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="Questions", description="Judged questions.", category="t2t",
            type="Reranking" if is_reranking else "Retrieval", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10",
            dataset={"path": "none", "revision": "none"},
        )

        def load_data(self, num_proc: int | None = None, **_: object) -> None:
            split = RetrievalSplitData(
                queries=dataset(questions["queries"]), corpus=dataset(questions["documents"]),
                relevant_docs=questions["grades"],
                top_ranked=questions["candidates"] if is_reranking else None,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    with Client(url, timeout=600) as client:
        served = MtebCrossEncoder(client) if is_reranking else MtebEncoder(client)
        results = [library.evaluate(each, Questions(), cache=None, show_progress_bar=False) for each in (served, model)]
    return [{"name": each.model_name, **each.task_results[0].scores["test"][0]} for each in results]


METHODS = {method.__name__: method for method in (convert_words, ids, sentence_transformers, encoder, static_model, graph, answers, mteb)}

if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps(METHODS[request.pop("method")](**request)))
