#!/usr/bin/env python3
"""Writes the benchmark's model as a graph for OpenVINO, converted from `transformers` in float32.

Inputs of the graph: `input_ids` and `attention_mask` [texts, longest], padded on the right; `last` [texts],
the index of each text's last token. Output: [texts, 2], the logits of `yes` and `no`.
usage: openvino_graph.py MODEL_FOLDER GRAPH_FILE"""

import sys

import openvino
import torch
from peer import Prompts
from transformers import AutoModelForCausalLM


class Answers(torch.nn.Module):
    """The logits of the two answers after each text's last token."""

    def __init__(self, folder: str):
        super().__init__()
        prompts = Prompts(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.model = model.model
        rows = model.get_output_embeddings().weight[[prompts.yes, prompts.no]]
        self.register_buffer("rows", rows.detach().clone())

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        place = last[:, None, None].expand(-1, 1, hidden.shape[-1])
        return hidden.gather(1, place)[:, 0] @ self.rows.T


def main() -> None:
    folder, path = sys.argv[1:]
    ids = torch.arange(100, 124).reshape(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "last": torch.tensor([11, 8])}
    openvino.save_model(openvino.convert_model(Answers(folder), example_input=inputs), path, compress_to_fp16=False)


if __name__ == "__main__":
    main()
