"""Prepares the peers: a virtual environment for them, and the model in their formats. Standard library only.

Input: a folder to work in, the benchmark's model, the kinds of systems that will run. Output: the
environment's Python and the paths of the files. Nothing is made twice."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCE = HERE.parent / "integration_tests" / "reference" / "requirements.txt"
PEERS = HERE / "requirements-peers.txt"
LLAMA = HERE / "requirements-llama.txt"
# Compiled for this CPU, without the parts that the benchmark does not need.
LLAMA_BUILD = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"


def run(what: str, command: list, **options) -> None:
    print(f"{what} …", file=sys.stderr, flush=True)
    ended = subprocess.run([str(part) for part in command], **options)
    if ended.returncode:
        sys.exit(f"{what}: failed with exit code {ended.returncode}; see the output above")


def installed(venv: Path, what: str, requirements: Path, flags: list[str], variables: dict[str, str]) -> None:
    """Installs the list, unless the same list has been installed already."""
    stamp = venv / f"{requirements.stem}.installed"
    content = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == content:
        return
    command = [venv / "bin" / "pip", "install", "--quiet", "--no-deps", *flags, "-r", requirements]
    run(f"installing {what}", command, env=os.environ | variables)
    stamp.write_text(content)


def environment(folder: Path, kinds: set[str]) -> Path:
    """The Python of an environment with the peers of these kinds, all from PyPI."""
    venv = folder / "venv"
    if not (venv / "bin" / "python").exists():
        run("making a virtual environment", [sys.executable, "-m", "venv", venv])
    installed(venv, "torch and transformers", REFERENCE, [], {})
    installed(venv, "onnxruntime and the tools that build llama.cpp", PEERS, [], {})
    if "llama" in kinds:
        path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        # The build uses tools from the environment and the system's compiler.
        flags = ["--no-build-isolation", "--no-binary", "llama-cpp-python"]
        variables = {"PATH": path, "CMAKE_ARGS": LLAMA_BUILD}
        installed(venv, "llama.cpp, which is compiled: this takes a while", LLAMA, flags, variables)
    return venv / "bin" / "python"


def model_file(python: Path, folder: Path, model: Path, kind: str, detail: str) -> Path:
    """The model in the form for this kind of peer: its folder, or a file, which is written if missing."""
    if kind == "transformers":
        return model
    # OpenVINO uses the same graph for every arithmetic.
    name, script = {
        "onnx": (f"{detail}.onnx", "onnx_graph.py"),
        "openvino": ("openvino.xml", "openvino_graph.py"),
        "llama": (f"{detail}.gguf", "gguf_file.py"),
    }[kind]
    path = folder / name
    weights = (model / "model.safetensors").stat()
    origin = f"{model.resolve()} {weights.st_size} {weights.st_mtime_ns}"
    stamp = path.with_suffix(".origin")
    if not (stamp.exists() and stamp.read_text() == origin):
        arguments = [model, path] + ([detail] if kind == "llama" else [])
        run(f"writing {path}", [python, HERE / script, *arguments])
        stamp.write_text(origin)
    return path
