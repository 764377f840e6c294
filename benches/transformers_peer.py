#!/usr/bin/env python3
"""`transformers` as a peer, used as the model card says (left padding, logits of the last position), in
batches.

usage: transformers_peer.py MODEL_FOLDER float32|bfloat16 cpu|cuda THREADS; see peer.py for its input and
output."""

import sys

import torch
from peer import Prompts, batched, serve, sigmoid
from transformers import AutoModelForCausalLM


def main() -> None:
    folder, dtype, device, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    prompts = Prompts(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval().to(device)

    @torch.inference_mode()
    def score(ids: list[list[int]]) -> list[float]:
        longest = max(map(len, ids))
        padding = [longest - len(text) for text in ids]
        inputs = torch.tensor([[0] * pad + text for pad, text in zip(padding, ids, strict=True)], device=device)
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=device)
        # Without padding no mask is needed, and causal attention is faster without one.
        logits = model(input_ids=inputs, attention_mask=mask if any(padding) else None, logits_to_keep=1, use_cache=False).logits
        answers = logits[:, -1, [prompts.yes, prompts.no]].float()
        return [sigmoid(yes - no) for yes, no in answers.tolist()]

    serve(prompts, lambda ids, batch: batched(ids, batch, score))


if __name__ == "__main__":
    main()
