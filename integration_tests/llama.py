"""Asks llama.cpp, in the interpreter with llama-cpp-python that LLAMA_PYTHON names (`llama_outputs.py`)."""

import json
import os
import subprocess
from pathlib import Path

PYTHON = os.environ.get("LLAMA_PYTHON")
WORKER = Path(__file__).with_name("llama_outputs.py")


def ask(**request: object) -> list:
    ended = subprocess.run([PYTHON, WORKER], input=json.dumps(request), capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])
