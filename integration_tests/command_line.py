"""Runs the binary's commands as child processes: their output, exit code and memory.

Input: arguments, standard input and environment variables. Output: `Ended`. Invariants: none of the user's
environment variables reach the commands, and every wait has a limit.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from server import BINARY, MODELS, variables

LIMIT = 120


@dataclass
class Ended:
    """The result of a command that has ended."""

    code: int
    out: str
    err: str

    def lines(self) -> list[dict]:
        """The JSON lines that it printed. The command must have succeeded."""
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    def refusal(self, code: int = 1, words: Iterable[str] = ()) -> str:
        """The one line that says why it failed, with these words."""
        assert self.code == code, f"exit code {self.code}:\n{self.out}{self.err}"
        assert "panicked" not in self.err, self.err
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("Error: "), self.err
        assert all(word in lines[0] for word in words), lines[0]
        return lines[0]


def run(*arguments: object, stdin: str | bytes = b"", environment: dict | None = None) -> Ended:
    """Runs a command and waits for its end."""
    stdin = stdin.encode() if isinstance(stdin, str) else stdin
    command = [str(BINARY), *map(str, arguments)]
    ended = subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT, env=variables(environment))
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


# Runs a command as its only child and writes the child's peak resident memory, in bytes, to a file.
MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
sys.exit(code)
"""


def peak_memory(out: Path, *arguments: object) -> int:
    """Peak resident memory, in bytes, of a command that must succeed. Its output goes to the file `out`."""
    measured = out.with_suffix(".peak")
    command = [sys.executable, "-c", MEASURE, str(measured), str(BINARY), *map(str, arguments)]
    with open(out, "wb") as file:
        ended = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, timeout=LIMIT, env=variables())
    assert ended.returncode == 0, ended.stderr.decode()
    return int(measured.read_text())


def rerank(model: str | Path, query: str, *arguments: object, **options: object) -> Ended:
    """Runs `rerank` with a reference model, given by name, or with a model folder."""
    folder = MODELS / model if isinstance(model, str) else model
    return run("rerank", "--model-id", folder, "--query", query, *arguments, **options)
