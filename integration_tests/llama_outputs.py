"""Computes with llama.cpp for `test_llama.py`. Runs in an interpreter with llama-cpp-python.

Input: a JSON object on stdin. `quantise` lists files to write: source, target, and llama.cpp's name of the
type. `compute` lists files to compute with: the file, the name of the pooling, the number of values per text,
and texts or lists of ids. `tokenize` lists files without tensors, and texts. Output: a JSON list on stdout,
with the ids and the values of each text of `compute`, then the ids of each text of `tokenize`.
"""

import json
import sys

import llama_cpp

CONTEXT = 512


def quantise(source: str, target: str, kind: str) -> None:
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    # Otherwise the head would be stored in another type.
    parameters.nthread = 2
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), parameters):
        sys.exit(f"llama.cpp cannot write {target}")


def opened(file: str, pooling: str) -> llama_cpp.Llama:
    # Keys and values in F32, so that they add no error of their own.
    return llama_cpp.Llama(
        file,
        embedding=True,
        pooling_type=getattr(llama_cpp, f"LLAMA_POOLING_TYPE_{pooling}"),
        n_ctx=CONTEXT,
        n_batch=CONTEXT,
        n_ubatch=CONTEXT,
        n_threads=2,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        flash_attn=False,
        verbose=False,
    )


def computed(file: str, pooling: str, width: int, texts: list, special: bool) -> list[dict]:
    """`special`: whether the tokenizer adds its special tokens; otherwise it finds those in the text."""
    model = opened(file, pooling)
    found = []
    for text in texts:
        ids = model.tokenize(text.encode(), add_bos=special, special=not special) if isinstance(text, str) else text
        model._ctx.kv_cache_clear()
        model._batch.reset()
        model._batch.add_sequence(ids, 0, False)
        model._ctx.decode(model._batch)
        values = llama_cpp.llama_get_embeddings_seq(model._ctx.ctx, 0)
        found.append({"ids": ids, "values": list(values[:width])})
    return found


def tokenized(file: str, texts: list[str]) -> list[list[int]]:
    """The ids without special tokens. Names of special tokens in a text are text."""
    model = llama_cpp.Llama(file, vocab_only=True, verbose=False)
    special = {model.token_bos(), model.token_eos()}
    ids = [model.tokenize(text.encode(), add_bos=False, special=False) for text in texts]
    # llama.cpp adds them to some kinds of vocabularies in any case.
    return [[id for id in row if id not in special] for row in ids]


def main() -> None:
    request = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    for entry in request.get("quantise", []):
        quantise(*entry)
    answer = [computed(**entry) for entry in request.get("compute", [])]
    answer += [tokenized(**entry) for entry in request.get("tokenize", [])]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
