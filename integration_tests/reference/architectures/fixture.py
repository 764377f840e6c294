"""Writes one fixture: a folder with `config.json`, `model.safetensors` and `expected.json`.

There is no tokenizer: the ids are random. How to add an architecture:

1. Weights: `tensors = random_weights(shapes, seed)` from a dict of name to shape, or a dict of your own.
   They are float32.
2. A reader: `reader(folder)` loads the written folder in float32 and returns `outputs(ids, types)`. `ids` is
   a list of ints, `types` a list of token types (all 0 unless the case is a pair). `outputs` returns tensors:
       "hidden"       [tokens, hidden]      last hidden states, after the final norm. Required.
       "logits"       [labels]              only for classifiers
       "vocabulary"   [tokens, vocabulary]  logits of a masked-LM head; becomes "splade"
       "embedding"    [values]              only if the vector is not cls, mean or last
   If transformers has a class for the model, the reader is `native.pretrained(cls)`. Otherwise the reader
   computes with `tensors = load_tensors(folder)`.
3. `Fixture(config, tensors, reader, source)` describes the folder. `config` is written unchanged.
4. The module has `FIXTURES = {"name": function that returns a Fixture}`, and `MODULES` in `__main__.py` lists
   the module. `python -m architectures NAME…` in the folder above makes the named fixtures; without names,
   all.

`write` stores the tensors, calls the reader on the folder, runs every case alone and unpadded, checks the
results (see `check`), and writes `expected.json`:

    {"source": "…", "cases": [{"ids": […], "second": null or k, "cls": […], "mean": […], "last": […],
      "hidden": [[…]…] (cases of HIDDEN_LENGTHS tokens), "logits": […], "splade": [[id, weight]…],
      "embedding": […]}…]}

`second` is the index of the first token of type 1. Vectors are not normalised. "splade" is the maximum over
the tokens of log(1 + relu(logits)): entries above 0, by id. Numbers have 7 significant digits.
"""

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
Outputs = Callable[[list[int], list[int]], Tensors]
Reader = Callable[[Path], Outputs]

FOLDER = Path(__file__).parent.parent / "fixtures" / "architectures"
VOCABULARY = 101
# Lower ids are special in some architectures (padding: 0 or 1), so texts do not contain them.
FIRST_ID = 5
LENGTHS = (1, 2, 7, 17, 32, 33, 64, 100, 150)
# Case length -> index of the first token of type 1, for models that have token types.
PAIRS = {17: 6, 64: 31}
HIDDEN_LENGTHS = (7, 17)
MAX_FOLDER_BYTES = 130_000


@dataclass(frozen=True)
class Case:
    """A text: its ids, and the index of the first token of type 1 if it is a pair."""

    ids: list[int]
    second: int | None = None

    @property
    def types(self) -> list[int]:
        """The token type of each id."""
        second = len(self.ids) if self.second is None else self.second
        return [int(index >= second) for index in range(len(self.ids))]


@dataclass(frozen=True)
class Fixture:
    """The contents of a folder.

    `source` names the class that computes the outputs ("transformers 5.23.0 BertModel"). `dtype` is the type
    in the file. `causal` says that a token does not see later tokens; both True and False are checked.
    """

    config: dict
    tensors: Tensors
    reader: Reader
    source: str
    dtype: torch.dtype = torch.float32
    cases: list[Case] = field(default_factory=lambda: cases())
    causal: bool = False


def cases(
    pairs: bool = False,
    lengths: tuple[int, ...] = LENGTHS,
    first: int = FIRST_ID,
    vocabulary: int = VOCABULARY,
    seed: int = 1,
) -> list[Case]:
    """A text of random ids for each length; no two texts have the same first token.

    With `pairs`, texts whose length is in PAIRS have two token types.
    """
    generator = numpy.random.Generator(numpy.random.PCG64(seed))
    made = []
    for length in lengths:
        ids = generator.integers(first, vocabulary, length).tolist()
        while ids[0] in {case.ids[0] for case in made}:
            ids[0] = other(ids[0])
        made.append(Case(ids, PAIRS.get(length) if pairs else None))
    return made


def other(token: int) -> int:
    """A different id."""
    return token - 1 if token > FIRST_ID else VOCABULARY - 1


def random_tensor(name: str, shape: tuple[int, ...], seed: int, gain: float, centre: float) -> torch.Tensor:
    """Biases N(0, 0.2), norm weights N(centre, 0.2), embeddings N(0, 1), matrices N(0, gain / √inputs).

    The values depend only on name, shape and seed.
    """
    generator = numpy.random.Generator(numpy.random.PCG64([seed, zlib.crc32(name.encode())]))
    values = torch.from_numpy(generator.standard_normal(shape, dtype=numpy.float32))
    if len(shape) <= 1:
        is_bias = name.endswith(("bias", "beta"))
        return values * 0.2 + (0.0 if is_bias else centre)
    if "embed" in name and name.endswith("weight") and "project" not in name and "dense" not in name:
        return values
    return values * gain / numpy.float32(numpy.prod(shape[1:])) ** 0.5


def random_weights(
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    gain: float = 2.0,
    centre: float = 1.0,
    scales: dict[str, float] | None = None,
) -> Tensors:
    """float32 weights by name.

    `centre` is the mean of norm weights (0 if the norm multiplies by 1 + weight). `scales` maps a part of a
    name to a further factor; the factors of all parts that occur in a name are multiplied.
    """
    tensors = {}
    for name, shape in shapes.items():
        tensor = random_tensor(name, tuple(shape), seed, gain, centre)
        for part, factor in (scales or {}).items():
            if part in name:
                tensor = tensor * factor
        tensors[name] = tensor.contiguous()
    return tensors


def load_tensors(folder: Path) -> Tensors:
    """The tensors of a written folder; floating-point tensors in float32."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def write_json(path: Path, value: dict) -> None:
    """Writes a configuration file in the format of save_pretrained."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def numbers(tensor: torch.Tensor) -> list:
    """Nested lists with 7 significant digits."""
    if tensor.dim() == 0:
        return float(f"{tensor.item():.7g}")
    return [numbers(row) for row in tensor]


def splade(logits: torch.Tensor) -> list:
    """The terms and weights that follow from the logits of all tokens."""
    weights = torch.log1p(torch.relu(logits)).max(dim=0).values
    return [[index, numbers(weight)] for index, weight in enumerate(weights) if weight > 0]


def expected_row(case: Case, found: Tensors) -> dict:
    """One entry of `cases`."""
    hidden = found["hidden"].float()
    assert hidden.dim() == 2 and len(hidden) == len(case.ids), hidden.shape
    row = {"ids": case.ids, "second": case.second}
    row |= {"cls": numbers(hidden[0]), "mean": numbers(hidden.mean(dim=0)), "last": numbers(hidden[-1])}
    for key in ("logits", "embedding"):
        if key in found:
            row[key] = numbers(found[key].flatten())
    if "vocabulary" in found:
        row["splade"] = splade(found["vocabulary"])
    if len(case.ids) in HIDDEN_LENGTHS:
        row["hidden"] = numbers(hidden)
    return row


def check_inputs_matter(name: str, fixture: Fixture, outputs: Outputs) -> None:
    """Checks that the order of the tokens and the first token change the state of the last token.

    The last token must change the state of the first one, unless the model is causal.
    """
    case = next(case for case in fixture.cases if len(case.ids) == 7)
    ids, zeros = case.ids, [0] * 7
    hidden = outputs(ids, zeros)["hidden"]
    last = hidden[-1]
    backwards = (outputs([*ids[:-1], other(ids[-1])], zeros)["hidden"][0] - hidden[0]).norm() / hidden[
        0
    ].norm()
    assert backwards < 1e-6 if fixture.causal else backwards > 0.02, (
        f"{name}: the last token changes the first one's state by {backwards:.4f}"
    )
    others = {"first token": [other(ids[0]), *ids[1:]], "order": [ids[0], ids[2], ids[1], *ids[3:]]}
    for what, changed in others.items():
        difference = (outputs(changed, zeros)["hidden"][-1] - last).norm() / last.norm()
        assert difference > 0.02, f"{name}: {what} changes the last token's state by {difference:.4f} only"


def check(name: str, rows: list[dict]) -> str:
    """Checks that texts have clearly different vectors of a sensible size. Returns a line for the summary."""
    cosines = {}
    for key in ("cls", "mean", "last", "embedding"):
        if key not in rows[0]:
            continue
        vectors = torch.nn.functional.normalize(torch.tensor([row[key] for row in rows]), dim=1)
        products = vectors @ vectors.T
        others = products[~torch.eye(len(rows), dtype=torch.bool)]
        cosines[key] = (others.min().item(), others.max().item())
        assert cosines[key][1] < 0.99, f"{name}: {key} cosines {cosines[key]}"
    hidden = torch.tensor(next(row["hidden"] for row in rows if "hidden" in row))
    assert torch.isfinite(hidden).all() and 0.1 < hidden.std() < 10 and hidden.abs().max() < 40, (
        name,
        hidden.std(),
        hidden.abs().max(),
    )
    text = " ".join(f"{key} {low:+.2f}…{high:+.2f}" for key, (low, high) in cosines.items())
    text += f" | hidden std {hidden.std():.2f} max {hidden.abs().max():.1f}"
    if "logits" in rows[0]:
        spread = torch.tensor([row["logits"] for row in rows]).std(dim=0)
        assert 0.2 < spread.min() and spread.max() < 20, (name, spread)
        text += f" | logits std {spread.min():.2f}…{spread.max():.2f}"
    if "splade" in rows[0]:
        terms = [len(row["splade"]) for row in rows]
        assert 5 < min(terms) < VOCABULARY, (name, terms)
        text += f" | terms {min(terms)}…{max(terms)}"
    return text


def write_rows(path: Path, source: str, rows: list[dict]) -> None:
    """Writes expected.json with one case per line."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f'{{"source": {json.dumps(source)}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def folder_bytes(folder: Path) -> int:
    """The size of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@torch.no_grad()
def write(name: str, fixture: Fixture, output: Path = FOLDER) -> str:
    """Makes the folder `name` and returns a line for the summary.

    It replaces the old folder only after all checks have passed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        fresh = Path(temporary) / name
        fresh.mkdir()
        line = make(fresh, fixture)
        output.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(output / name, ignore_errors=True)
        shutil.move(fresh, output / name)
    return line


def store(folder: Path, fixture: Fixture) -> None:
    """Writes `config.json` and `model.safetensors`."""
    write_json(folder / "config.json", fixture.config)
    stored = {
        key: tensor.to(fixture.dtype) if tensor.is_floating_point() else tensor
        for key, tensor in fixture.tensors.items()
    }
    save_file(
        {key: tensor.contiguous().clone() for key, tensor in stored.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    (folder / "model.safetensors").chmod(0o644)


def make(fresh: Path, fixture: Fixture) -> str:
    """Writes the files into an empty folder and checks them. Returns a line for the summary."""
    name = fresh.name
    store(fresh, fixture)
    outputs = fixture.reader(fresh)
    check_inputs_matter(name, fixture, outputs)
    rows = [expected_row(case, outputs(case.ids, case.types)) for case in fixture.cases]
    spread = check(name, rows)
    write_rows(fresh / "expected.json", fixture.source, rows)
    size = folder_bytes(fresh)
    assert size <= MAX_FOLDER_BYTES, f"{name}: {size} bytes"
    return f"{name:32} {size / 1000:6.1f} KB  {str(fixture.dtype)[6:]:8} {spread}"
