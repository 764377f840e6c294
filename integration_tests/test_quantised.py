"""A quantised checkpoint scores like one that stores the values it represents, to the last bit in float32; a
checkpoint that is not understood keeps the server from starting.

`quantised_files.py` makes the checkpoints from a model of the reference, whose answers other tests compare
with `transformers`.
"""

from pathlib import Path

import models
import numpy as np
import pytest
from quantised_files import F8, METHODS, Method
from server import Server, refusal

MODEL = "tied-f32-bare"
QUERY = "Which planet is red?"
TEXTS = ["Mars is red.", "Bread is baked from flour and water 1234.", "naïve 정 can't   <|im_end|>"]
EXACT = ("--model-type", "listwise-reranker", "--dtype", "float32")
TYPES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "F8_E8M0", "int32": "I32", "int64": "I64"}


def tensor(values: np.ndarray) -> models.Tensor:
    kind = "F8_E4M3" if isinstance(values, F8) else TYPES[values.dtype.name]
    return models.Tensor(kind, list(values.shape), bytearray(np.ascontiguousarray(values).tobytes()))


def quantise(folder: Path, method: Method) -> Path:
    """Makes a model whose layers' matrices are quantised by `method`, and in `widened/model` the model with
    the values that these matrices represent."""
    (folder / "widened").mkdir(parents=True)
    model, widened = models.copy(MODEL, folder), models.copy(MODEL, folder / "widened")
    models.edit_json(model / "config.json", quantization_config=method.config)

    def store(tensors, *, is_widened: bool):
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            matrix = np.frombuffer(tensors[name].data, np.float32).reshape(tensors[name].shape)
            parts, values = method.store(matrix)
            if is_widened:
                tensors[name] = tensor(values)
                continue
            del tensors[name]
            tensors |= {name.removesuffix("weight") + part: tensor(stored) for part, stored in parts.items()}

    models.edit_tensors(model, lambda tensors: store(tensors, is_widened=False))
    models.edit_tensors(widened, lambda tensors: store(tensors, is_widened=True))
    return model


@pytest.mark.parametrize("name", METHODS)
def test_a_quantised_model_scores_like_the_values_that_it_represents(tmp_path, name):
    model = quantise(tmp_path, METHODS[name])
    with Server(model, *EXACT) as server, Server(tmp_path / "widened/model", *EXACT) as widened:
        scores = server.scores(QUERY, TEXTS)
        assert scores == widened.scores(QUERY, TEXTS)
        assert max(scores) - min(scores) > 0.1
        assert METHODS[name].said in server.log()


def test_other_arithmetics_take_the_same_values(tmp_path):
    model = quantise(tmp_path, METHODS["gptq"])
    for dtype in ("bfloat16", "int8", "int4"):
        flags = (*EXACT[:-1], dtype)
        with Server(model, *flags) as server, Server(tmp_path / "widened/model", *flags) as widened:
            assert server.scores(QUERY, TEXTS) == widened.scores(QUERY, TEXTS)


def test_bytes_stay_bytes_in_int8_and_the_log_says_so(tmp_path):
    model = quantise(tmp_path, METHODS["compressed-bytes"])
    for dtype, said in (("int8", "its bytes are used as they are"), ("bfloat16", "its matrices are widened")):
        with Server(model, *EXACT[:-1], dtype) as server:
            assert said in server.log()


def test_a_copy_in_plain_numbers_is_not_called_quantised(tmp_path):
    quantise(tmp_path, METHODS["fp8-blocks"])
    copy = tmp_path / "widened/model"
    models.edit_json(copy / "config.json", quantization_config=METHODS["fp8-blocks"].config)
    with Server(copy, *EXACT[:2]) as server:
        assert "is quantised" not in server.log()
        assert server.get("/info").json()["arithmetic"] == "float32"


def without(ending: str):
    def change(tensors):
        del tensors[next(name for name in tensors if name.endswith(ending))]

    return change


def other(ending: str, shape: list[int], kind: str = "I32"):
    def change(tensors):
        name = next(name for name in tensors if name.endswith(ending))
        tensors[name] = models.Tensor(kind, shape, bytearray(4 * int(np.prod(shape))))

    return change


def far_group(tensors):
    name = next(name for name in tensors if name.endswith("g_idx"))
    tensors[name].data[:4] = (10**6).to_bytes(4, "little")


def endless(ending: str, value: bytes):
    def change(tensors):
        name = next(name for name in tensors if name.endswith(ending))
        tensors[name].data[: len(value)] = value

    return change


BROKEN = {
    "a zero that is missing": ("gptq", without("qzeros"), ["no tensor `", "qzeros`"]),
    "a scale that is missing": ("fp8-blocks", without("weight_scale_inv"), ["F8_E4M3"]),
    "zeros that are missing": (
        "compressed-4-bits-zeros", without("weight_zero_point"), ["weight_zero_point`", "symmetric in quantization_config"]
    ),
    "an order that is missing": (
        "compressed-4-bits-by-activations", without("weight_g_idx"), ["weight_g_idx`", "actorder in quantization_config"]
    ),
    "GPTQ's order that is missing": (
        "gptq-by-activations", without("g_idx"), ["g_idx`", "desc_act in quantization_config"]
    ),
    "a bias that counts": ("gptq-biases", endless("_proj.bias", b"\x00\x3c"), ["_proj.bias` in", "not part of this architecture"]),
    "an infinite scale": ("gptq", endless("scales", b"\x00\x7c"), ["scales` in", "holds a NaN or an infinity"]),
    "a byte that is no number": ("fp8-one-scale", endless("q_proj.weight", b"\x7f"), ["q_proj.weight` in", "holds a NaN or an infinity"]),
    "another shape": ("awq", other("qweight", [3, 3]), ["qweight` in", "is I32 [3, 3], but quantization_config asks for I32 ["]),
    "another type": ("awq", other("qweight", [40, 9], "F32"), ["qweight` in", "is F32 [40, 9], but"]),
    "scales of other blocks": ("fp8-blocks", other("weight_scale_inv", [7, 7], "F32"), ["has shape [7, 7], but quantization_config asks"]),
    "a group that is not there": ("gptq-by-activations", far_group, ["g_idx` names the group 1000000, but there are"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(tmp_path, case):
    method, change, parts = BROKEN[case]
    model = quantise(tmp_path, METHODS[method])
    models.edit_tensors(model, change)
    message = refusal(model, *EXACT)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(("name", "part"), [("gptq", "q_proj.qweight`, but config.json has no"), ("fp8-one-scale", "which `quantization_config` in")])
def test_a_quantised_checkpoint_that_config_json_does_not_mention(tmp_path, name, part):
    model = quantise(tmp_path, METHODS[name])
    models.edit_json(model / "config.json", lambda config: config.pop("quantization_config"))
    message = refusal(model, *EXACT)
    assert part in message and "quantization_config" in message, message


def test_a_group_that_does_not_divide_the_inputs_is_counted_to_its_end(tmp_path):
    method = METHODS["gptq"]
    model = quantise(tmp_path, method)
    models.edit_json(model / "config.json", quantization_config=method.config | {"group_size": 7})
    assert "asks for I32 [" in refusal(model, *EXACT)
