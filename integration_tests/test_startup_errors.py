"""A server that cannot start says why in one line, with the file or flag and what to do about it."""

import json
import os
import resource
import socket
import subprocess

import models
import pytest
from server import BINARY, LISTEN, MODELS, refusal, run

GENERATIVE = ("--model-type", "listwise-reranker")
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def test_a_system_without_threads_is_named_at_once():
    """As a user of no other process, because the limit counts all of a user's."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))

    user = {"user": 65533, "group": 65533, "extra_groups": []} if os.geteuid() == 0 else {}
    # That user may not read the folder of the binary.
    with BINARY.open("rb") as binary:
        command = [f"/proc/self/fd/{binary.fileno()}", "--model-id", "demo"]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=20, pass_fds=[binary.fileno()], preexec_fn=limit, cwd="/", **user
        )
    assert ended.returncode == 1 and ended.stderr.startswith("Error: the runtime cannot start its threads"), ended.stderr
    assert "ulimit -u" in ended.stderr and "panicked" not in ended.stderr


def delete(*names: str):
    return lambda folder: [(folder / name).unlink() for name in names]


def write(name: str, content: str | bytes):
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, keep: float):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return change


def extended(name: str):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + bytes(64))


def config(**values: object):
    return lambda folder: models.edit_json(folder / "config.json", **values)


def without(name: str):
    return lambda folder: models.edit_json(folder / "config.json", lambda content: content.pop(name))


def tensors(change):
    return lambda folder: models.edit_tensors(folder, change)


def put_nan(name: str):
    def change(all_tensors):
        tensor = all_tensors[name]
        tensor.data[: models.WIDTHS[tensor.dtype]] = models.NAN[tensor.dtype]

    return tensors(change)


def rename_token(token: str):
    """Renames a token, so that the tokenizer has no token for its text."""

    def change(content):
        vocabulary = content["model"]["vocab"]
        vocabulary["x" + token + "x"] = vocabulary.pop(token)
        merges = content["model"]["merges"]
        content["model"]["merges"] = [pair for pair in merges if "".join(pair).replace(" ", "") != token]

    return lambda folder: models.edit_json(folder / "tokenizer.json", change)


def other_weights_only(folder) -> None:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")


def index_out_of_folder(folder) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace("model-00001-of-00002", "../model-00001-of-00002"))


def edit(name: str, **values: object):
    return lambda folder: models.edit_json(folder / name, **values)


def dense(**values: object):
    return edit("2_Dense/config.json", **values)


def modules(*classes: str, path: str = ""):
    entries = [{"idx": index, "name": str(index), "path": path, "type": f"x.{name}"} for index, name in enumerate(classes)]
    return write("modules.json", json.dumps(entries))


SHARD = "model-00002-of-00002.safetensors"
# Model, change of its folder, and words of the error: the file or flag, and what to do.
FOLDERS = {
    "no config": ("tied-f32-bare", delete("config.json"), ["config.json", "missing", "--model-id"]),
    "no tokenizer": ("tied-f32-bare", delete("tokenizer.json"), ["tokenizer.json", "missing", "save_pretrained"]),
    "no weights": ("tied-f32-bare", delete("model.safetensors"), ["model.safetensors", "missing", "convert"]),
    "no shard": ("untied-bf16-shards", delete(SHARD), [SHARD, "missing", "download"]),
    "no index": ("untied-bf16-shards", delete("model.safetensors.index.json"), ["model.safetensors", "missing"]),
    "index out of the folder": ("untied-bf16-shards", index_out_of_folder, ["index.json", "../model", "download"]),
    "weights in a format that is not read": ("tied-f32-bare", other_weights_only, ["tf_model.h5", "convert"]),
    "truncated weights": ("tied-f32-bare", cut("model.safetensors", 0.9), ["model.safetensors", "bytes", "download"]),
    "truncated header": ("tied-f32-bare", cut("model.safetensors", 0.001), ["model.safetensors", "download"]),
    "empty weights": ("tied-f32-bare", write("model.safetensors", b""), ["model.safetensors", "download"]),
    "weights too long": ("tied-f32-bare", extended("model.safetensors"), ["model.safetensors", "bytes", "download"]),
    "truncated shard": ("untied-bf16-shards", cut(SHARD, 0.9), [SHARD, "bytes", "download"]),
    "weights are text": ("tied-f32-bare", write("model.safetensors", "<html>404</html>" * 9), ["model.safetensors", "download"]),
    "weights are a pointer": ("tied-f32-bare", write("model.safetensors", LFS_POINTER), ["model.safetensors", "git lfs pull"]),
    "shard is a pointer": ("untied-bf16-shards", write(SHARD, LFS_POINTER), [SHARD, "git lfs pull"]),
    "tokenizer is a pointer": ("tied-f32-bare", write("tokenizer.json", LFS_POINTER), ["tokenizer.json", "git lfs pull"]),
    "corrupt config": ("tied-f32-bare", cut("config.json", 0.5), ["config.json", "line", "download"]),
    "config is a list": ("tied-f32-bare", write("config.json", "[]"), ["config.json", "download"]),
    "config is not UTF-8": ("tied-f32-bare", write("config.json", b'{"a": "\xff"}'), ["config.json"]),
    "corrupt tokenizer": ("tied-f32-bare", cut("tokenizer.json", 0.5), ["tokenizer.json", "download"]),
    "corrupt tokenizer config": ("tied-f32-bare", cut("tokenizer_config.json", 0.5), ["tokenizer_config.json", "download"]),
    "corrupt index": ("untied-bf16-shards", cut("model.safetensors.index.json", 0.5), ["index.json", "download"]),
    "corrupt modules": ("tied-bf16", cut("modules.json", 0.5), ["modules.json", "download"]),
    "corrupt template": ("tied-bf16", write("chat_template.jinja", "{{ 'query' 'document' "), ["chat template", "--chat-template"]),
    "no yes": ("tied-f32-bare", rename_token("yes"), ["yes", "tokenizer.json"]),
    "no no": ("tied-f32-bare", rename_token("no"), ["`no`", "tokenizer.json"]),
    "NaN in a layer": (
        "tied-f32-bare", put_nan("layers.0.mlp.up_proj.weight"), ["layers.0.mlp.up_proj.weight", "model.safetensors", "download"]
    ),
    "NaN in the norm": ("untied-f16", put_nan("model.norm.weight"), ["norm.weight", "model.safetensors", "download"]),
    "another shape": ("tied-f32-bare", config(intermediate_size=96), ["mlp.", "shape", "config.json"]),
    "a tensor too few": (
        "tied-f32-bare", tensors(lambda t: t.pop("layers.1.self_attn.q_norm.weight")), ["layers.1.self_attn.q_norm.weight", "download"]
    ),
    "a tensor too many": (
        "tied-f32-bare", tensors(lambda t: t.update(extra=t["norm.weight"])), ["`extra`", "model.safetensors", "not supported"]
    ),
    "layers too few": ("tied-f32-bare", config(num_hidden_layers=3), ["layers.2.", "download"]),
    "rope scaling": ("tied-f32-bare", config(rope_scaling={"rope_type": "spiral", "factor": 4.0}), ["config.json", "rope", "not supported"]),
    "old rope scaling": ("tied-f32-bare", config(rope_scaling={"type": "spiral", "factor": 2.0}), ["config.json", "rope", "not supported"]),
    "quantized": ("tied-f32-bare", config(quantization_config={"quant_method": "gptq"}), ["quantization_config", "not supported"]),
    "activation": ("tied-f32-bare", config(hidden_act="mish"), ["hidden_act", "mish", "not supported"]),
    "no hidden size": ("tied-f32-bare", without("hidden_size"), ["config.json", "hidden_size"]),
    "negative size": ("tied-f32-bare", config(num_hidden_layers=-1), ["config.json"]),
    "other architecture": (
        "tied-f32-bare", config(architectures=["MambaForCausalLM"], model_type="mamba"), ["mamba", "not supported"]
    ),
    "unsupported module": ("embedding-last", modules("Transformer", "Pooling", "WordWeights"), ["modules.json", "`WordWeights`", "not supported"]),
    "unsupported activation": (
        "embedding-mean-dense", dense(activation_function="torch.nn.Mish"), ["2_Dense/config.json", "activation_function", "Mish"]
    ),
    "no dense weights": ("embedding-mean-dense", delete("2_Dense/model.safetensors"), ["2_Dense/model.safetensors", "missing"]),
    "dense path out of the folder": ("embedding-mean-dense", modules("Dense", path="../2_Dense"), ["../2_Dense", "--dense-path"]),
    "unknown default prompt": (
        "embedding-last", edit("config_sentence_transformers.json", default_prompt_name="x"), ["default_prompt_name", "`x`", "`query`"]
    ),
    "labels with a gap": ("seq-cls-3", config(id2label={"1": "a", "2": "b"}), ["id2label", "config.json"]),
}
# The error comes from the files of these models; with the flag it would be another one.
BY_FILES_ONLY = {"tied-bf16", "embedding-last", "embedding-mean-dense", "seq-cls-3"}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_broken_folder_is_refused(tmp_path, name):
    model, change, expected = FOLDERS[name]
    folder = models.copy(model, tmp_path)
    change(folder)
    flags = () if model in BY_FILES_ONLY else GENERATIVE
    line = refusal(folder, *flags)
    assert all(word.lower() in line.lower() for word in expected), line


FLAGS = {
    "hostname": (["--hostname", "nowhere.invalid"], ["--hostname nowhere.invalid", "localhost"]),
    "empty key": (["--api-key", ""], ["--api-key", "leave"]),
    "otlp": (["--otlp-endpoint", "https://localhost:4317"], ["--otlp-endpoint", "http://"]),
    "otlp with a password": (["--otlp-endpoint", "https://me:s3cret@a:4317"], ["Error: `--otlp-endpoint https://<redacted>@a:4317` asks for encryption"]),
    "prompt": (["--default-prompt", "query: "], ["--default-prompt", "leave it out"]),
    "input too long": (["--max-input-length", "40961"], ["--max-input-length 40961", "40960"]),
    "input too short": (["--max-input-length", "20"], ["--max-input-length"]),
    "budget": (["--auto-truncate", "false", "--max-batch-tokens", "100"], ["--max-batch-tokens 100", "--max-input-length"]),
    "origin": (["--cors-allow-origin", "example.org"], ["--cors-allow-origin example.org", "https://"]),
    "template": (["--chat-template", "/nowhere.jinja"], ["--chat-template /nowhere.jinja", "builtin"]),
    "pooling": (["--pooling", "mean"], ["re-ranker and not an embedding model", "leave `--pooling`"]),
}


@pytest.mark.parametrize(("flags", "expected"), FLAGS.values(), ids=FLAGS)
def test_a_flag_that_cannot_be_served_is_refused(flags, expected):
    line = refusal("tied-bf16", *flags)
    assert all(word in line for word in expected), line


@pytest.mark.parametrize("flag", ["--port", "--prometheus-port", "--grpc-port", "AIP_HTTP_PORT"])
def test_a_port_in_use_is_refused_before_the_model_is_read(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refusal(MODELS, flag, port) if flag.startswith("--") else refusal(MODELS, environment={flag: port})
    assert f"cannot listen on 127.0.0.1:{port} (" in line, line


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("/nowhere/at/all", ["--model-id /nowhere/at/all", "no such directory"]),
        ("./nowhere", ["--model-id ./nowhere", "no such directory"]),
        (str(MODELS / "tied-bf16/config.json"), ["config.json", "is a file"]),
        ("a/b/c", ["--model-id a/b/c", "no such directory"]),
        ("a b", ["--model-id a b", "owner/name"]),
        ("", ["--model-id", "owner/name"]),
        ("Qwen/Qwen3-Reranker-0.6B", ["HF_HUB_OFFLINE", "Qwen/Qwen3-Reranker-0.6B"]),
        ("Qwen3-Reranker-0.6B", ["HF_HUB_OFFLINE", "did you mean `Qwen/Qwen3-Reranker-0.6B`?"]),
    ],
)
def test_a_model_id_that_names_nothing_is_refused(tmp_path, model, expected):
    ended = run("--model-id", model, *LISTEN, environment={"HF_HOME": str(tmp_path)})
    lines = ended.stderr.splitlines()
    assert ended.returncode == 1 and len(lines) == 1 and lines[0].startswith("Error: "), ended.stderr
    assert all(word in lines[0] for word in expected), lines[0]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model-id"], "--model-id"),
        (["--model-id", "m", "--speed", "high"], "--speed"),
        (["--model-id", "m", "--port", "70000"], "--port"),
        (["--model-id", "m", "--dtype", "int3"], "--dtype"),
        (["--model-id", "m", "--model-type", "llm"], "--model-type"),
        (["--model-id", "m", "--max-batch-tokens", "0"], "--max-batch-tokens"),
        (["--model-id", "m", "--auto-truncate", "perhaps"], "--auto-truncate"),
        (["--model-id", "m", "stray"], "stray"),
    ],
)
def test_a_wrong_command_line_names_the_flag(flags, expected):
    ended = run(*flags)
    assert ended.returncode == 2 and expected in ended.stderr and "panicked" not in ended.stderr, ended.stderr
    assert BINARY.name in ended.stderr or "--help" in ended.stderr


def test_a_variable_counts_as_its_flag_and_is_named_if_it_is_wrong():
    line = refusal("tied-bf16", environment={"MAX_INPUT_LENGTH": "40961"})
    assert "--max-input-length 40961" in line and line.endswith("`--max-input-length` comes from the variable MAX_INPUT_LENGTH")
    ended = run("--model-id", "m", environment={"MAX_BATCH_TOKENS": "0"})
    assert ended.returncode == 2 and "must be at least 1" in ended.stderr and "the variable MAX_BATCH_TOKENS" in ended.stderr
    for environment, flag in [
        ({"RERANK_FALSE_TOKEN": "no"}, "--rerank-false-token"),
        ({"TLS_CERT": "cert.pem"}, "--tls-cert"),
        ({"TLS_KEY": "key.pem"}, "--tls-key"),
        ({"DEFAULT_PROMPT": "query: ", "DEFAULT_PROMPT_NAME": "query"}, "--default-prompt"),
    ]:
        ended = run("--model-id", "m", environment=environment)
        told = f"`{flag}` comes from the variable {next(iter(environment))}"
        assert ended.returncode == 2 and told in ended.stderr, ended.stderr
    ended = run("--model-id", "m", "--tls-cert", "cert.pem")
    assert ended.returncode == 2 and "comes from the variable" not in ended.stderr, ended.stderr
    for environment, told in [
        ({"OTLP_ENDPOINT": "https://a:4317"}, "`--otlp-endpoint` comes from the variable OTLP_ENDPOINT"),
        ({"AIP_PREDICT_ROUTE": "/rerank"}, "Error: `--aip-predict-route /rerank` is a route of the server"),
        ({"AIP_HEALTH_ROUTE": "alive"}, "Error: `--aip-health-route alive` is not the path of a URL"),
        ({"LOG_LEVEL": "loud"}, "Error: the variable LOG_LEVEL=`loud` is not a log filter"),
    ]:
        assert told in refusal("tied-bf16", environment=environment)
    ended = run(*LISTEN, environment={"MODEL_ID": ""})
    assert ended.returncode == 1 and ended.stderr.startswith("Error: `--model-id ` is neither a directory nor a Hub id"), ended.stderr
    ended = run(environment={"PORT": "0", "PROMETHEUS_PORT": "0", "HF_HUB_OFFLINE": "1", "HOME": "/nowhere"})
    assert ended.returncode == 1 and "is the default model: `--model-id` names another" in ended.stderr, ended.stderr
