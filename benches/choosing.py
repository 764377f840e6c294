#!/usr/bin/env python3
"""Measures the shapes of well-known models, and makes the tables and charts of `docs/choosing.md`.

`choosing.py measure --binary BINARY [--peer PYTHON]` asks `BINARY doctor --measure` for each shape in
float32 and in int8, with random weights, for candidates of three lengths; small shapes twice, in rounds.
PYTHON is an interpreter that has torch and transformers: small shapes run there, too. Readings go into
`benches/results/choosing.json`.
`choosing.py render [--check]` makes the document's tables and charts of these readings and of
`benches/choosing_quality.json`, which has published quality with its sources. With --check, it writes
nothing, and exits with 1 if something would change.

Times are of passes, without HTTP and tokenizers. Standard library only, but for the peer."""

import argparse
import datetime
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from charts import Point, scatter
from peers import one_line_each
from systems import commit, machine

HERE = Path(__file__).resolve().parent
SHAPES = HERE.parent / "router" / "src" / "commands" / "doctor" / "shapes.json"
RESULTS, QUALITY = HERE / "results" / "choosing.json", HERE / "choosing_quality.json"
DOCS = HERE.parent / "docs"
PAGE = DOCS / "choosing.md"
# Tokens of candidates, in equal numbers: 160 in the mean.
LENGTHS = (64, 128, 288)
# Parameters up to which a shape is measured twice, and by the peer.
SMALL = 200e6
# Models whose shape another row has.
SAME = {"Qwen/Qwen3-Embedding-0.6B": "Qwen/Qwen3-Reranker-0.6B", "Qwen/Qwen3-Embedding-4B": "Qwen/Qwen3-Reranker-4B"}
# The arithmetics to measure: all but bfloat16, which the machine in the document does not multiply.
DTYPE, QUANTISED = "float32", "int8"
KINDS = {"re-ranker": "rerankers", "embedding model": "embedders"}

PEER = """
import json, sys, time
import torch
from transformers import AutoConfig, AutoModel
settings = json.load(sys.stdin)
torch.set_num_threads(settings["threads"])
torch.manual_seed(1)
config = settings["config"] | {"vocab_size": 1024, "dtype": "float32"}
for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
    config[name] = 0
model = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config)).eval()
found = {}
for tokens in settings["lengths"]:
    ids = torch.randint(1, 1000, (max(512 // tokens, 1), tokens))
    seconds = []
    with torch.inference_mode():
        for _ in range(4):
            start = time.perf_counter()
            model(input_ids=ids)
            seconds.append((time.perf_counter() - start) / len(ids))
    found[tokens] = min(seconds[1:])
print(json.dumps(found))
"""


def shapes() -> dict[str, dict]:
    return {shape["model"]: shape for shape in json.loads(SHAPES.read_text())}


def folder(work: Path, shape: dict) -> Path:
    """A folder with the configuration, whose name says the task."""
    task = "reranker" if shape["kind"] == "re-ranker" else "embedder"
    path = work / f"{shape['model'].replace('/', '--')}--{task}"
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(shape["config"]))
    return path


def asked(binary: Path, paths: list[Path], *flags: object) -> dict:
    command = [binary, "doctor", *paths, "--json", *map(str, flags)]
    # A model that does not fit here makes another exit code, and has findings nevertheless.
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return json.loads(ended.stdout)


def measured(binary: Path, work: Path, names: list[str]) -> tuple[dict, list[dict], set[str]]:
    """The machine, the readings of these models, and the names of the small ones."""
    paths = {name: folder(work, shapes()[name]) for name in names}
    plans = asked(binary, list(paths.values()))
    readings = [{"model": name, "parameters": plan["parameters"]} | choice
                for name, plan in zip(names, plans["models"], strict=True) for choice in plan["choices"]]
    small = {name for name, plan in zip(names, plans["models"], strict=True) if plan["parameters"] < SMALL}
    for round_ in range(2):
        for tokens in LENGTHS:
            chosen = [name for name in names if not round_ or name in small]
            for dtype in (DTYPE, QUANTISED):
                found = asked(binary, [paths[name] for name in chosen], "--measure", "--dtype", dtype, "--tokens", tokens)
                for name, model in zip(chosen, found["models"], strict=True):
                    readings += [{"model": name, "tokens": tokens, "round": round_} | choice for choice in model["choices"]]
                print(f"round {round_}, {tokens} tokens, {dtype}", file=sys.stderr, flush=True)
    return plans["machine"], readings, small


def measured_peers(python: Path, names: list[str], threads: int) -> list[dict]:
    """The seconds of a text in these shapes, by length, as the other interpreter computes them."""
    peers = []
    for name in names:
        settings = json.dumps({"config": shapes()[name]["config"], "lengths": LENGTHS, "threads": threads})
        ended = subprocess.run([python, "-c", PEER], input=settings, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode == 0:
            peers.append({"model": name, "seconds": json.loads(ended.stdout)})
        print(f"{name}, {python}: {ended.returncode}", file=sys.stderr, flush=True)
    return peers


def measure(arguments: argparse.Namespace) -> None:
    state = commit()
    names = [name for name in shapes() if name not in SAME and (arguments.only or "") in name]
    with tempfile.TemporaryDirectory() as work:
        about, readings, small = measured(arguments.binary, Path(work), names)
    peers = measured_peers(arguments.peer, sorted(small), about["threads"]) if arguments.peer else []
    results = {"date": datetime.date.today().isoformat(), "host": machine(), "commit": state, "lengths": LENGTHS,
               "machine": about, "peers": peers, "readings": readings}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(one_line_each(results))


class Readings:
    """The readings by model and arithmetic."""

    def __init__(self, results: dict):
        self.results = results
        self.peers = {peer["model"]: peer["seconds"] for peer in results["peers"]}

    def of(self, model: str, dtype: str) -> list[dict]:
        model = SAME.get(model, model)
        return [reading for reading in self.results["readings"] if (reading["model"], reading["dtype"]) == (model, dtype)]

    def seconds(self, model: str, dtype: str) -> float | None:
        """The seconds of 100 candidates, a third of each length; absent if a length was not measured."""
        means = []
        for tokens in self.results["lengths"]:
            rates = [reading["measured_per_second"] for reading in self.of(model, dtype) if reading.get("tokens") == tokens]
            if not rates:
                return None
            means.append(1 / statistics.median(rates))
        return 100 * statistics.mean(means)

    def memory(self, model: str, dtype: str) -> float | None:
        found = self.of(model, dtype)
        return found[0]["memory_bytes"] if found else None

    def peer_seconds(self, model: str) -> float | None:
        found = self.peers.get(model)
        return 100 * statistics.mean(found.values()) if found else None


def shown(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def time(value: float | None) -> str:
    return shown(value, 1 if value is not None and value < 100 else 0)


def gigabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e9:.2f}"


def row(model: dict, readings: Readings) -> list[str]:
    name = model["model"]
    parameters = readings.of(name, DTYPE)
    return [
        name.split("/")[1],
        f"{parameters[0]['parameters'] / 1e6:.0f} M" if parameters else "–",
        "–" if model["quality"] is None else f"{model['quality']:.{model['digits']}f}",
        *(time(readings.seconds(name, dtype)) for dtype in (DTYPE, QUANTISED)),
        time(readings.peer_seconds(name)),
        *(gigabytes(readings.memory(name, dtype)) for dtype in (DTYPE, QUANTISED)),
    ]


def table(kind: str, quality: dict, readings: Readings) -> str:
    head = ["model", "parameters", quality[kind]["column"], "100 take, s", "in int8, s", "in transformers, s", "memory, GB", "in int8, GB"]
    rows = [row(model, readings) for model in quality[kind]["models"]]
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def chart(kind: str, quality: dict, readings: Readings) -> str:
    points = []
    for model in quality[kind]["models"]:
        seconds, memory = readings.seconds(model["model"], DTYPE), readings.memory(model["model"], DTYPE)
        if seconds is not None and model["quality"] is not None:
            points.append(Point(model["model"].split("/")[1], seconds, model["quality"], memory / 1e9))
    return scatter(quality[kind]["title"], ("seconds for 100 candidates in float32 on two cores with AVX2; area: memory", quality[kind]["axis"]), points)


def rendered() -> dict[Path, str]:
    """The files that follow from the readings."""
    results, quality = json.loads(RESULTS.read_text()), json.loads(QUALITY.read_text())
    readings, page = Readings(results), PAGE.read_text()
    files = {}
    for kind in KINDS.values():
        files[DOCS / f"choosing-{kind}.svg"] = chart(kind, quality, readings)
        part = f"<!-- {kind} -->\n{table(kind, quality, readings)}<!-- /{kind} -->"
        page = re.sub(rf"<!-- {kind} -->\n.*?<!-- /{kind} -->", lambda _, part=part: part, page, flags=re.DOTALL)
    return files | {PAGE: page}


def render(check: bool) -> None:
    stale = [path for path, content in rendered().items() if not path.exists() or path.read_text() != content]
    if check:
        sys.exit(f"stale: {', '.join(path.name for path in stale)}; run benches/choosing.py render" if stale else 0)
    for path, content in rendered().items():
        path.write_text(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("measure")
    task.add_argument("--binary", type=Path, required=True)
    task.add_argument("--peer", type=Path, help="an interpreter with torch and transformers")
    task.add_argument("--only", help="a part of the names of the models to measure")
    task.add_argument("--output", type=Path, default=RESULTS)
    tasks.add_parser("render").add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.task == "measure":
        measure(arguments)
    else:
        render(arguments.check)


if __name__ == "__main__":
    main()
