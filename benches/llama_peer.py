#!/usr/bin/env python3
"""llama.cpp as a peer, through `llama-cpp-python`. It computes one text after the other and, like its
server's prompt cache, keeps the beginning that a text shares with the one before it.

usage: llama_peer.py MODEL_FOLDER GGUF THREADS; see peer.py for its input and output."""

import ctypes
import sys

import llama_cpp
from peer import Prompts, serve, sigmoid

CONTEXT = 4096
# Tokens passed in one call, and tokens computed at once, which is llama.cpp's own default.
BATCH, MICRO_BATCH = 2048, 512


class Llama:
    """A context with a single sequence."""

    def __init__(self, path: str, threads: int):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = CONTEXT, BATCH, MICRO_BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            sys.exit(f"{path}: llama.cpp cannot make a context for this file")
        self.known: list[int] = []

    def logits(self, ids: list[int]):
        """The logits after the last token."""
        same = (i for i, (a, b) in enumerate(zip(self.known, ids)) if a != b)
        # The last token is always computed, because its logits are needed.
        shared = min(next(same, min(len(self.known), len(ids))), len(ids) - 1)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, shared, -1)
        self.known = self.known[:shared]
        for start in range(shared, len(ids), BATCH):
            part = ids[start : start + BATCH]
            tokens = (ctypes.c_int32 * len(part))(*part)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(part))):
                sys.exit("llama.cpp failed to decode a batch")
            self.known += part
        return llama_cpp.llama_get_logits_ith(self.context, -1)


def main() -> None:
    folder, path, threads = sys.argv[1:]
    prompts = Prompts(folder)
    llama = Llama(path, int(threads))

    def score(ids: list[list[int]], _batch: int) -> list[float]:
        logits = map(llama.logits, ids)
        return [sigmoid(of_text[prompts.yes] - of_text[prompts.no]) for of_text in logits]

    serve(prompts, score)


if __name__ == "__main__":
    main()
