#!/usr/bin/env python3
"""Writes fixtures/pickles/: files of `torch.save`, and the values of their tensors as JSON.

The tensors are of several types. Some share a storage, some are transposed, one is a parameter. There is a
file in today's format and one in the format before PyTorch 1.6.

usage: pickles.py"""

import json
from collections import OrderedDict
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "fixtures" / "pickles"


def tensors() -> OrderedDict[str, torch.Tensor]:
    shared = torch.arange(12.0).reshape(3, 4)
    return OrderedDict(
        plain=shared,
        transposed=shared.t(),
        rows=shared[1:],
        columns=shared[:, 1:3],
        cube=torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1),
        parameter=torch.nn.Parameter(shared + 0.5),
        half=shared.to(torch.float16) / 3,
        bfloat16=shared.to(torch.bfloat16) / 3,
        whole=torch.arange(3),
        scalar=torch.tensor(2.5),
    )


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    named = tensors()
    torch.save(named, FOLDER / "zip.bin")
    torch.save(named, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
    torch.save({"expanded": torch.ones(1).expand(1000, 1000)}, FOLDER / "expanded.bin")
    torch.save(torch.nn.Linear(2, 2), FOLDER / "module.bin")
    expected = {
        name: {"shape": list(tensor.shape), "values": tensor.detach().float().flatten().tolist()}
        for name, tensor in named.items()
        if name != "whole"
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
