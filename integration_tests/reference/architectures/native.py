"""Fixtures of architectures for which transformers has a class.

Input: a class, its configuration, and differences from the defaults. Output: a Fixture with random weights
under the names that the class saves; the class computes the outputs. config.json is written by
save_pretrained, and edited to match repositories on the Hub that are older or have keys of their own.
"""
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from transformers import PreTrainedModel

from .fixture import Case, Fixture, Outputs, Reader, Tensors, cases, random_weights

# Makes further outputs from the folder and the outputs of the class.
After = Callable[[Path, Tensors], Tensors]
# Two implementations of the same float32 arithmetic may differ by this much; the tests allow 1e-4.
NOISE = 3e-5


def source(cls: type) -> str:
    """The name of the class, for `source`."""
    return f"transformers {transformers.__version__} {cls.__name__}"


def saved(model: PreTrainedModel) -> tuple[dict, dict[str, tuple[int, ...]]]:
    """The configuration, and the names and shapes of the tensors, that save_pretrained writes."""
    with tempfile.TemporaryDirectory() as temporary:
        model.save_pretrained(temporary)
        config = json.loads((Path(temporary) / "config.json").read_text(encoding="utf-8"))
        with safe_open(Path(temporary) / "model.safetensors", "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    return config, shapes


def run(model: PreTrainedModel, ids: list[int], types: list[int]) -> Tensors:
    """The outputs of one text."""
    arguments = {"input_ids": torch.tensor([ids])}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        arguments["token_type_ids"] = torch.tensor([types])
    found = {"hidden": model.base_model(**arguments).last_hidden_state[0]}
    if model is not model.base_model:
        head = "vocabulary" if "MaskedLM" in type(model).__name__ else "logits"
        found[head] = model(**arguments).logits[0]
    return found


def load(cls: type, folder: Path, ignored: tuple[str, ...], overrides: dict) -> PreTrainedModel:
    """Loads the model in float32. No tensor may be missing, and each must be used unless its name contains
    one of `ignored`.

    Attention is eager, because other implementations have no soft caps.
    """
    config = cls.config_class.from_pretrained(folder)
    for key, value in overrides.items():
        setattr(config, key, value)
    model, report = cls.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
        local_files_only=True,
    )
    report["unexpected_keys"] = [
        key for key in report["unexpected_keys"] if not any(part in key for part in ignored)
    ]
    assert not any(report.values()), report
    return model.eval()


def pretrained(
    cls: type, ignored: tuple[str, ...] = (), after: After | None = None, **overrides: object
) -> Reader:
    """A reader that calls `cls`.

    `after(folder, found)` adds outputs that the class does not give. `overrides` are keys of the
    configuration.
    """

    def reader(folder: Path) -> Outputs:
        model = load(cls, folder, ignored, overrides)
        exact = load(cls, folder, ignored, overrides).double()

        def outputs(ids: list[int], types: list[int]) -> Tensors:
            found, check = run(model, ids, types), run(exact, ids, types)
            for key, value in found.items():
                noise = (value - check[key]).abs().max().item()
                assert noise < NOISE, f"{folder.name}: {key} of {len(ids)} tokens: {noise:.1e} from float64"
            return found | after(folder, found) if after else found

        return outputs

    return reader


def native(
    cls: type,
    config: dict,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    gain: float = 2.0,
    centre: float = 1.0,
    scales: dict[str, float] | None = None,
    rename: Callable[[str], str] | None = None,
    extra: dict[str, tuple[int, ...]] | None = None,
    buffers: Tensors | None = None,
    copies: dict[str, str] | None = None,
    edit: dict | None = None,
    drop: tuple[str, ...] = (),
    labels: list[str] | None = None,
    texts: list[Case] | None = None,
    reader: Reader | None = None,
    causal: bool = False,
) -> Fixture:
    """One fixture.

    `rename` maps the saved names to those in the file. The file also gets the random tensors `extra`, the
    tensors in `buffers`, and `copies` of tied tensors (copy's name to original's name). `edit` and `drop`
    change keys of the written config.json. `labels` are the names of a classifier's labels.
    """
    if labels is not None:
        config = config | {
            "id2label": dict(enumerate(labels)),
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    model = cls(cls.config_class(**config))
    written, shapes = saved(model)
    if rename is not None:
        shapes = {rename(name): shape for name, shape in shapes.items()}
    tensors = random_weights(shapes | (extra or {}), seed, gain, centre, scales) | (buffers or {})
    tensors |= {name: tensors[of] for name, of in (copies or {}).items()}
    written = (
        {key: value for key, value in written.items() if key not in drop}
        | {"dtype": str(dtype)[6:]}
        | (edit or {})
    )
    if "torch_dtype" in written:
        written["torch_dtype"] = written.pop("dtype")
    has_types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return Fixture(
        config=dict(sorted(written.items())),
        tensors=tensors,
        reader=reader or pretrained(cls),
        source=source(cls),
        dtype=dtype,
        cases=texts or cases(pairs=has_types, seed=seed),
        causal=causal,
    )
