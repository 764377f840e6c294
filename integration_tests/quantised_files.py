"""Quantised checkpoints: how each method stores a matrix, and the values that the method's own code computes
with.

Each function in METHODS takes a matrix `[outputs, inputs]` and gives two things: the tensors that replace it,
by the ends of their names, and the float32 matrix that they represent. Values are rounded to the nearest step
without any calibration, because these tests are about the format. `python quantised_files.py` compares the
formats with the methods' own packages, if these are installed: compressed-tensors, and the sources of autoawq
and auto-gptq in the folders that AUTOAWQ and AUTOGPTQ name."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

GROUP = 8
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True)
class Method:
    """A method: its `quantization_config`, how it stores a matrix, and its name in the server's log."""

    config: dict
    store: Callable[[np.ndarray], tuple[dict[str, np.ndarray], np.ndarray]]
    said: str


def packed(values: np.ndarray, bits: int, axis: int, order: list[int] | None = None) -> np.ndarray:
    """Packs unsigned `bits`-bit numbers into 32-bit words along an axis, padded with zeros."""
    per_word = 32 // bits
    values = np.moveaxis(values.astype(np.uint32), axis, -1)
    values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % per_word)])
    values = values.reshape(*values.shape[:-1], -1, per_word)
    words = sum(values[..., place] << np.uint32(bits * index) for index, place in enumerate(order or range(per_word)))
    return np.moveaxis(words.astype(np.uint32), -1, axis).view(np.int32)


def asymmetric(matrix: np.ndarray, bits: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers `[outputs, inputs]`, and scales and zeros `[outputs, groups]` for groups of `group` inputs."""
    outputs, inputs = matrix.shape
    parts = matrix.reshape(outputs, inputs // group, group)
    low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
    scales = ((high - low) / (2**bits - 1)).astype(np.float16)
    zeros = np.round(-low / scales.astype(np.float32)).astype(np.int64)
    numbers = np.round(parts / scales.astype(np.float32)[..., None]) + zeros[..., None]
    return np.clip(numbers, 0, 2**bits - 1).reshape(outputs, inputs).astype(np.int64), scales, zeros


def widened(numbers: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return (numbers - zeros[:, groups]).astype(np.float32) * scales.astype(np.float32)[:, groups]


def gptq(bits: int, group: int, *, is_ordered: bool = True, zero: int = 1):
    def store(matrix: np.ndarray):
        inputs = matrix.shape[1]
        size = inputs if group == -1 else group
        groups = np.arange(inputs) // size
        numbers, scales, zeros = asymmetric(matrix, bits, size)
        if not is_ordered:
            # Ordered by activations: each input may belong to any group.
            shuffled = np.random.default_rng(5).permutation(inputs)
            groups, numbers = groups[shuffled], numbers[:, shuffled]
        tensors = {
            "qweight": packed(numbers.T, bits, axis=0),
            "qzeros": packed((zeros.T - zero) % 2**bits, bits, axis=1),
            "scales": scales.T.copy(),
            "g_idx": groups.astype(np.int32),
        }
        return tensors, widened(numbers, scales, zeros, groups)

    return store


def awq(group: int):
    def store(matrix: np.ndarray):
        numbers, scales, zeros = asymmetric(matrix, 4, group)
        tensors = {
            "qweight": packed(numbers.T, 4, axis=1, order=AWQ_ORDER),
            "qzeros": packed(zeros.T, 4, axis=1, order=AWQ_ORDER),
            "scales": scales.T.copy(),
        }
        return tensors, widened(numbers, scales, zeros, np.arange(matrix.shape[1]) // group)

    return store


def compressed_packed(group: int, *, is_symmetric: bool, is_ordered: bool = True):
    def store(matrix: np.ndarray):
        groups = np.arange(matrix.shape[1]) // group
        numbers, scales, zeros = asymmetric(matrix, 4, group)
        if is_symmetric:
            parts = matrix.reshape(len(matrix), -1, group)
            scales = (np.abs(parts).max(-1) / 7.5).astype(np.float16)
            zeros = np.full(scales.shape, 8)
            numbers = np.clip(np.round(parts / scales.astype(np.float32)[..., None]) + 8, 0, 15).reshape(matrix.shape).astype(np.int64)
        tensors = {
            "weight_packed": packed(numbers, 4, axis=1),
            "weight_scale": scales,
            "weight_shape": np.array(matrix.shape, dtype=np.int64),
        }
        if not is_symmetric:
            tensors["weight_zero_point"] = packed(zeros, 4, axis=0)
        if not is_ordered:
            shuffled = np.random.default_rng(6).permutation(matrix.shape[1])
            groups, numbers = groups[shuffled], numbers[:, shuffled]
            tensors |= {"weight_packed": packed(numbers, 4, axis=1), "weight_g_idx": groups.astype(np.int32)}
        return tensors, widened(numbers, scales, zeros, groups)

    return store


def compressed_bytes(matrix: np.ndarray):
    scales = (np.abs(matrix).max(-1, keepdims=True) / 127.5).astype(np.float32)
    numbers = np.clip(np.round(matrix / scales), -128, 127).astype(np.int8)
    return {"weight": numbers, "weight_scale": scales}, numbers.astype(np.float32) * scales


def compressed_group_bytes(matrix: np.ndarray):
    numbers, scales, zeros = asymmetric(matrix, 8, GROUP)
    parts = {"weight": numbers - 128, "weight_zero_point": zeros - 128}
    tensors = {name: part.astype(np.int8) for name, part in parts.items()} | {"weight_scale": scales}
    return tensors, widened(numbers, scales, zeros, np.arange(matrix.shape[1]) // GROUP)


def e4m3_values() -> np.ndarray:
    """The value of each of the 256 bytes of E4M3."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    size[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


class F8(np.ndarray):
    """Bytes of E4M3."""


def fp8(block: tuple[int, int] | None, name: str, shape: Callable[[np.ndarray], np.ndarray] = lambda scales: scales):
    def store(matrix: np.ndarray):
        outputs, inputs = matrix.shape
        rows, columns = block or (1, inputs)
        padded = np.pad(np.abs(matrix), [(0, -outputs % rows), (0, -inputs % columns)])
        largest = padded.reshape(-(-outputs // rows), rows, -(-inputs // columns), columns).max((1, 3))
        scales = shape((largest / 448).astype(np.float32))
        full = np.broadcast_to(scales.reshape(-1, scales.shape[-1] if scales.ndim > 1 else 1), largest.shape)
        of_value = np.repeat(np.repeat(full, rows, 0)[:outputs], columns, 1)[:, :inputs]
        values = e4m3_values()
        finite = np.flatnonzero(np.isfinite(values))
        order = finite[np.argsort(values[finite], kind="stable")]
        middles = (values[order][1:] + values[order][:-1]) / 2
        numbers = order[np.searchsorted(middles, matrix / of_value)].astype(np.uint8)
        return {"weight": numbers.view(F8), name: scales}, values[numbers] * of_value

    return store


def fp8_powers(matrix: np.ndarray):
    """With scales that are powers of two, stored as exponents (E8M0)."""
    tensors, values = fp8((48, 32), "weight_scale_inv", lambda scales: np.exp2(np.ceil(np.log2(scales))))(matrix)
    exponents = np.log2(tensors["weight_scale_inv"]) + 127
    return tensors | {"weight_scale_inv": exponents.astype(np.uint8)}, values


def with_unused(store, unused: Callable[[np.ndarray], dict[str, np.ndarray]]):
    """Adds tensors that the values of the weights do not depend on."""

    def store_all(matrix: np.ndarray):
        tensors, values = store(matrix)
        return tensors | unused(matrix), values

    return store_all


def ones(*names: str):
    """Scales of activations."""
    return lambda _matrix: dict.fromkeys(names, np.ones(1, np.float32))


def compressed(weights: dict) -> dict:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


OF_GROUPS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
METHODS = {
    "gptq": Method({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq(4, GROUP), f"GPTQ, 4 bits in groups of {GROUP}"),
    "gptq-8-bits": Method({"quant_method": "gptq", "bits": 8, "group_size": -1}, gptq(8, -1), "GPTQ, 8 bits"),
    "gptq-biases": Method(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP},
        with_unused(gptq(4, GROUP), lambda matrix: {"bias": np.zeros(len(matrix), np.float16)}),
        "GPTQ, 4 bits",
    ),
    "gptq-by-activations": Method(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, gptq(4, GROUP, is_ordered=False), "GPTQ, 4 bits"
    ),
    "gptq-v2": Method(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"}, gptq(4, GROUP, zero=0), "GPTQ, 4 bits"
    ),
    "awq": Method({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq(GROUP), "AWQ, 4 bits"),
    "compressed-4-bits": Method(compressed(OF_GROUPS), compressed_packed(GROUP, is_symmetric=True), "compressed-tensors, 4 bits in groups"),
    "compressed-4-bits-zeros": Method(
        compressed(OF_GROUPS | {"symmetric": False}), compressed_packed(GROUP, is_symmetric=False), "compressed-tensors, 4 bits"
    ),
    "compressed-4-bits-by-activations": Method(
        compressed(OF_GROUPS | {"actorder": "group"}),
        compressed_packed(GROUP, is_symmetric=True, is_ordered=False),
        "compressed-tensors, 4 bits",
    ),
    "compressed-bytes": Method(
        compressed({"num_bits": 8, "type": "int", "strategy": "channel"}), compressed_bytes, "compressed-tensors, 8 bits"
    ),
    "compressed-bytes-zeros": Method(
        compressed(OF_GROUPS | {"num_bits": 8, "symmetric": False}), compressed_group_bytes, "compressed-tensors, 8 bits in groups"
    ),
    "compressed-fp8": Method(
        compressed({"num_bits": 8, "type": "float", "strategy": "channel"}),
        with_unused(fp8(None, "weight_scale"), ones("input_scale", "output_scale", "k_scale")),
        "(FP8)",
    ),
    "fp8-one-scale": Method(
        {"quant_method": "fp8"}, fp8(None, "weight_scale", lambda scales: scales.max(keepdims=True).reshape(1)), "(FP8)"
    ),
    "fp8-powers": Method(
        {"quant_method": "fp8", "weight_block_size": [48, 32], "scale_fmt": "ue8m0"},
        with_unused(fp8_powers, ones("activation_scale")),
        "FP8 in blocks of 48 × 32",
    ),
    "fp8-blocks": Method(
        {"quant_method": "fp8", "weight_block_size": [48, 32]}, fp8((48, 32), "weight_scale_inv"), "FP8 in blocks of 48 × 32"
    ),
}


def check() -> None:
    """Compares the formats with the packages of their methods."""
    import torch

    matrix = np.random.default_rng(1).normal(size=(64, 128)).astype(np.float32)
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    for name in ("compressed-4-bits", "compressed-4-bits-zeros"):
        tensors, expected = METHODS[name].store(matrix)
        numbers = unpack_from_int32(torch.from_numpy(tensors["weight_packed"]), 4, torch.Size(matrix.shape)).numpy()
        zeros = np.zeros(tensors["weight_scale"].shape)
        if "weight_zero_point" in tensors:
            shape = torch.Size(zeros.shape)
            zeros = unpack_from_int32(torch.from_numpy(tensors["weight_zero_point"]), 4, shape, packed_dim=0).numpy()
        wide = [np.repeat(part.astype(np.float32), GROUP, 1) for part in (zeros, tensors["weight_scale"])]
        assert np.array_equal((numbers - wide[0]) * wide[1], expected), name
        print(f"{name}: as compressed-tensors unpacks it")
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(values, e4m3_values(), equal_nan=True)
    print("E4M3: as torch has it")
    if folder := os.environ.get("AUTOAWQ"):
        sys.path.append(str(Path(folder) / "awq/utils"))
        import packing_utils

        tensors, expected = METHODS["awq"].store(matrix)
        words = [torch.from_numpy(np.ascontiguousarray(tensors[part])) for part in ("qweight", "qzeros", "scales")]
        found = packing_utils.dequantize_gemm(*words, 4, GROUP).float().numpy().T
        assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()  # AutoAWQ multiplies in float16
        print("awq: as AutoAWQ unpacks it")
    if folder := os.environ.get("AUTOGPTQ"):
            # A stand-in for the package itself, which cannot be imported without CUDA libraries.
        for name in ("auto_gptq", "auto_gptq.nn_modules"):
            sys.modules[name] = package = ModuleType(name)
            package.__path__ = [str(Path(folder, *name.split(".")))]
        from auto_gptq.nn_modules.qlinear.qlinear_cuda_old import QuantLinear

        for name, bits, size in (("gptq", 4, GROUP), ("gptq-8-bits", 8, -1)):
            tensors, expected = METHODS[name].store(matrix)
            layer = QuantLinear(bits, size, matrix.shape[1], matrix.shape[0], bias=False, weight_dtype=torch.float32)
            layer.load_state_dict({part: torch.from_numpy(np.ascontiguousarray(tensor)) for part, tensor in tensors.items()}, strict=False)
            layer.scales = torch.from_numpy(tensors["scales"]).float()
            with torch.no_grad():
                found = layer(torch.eye(matrix.shape[1])).numpy().T
            assert np.abs(found - expected).max() < 1e-5, name
            print(f"{name}: as AutoGPTQ computes it")


if __name__ == "__main__":
    check()
