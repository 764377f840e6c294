"""The fenced blocks of the documents, and how they are run.

Input: a Markdown file. Output: its `Block`s, and `Session`, which runs them in their order as a reader would,
in a folder that looks like the repository with a built binary. What must hold: a block's language says how it
is tested.

- ```` ```sh ````: commands. They are run. A command that serves is started, and stays until the document's
  end.
- ```` ```python ````: a program. It is run.
- ```` ```output ````: the output of the block before it, on both streams. `…` stands for anything.
  Floating-point numbers may differ by 2e-5 or one unit of the last digit that is shown; everything else must
  be equal. In ```` ```output (measured) ````, numbers are measurements and may be any.
- ```` ```text ````, ```` ```yaml ````: no command.

A block whose first line is `# Not run by the tests: REASON` is not run. Numbers that change with each request
(ids, times) are not compared.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import minilm
import programs
from server import ANSWER_LIMIT, BINARY, MODELS, ROOT, Server, variables

SERVED = ROOT / "integration_tests/reference/fixtures/served"
RERANKERS = ROOT / "integration_tests/reference/fixtures/rerankers"
# Models of the Hub that documents name, and the small random model of the same kind that is served instead.
# Its scores and vectors mean nothing, so none may be shown.
STAND_INS = {
    "jinaai/jina-reranker-v3": RERANKERS / "jina-reranker-v3",
    "zeroentropy/zerank-2-reranker": RERANKERS / "zerank-2-reranker",
    "BAAI/bge-base-en-v1.5": SERVED / "bert-cls-no-modules",
    "BAAI/bge-reranker-v2-m3": SERVED / "xlm-roberta-reranker",
    "Qwen/Qwen3-Reranker-0.6B": MODELS / "tied-bf16",
    "Qwen/Qwen3-4B-Instruct-2507": ROOT / "integration_tests/reference/fixtures/deciders/qwen3-instruct",
    "naver/splade-v3": SERVED / "bert-splade-saved",
}
LANGUAGES = {"sh", "python", "output", "text", "toml", "yaml"}
NOT_RUN = re.compile(r"# Not run by the tests: (.+)")
NAMES = ("text-embeddings-router", "./target/release/text-embeddings-router")
COMMANDS = {"embed", "rerank", "download", "bench", "verify", "doctor", "health", "completions", "man", "help"}
FLOAT = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-\d+")
# Ids and times differ in each run.
CHANGING = [
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r'"created":\d+'), '"created":TIME'),
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"[\d.]+(?:ms|µs|s)\b"), "DURATION"),
]
TOLERANCE = 2e-5


@dataclass
class Block:
    document: str
    line: int
    language: str
    text: str
    # The text of the output block after it.
    output: str | None = None
    is_measured: bool = False

    @property
    def reason(self) -> str | None:
        """Why it is not run."""
        found = NOT_RUN.match(self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """All blocks. An output is part of the block before it."""
    source, name = document.read_text(encoding="utf-8"), str(document.relative_to(ROOT))
    found: list[Block] = []
    fences = re.finditer(r"^( *)```([^\n`]*)\n(.*?)^\1```$", source, re.DOTALL | re.MULTILINE)
    for fence in fences:
        indent, language, text = fence.groups()
        text = re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)
        line = source.count("\n", 0, fence.start()) + 1
        if language.startswith("output") and found and found[-1].output is None and found[-1].language in ("sh", "python"):
            found[-1].output, found[-1].is_measured = text, language == "output (measured)"
        else:
            found.append(Block(name, line, language, text))
    return found


def check_output(shown: str, printed: str, where: str, is_measured: bool = False) -> None:
    """Whether `printed` is what the document shows."""
    if is_measured:
        shown, printed = (re.sub(r"[\d.]+", "NUMBER", re.sub(r" +", " ", text)) for text in (shown, printed))
    # Documents break long lines of JSON.
    if shown.lstrip().startswith(("{", "[")):
        shown, printed = (re.sub(r"\s+", "", text) for text in (shown, printed))
    shown, printed = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (shown, printed))
    for pattern, name in CHANGING:
        shown, printed = pattern.sub(name, shown), pattern.sub(name, printed)
    floats = FLOAT.findall(shown)
    pattern = "".join(
        f"({FLOAT.pattern})" if FLOAT.fullmatch(part) else "[\\s\\S]*?".join(map(re.escape, part.split("…")))
        for part in re.split(f"({FLOAT.pattern})", shown)
    )
    found = re.fullmatch(pattern, printed)
    assert found, f"{where} shows\n{shown}\nbut this was printed:\n{printed}"
    for expected, got in zip(floats, found.groups(), strict=True):
        digits = len(expected.split("e")[0].partition(".")[2]) if "e" not in expected else 9
        allowed = max(TOLERANCE * max(1, abs(float(expected))), 1.01 * 10**-digits)
        assert abs(float(expected) - float(got)) <= allowed, f"{where} shows {expected}, but {got} was printed:\n{printed}"


def statements(script: str) -> list[str]:
    """The script's commands. A backslash, an open quote or a here-document joins lines."""
    found: list[str] = []
    lines = iter(script.splitlines())
    for line in lines:
        if ends := re.search(r"<<'?(\w+)'?", line):
            for further in lines:
                line += "\n" + further
                if further == ends[1]:
                    break
        else:
            while line.endswith("\\") or is_open(line):
                line += "\n" + next(lines)
        if line.strip() and not line.startswith("#"):
            found.append(line)
    return found


def is_open(line: str) -> bool:
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def taken(flags: list[str], name: str, default: str = "") -> str:
    """The value of a flag, which is taken out of the list."""
    if name not in flags:
        return default
    place = flags.index(name)
    _, value = flags.pop(place), flags.pop(place)
    return value


class Session:
    """A reader's shell for one document: its folder, its servers by the port that the document gives them."""

    def __init__(self, folder: Path, served: Callable[..., Server]):
        self.folder, self._served = folder, served
        self.servers: dict[str, Server] = {}
        for path in ROOT.iterdir():
            if path.name not in ("target", "dist") and not path.name.startswith("."):
                (folder / path.name).symlink_to(path)
        for place in ("bin", "target/release"):
            (folder / place).mkdir(parents=True)
            (folder / place / BINARY.name).symlink_to(BINARY)
        (folder / ".curlrc").write_text("silent\nshow-error\n")
        if model := minilm.folder():
            (folder / "minilm").symlink_to(model.parent.parent)
        self._environment = variables(
            {
                "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(folder),
                "COLUMNS": "200",
                "PROMETHEUS_PORT": "0",
                # As for a reader: documents that show numbers give --dtype.
                "DTYPE": None,
                "PYTHONPATH": str(ROOT / "python"),
                "PYTHONIOENCODING": "utf-8",
                "TEXT_EMBEDDINGS_ROUTER": str(BINARY),
                "LC_ALL": "C.UTF-8",
            }
        )

    def run(self, block: Block) -> None:
        """Runs a block and compares its output with the document's."""
        if "curl " in block.text:
            programs.require("curl")
        fails = block.output is not None and "Error: " in block.output
        if block.language == "python":
            printed, status = self._end([sys.executable, "-c", block.text])
        else:
            lines = [line for line in statements(block.text) if fails or not self._serve(line, block)]
            printed, status = self._end(["bash", "-euo", "pipefail", "-c", "\n".join(map(self._address, lines))])
        assert (status != 0) == fails, f"{block}: exit code {status}:\n{printed}"
        if block.output is not None:
            check_output(block.output, printed, str(block), block.is_measured)
        assert '"error"' not in printed or '"error"' in (block.output or ""), f"{block}:\n{printed}"

    def _end(self, command: list[str]) -> tuple[str, int]:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=ANSWER_LIMIT, cwd=self.folder,
            env=self._environment,
        )
        return ended.stdout, ended.returncode

    def _address(self, line: str) -> str:
        """The line with the addresses of the running servers."""
        for port, server in self.servers.items():
            line = re.sub(rf"\b(?:127\.0\.0\.1|localhost):{port}\b", server.url.removeprefix("http://"), line)
        return line

    def _serve(self, line: str, block: Block) -> bool:
        """Starts a server if the line does."""
        words = shlex.split(line, comments=True)
        if words[0] not in NAMES or words[1] in COMMANDS or "|" in words or ">" in words:
            return False
        flags = [word for word in words[1:] if word != "&"]
        model, port = taken(flags, "--model-id"), taken(flags, "--port", "3000")
        if model in STAND_INS:
            assert not FLOAT.search(block.output or ""), f"{block}: shows numbers of a model that is not there"
        elif model != "demo":
            assert (self.folder / model).exists(), f"{block}: {model} needs a stand-in, or the mark that it is not run"
        place = "demo" if model == "demo" else STAND_INS.get(model, (self.folder / model).resolve())
        self.servers[port] = self._served(place, *flags)
        return True
