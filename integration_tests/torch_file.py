"""Writes files in the format of `torch.save` without PyTorch: a zip archive of a pickle and the values of
each storage.

The Rust tests read files that PyTorch itself wrote, in `integration_tests/reference/fixtures/pickles/`.
"""

import struct
import zipfile
from pathlib import Path

import models

CLASSES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "I64": "LongStorage"}
DICTIONARY = b"ccollections\nOrderedDict\n)R"


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _numbers(values: list[int]) -> bytes:
    return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"


def _tensor(key: str, tensor: models.Tensor, transposed: bool) -> bytes:
    shape = tensor.shape
    size, strides = 1, []
    for length in reversed(shape):
        strides.insert(0, size)
        size *= length
    if transposed:
        strides = [1, shape[0]]
    storage = _text("storage") + f"ctorch\n{CLASSES[tensor.dtype]}\n".encode() + _text(key) + _text("cpu")
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + (b"(" + storage + b"J" + struct.pack("<i", size) + b"tQ")
        + (b"K\x00" + _numbers(shape) + _numbers(strides) + b"\x89" + DICTIONARY + b"tR")
    )


def write(path: Path, tensors: dict[str, models.Tensor], transposed: tuple[str, ...] = (), tied: dict[str, str] | None = None) -> None:
    """Writes tensors. Those named in `transposed` are stored column by column; each name in `tied` shares the
    storage of the tensor that it maps to."""
    keys = {name: str(index) for index, name in enumerate(tensors)}
    program = b"\x80\x02" + DICTIONARY + b"("
    for name, tensor in tensors.items():
        program += _text(name) + _tensor(keys[name], tensor, name in transposed)
    for name, other in (tied or {}).items():
        program += _text(name) + _tensor(keys[other], tensors[other], other in transposed)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", program + b"u.")
        archive.writestr("archive/byteorder", b"little")
        for name, tensor in tensors.items():
            data = bytes(tensor.data)
            if name in transposed:
                width, (rows, columns) = models.WIDTHS[tensor.dtype], tensor.shape
                value = [data[start : start + width] for start in range(0, len(data), width)]
                data = b"".join(value[row * columns + column] for column in range(columns) for row in range(rows))
            archive.writestr(f"archive/data/{keys[name]}", data)
        archive.writestr("archive/version", b"3\n")
