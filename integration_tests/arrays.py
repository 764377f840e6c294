"""Tensors of safetensors files as numpy arrays.

Input: `models.Tensor`, with the bytes of a file. Output: float32 arrays.
"""

import models
import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64}


def values(tensor: models.Tensor) -> np.ndarray:
    """The values of a tensor, as float32."""
    if tensor.dtype == "BF16":
        # bfloat16 is the upper half of float32.
        bits = np.frombuffer(bytes(tensor.data), np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tensor.shape)
    return np.frombuffer(bytes(tensor.data), TYPES[tensor.dtype]).astype(np.float32).reshape(tensor.shape)
