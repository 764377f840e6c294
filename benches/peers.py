#!/usr/bin/env python3
"""Measures this server and other software on the same work: `make peers`.

Sets up `transformers`, `onnxruntime` and llama.cpp in a virtual environment, starts all systems, and asks one
after the other, in rounds (A B C A B C …). A system that is not being asked is paused (SIGSTOP). Input: the
binary, a bfloat16 model folder. Output: every single reading as JSON, from which `render.py` makes tables and
charts. Invariants: all systems get the same requests and threads; all scores are compared with
`transformers`' in float32.

It starts with the standard library alone, and restarts itself inside the environment that it makes."""

import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from peer_setup import environment, model_file
from systems import RERANKER, SYSTEMS, Peer, Process, Server, System, commit, machine

HERE = Path(__file__).resolve().parent
# Requests of a turn: first the requests that warm up the caches and are not measured, then the measured ones.
TURN = {"W1": (0, 1), "W2": (1, 5), "W3": (0, 1)}
ROUNDS = {"W1": 3, "W2": 4, "W3": 2}
# Batch sizes to try, in pairs, and the number of documents for the trial.
BATCHES = {"W1": ((1, 4, 16), 16), "W3": ((1, 4), 4)}
SCRIPTS = {"transformers": "transformers_peer.py", "onnx": "onnx_peer.py", "openvino": "openvino_peer.py", "llama": "llama_peer.py"}
PACKAGES = ("transformers", "torch", "onnxruntime", "openvino", "llama-cpp-python")
PEAKS = "cargo bench --quiet -p text-embeddings-backend-candle --features benchmarks --bench peaks --locked"
# Measured starts of a server. An unmeasured one comes first and reads the model from disk.
STARTS = 3


def started(system: System, arguments: argparse.Namespace, python: Path) -> tuple[Process, list[float]]:
    """The system, ready and paused, and the seconds that each start took."""
    print(f"starting {system.label}", file=sys.stderr, flush=True)
    if system.kind == "server":
        def start() -> Process:
            return Server(arguments.binary, arguments.model, [*RERANKER, *system.detail.split()], arguments.threads)
        count = STARTS
    else:
        file = model_file(python, arguments.work / arguments.model.name, arguments.model, system.kind, system.detail)
        extra = {"transformers": [system.detail, "cpu"], "openvino": [file, system.detail]}.get(system.kind, [file])
        def start() -> Process:
            return Peer(python, SCRIPTS[system.kind], [arguments.model, *extra], arguments.threads)
        count = 1
    process, seconds = start(), []
    for _ in range(count):
        process.stop()
        process = start()
        seconds.append(process.ready_seconds)
    process.hold()
    return process, seconds


class Run:
    """A measurement: the systems, and the results so far."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        systems: list[System],
        processes: dict[str, Process],
        starts: dict[str, list[float]],
    ):
        # Imported here, because the Python that started this program may lack their packages.
        from asked import Asked, Work

        self.arguments, self.systems, self.processes, self.starts = arguments, systems, processes, starts
        self.asked = {name: Asked(name, arguments.documents) for name in arguments.rounds}
        self.work = Work(arguments.model)
        self.next = dict.fromkeys(self.asked, 0)
        self.batches: dict[tuple[str, str], int] = {}
        self.peaks: list[dict] = []
        self.tuning: list[dict] = []
        self.known: list[dict] = json.loads(arguments.tuning.read_text())["tuning"] if arguments.tuning else []
        self.readings: list[dict] = []
        # Read before the results are written, because these would make the working tree dirty.
        self.commit = commit()
        self.requests: list[dict] = []

    def ask(self, system: System, request: dict) -> dict:
        process = self.processes[system.name]
        process.release()
        try:
            return process.rerank(request)
        finally:
            process.hold()

    def tune(self, system: System) -> None:
        """Chooses the batch size with which this system is fastest."""
        for workload in self.asked:
            known = [reading for reading in self.known if (reading["system"], reading["workload"]) == (system.name, workload)]
            tried = known or self.tried(system, workload)
            self.tuning += tried
            self.batches[system.name, workload] = min(tried, key=lambda reading: reading["seconds"])["batch"]

    def tried(self, system: System, workload: str) -> list[dict]:
        """The time of a request with each batch size."""
        sizes, documents = BATCHES.get(workload, ((1,), 1))
        readings = []
        for size in sizes:
            request = self.asked[workload].request(0, size)
            request["documents"] = request["documents"][:documents]
            # The first request after a start is slower than all others.
            for _ in range(1 if readings else 2):
                seconds = self.ask(system, request)["seconds"]
            reading = {"system": system.name, "workload": workload, "batch": size, "documents": len(request["documents"])}
            readings.append(reading | {"seconds": seconds})
        return readings

    def take_turn(self, system: System, workload: str, first: int, counts: tuple[int, int], round_: int) -> None:
        """Sends some requests. The first of them are not measured."""
        warm, measured = counts
        process = self.processes[system.name]
        process.release()
        for index in range(first, first + warm + measured):
            batch = self.batches.get((system.name, workload), 1)
            answer = process.rerank(self.asked[workload].request(index, batch))
            reading = {"system": system.name, "workload": workload, "round": round_, "query": index,
                       "measured": index >= first + warm, "seconds": round(answer["seconds"], 5),
                       "scores": [round(score, 7) for score in answer["scores"]]}
            self.readings.append(reading)
            if reading["measured"]:
                print(f"{workload} round {round_} {system.label}: {answer['seconds'] * 1e3:.0f} ms", file=sys.stderr, flush=True)
        process.hold()

    def take_round(self, workload: str, counts: tuple[int, int], round_: int) -> None:
        first = self.next[workload]
        self.next[workload] += sum(counts)
        for index in range(first, first + sum(counts)):
            work = self.work.of(self.asked[workload].request(index, 1))
            self.requests.append({"workload": workload, "query": index, "measured": index >= first + counts[0]} | work)
        for system in self.systems:
            if workload in system.workloads:
                self.take_turn(system, workload, first, counts, round_)

    def measure(self) -> None:
        """Warms up, then runs all rounds of all workloads."""
        for system in self.systems:
            if system.batched:
                self.tune(system)
        for workload in self.asked:
            self.take_round(workload, (1, 0), -1)
            self.save()
        for round_ in range(max(self.arguments.rounds.values())):
            for workload, rounds in self.arguments.rounds.items():
                if round_ < rounds:
                    self.measure_peaks()
                    self.take_round(workload, TURN[workload], round_)
            self.save()

    def measure_peaks(self) -> None:
        variables = os.environ | {"THREADS": str(self.arguments.threads)}
        ended = subprocess.run(self.arguments.peaks, env=variables, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent)
        self.peaks.append(json.loads(ended.stdout))

    def save(self) -> None:
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "threads": self.arguments.threads,
            "model": self.arguments.model.name,
            "commit": self.commit,
            "versions": versions(),
            "systems": [self.described(system) for system in self.systems],
            "peaks": self.peaks,
            "requests": self.requests,
            "tuning": self.tuning,
            "readings": self.readings,
        }
        self.arguments.output.parent.mkdir(parents=True, exist_ok=True)
        self.arguments.output.write_text(one_line_each(results))

    def described(self, system: System) -> dict:
        process = self.processes[system.name]
        batches = {workload: size for (name, workload), size in self.batches.items() if name == system.name}
        return {"name": system.name, "label": system.label, "detail": system.detail, "batches": batches,
                "ready_seconds": [round(seconds, 2) for seconds in self.starts[system.name]], "memory_mb": process.memory().get("VmHWM")}


def versions() -> dict[str, str]:
    found = {package: metadata.version(package) for package in PACKAGES if has(package)}
    return found | {"python": sys.version.split()[0]}


def has(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def one_line_each(results: dict) -> str:
    """JSON with one line for each element of a list, so that results can be read and compared."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list):
            value = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
        else:
            value = json.dumps(value)
        parts.append(f" {json.dumps(key)}: {value}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def rounds(text: str) -> dict[str, int]:
    """`W1=3,W2=4` as a dictionary."""
    chosen = dict(part.split("=") for part in text.split(","))
    if unknown := set(chosen) - set(TURN):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)[0]} is not a workload; the workloads are {', '.join(TURN)}")
    return {name: int(count) for name, count in chosen.items()}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help="this server")
    parser.add_argument("--peaks", type=shlex.split, default=PEAKS, help="command that prints the CPU's peaks (default: %(default)s)")
    parser.add_argument("--model", type=Path, required=True, help="a folder that benchmark_model.py wrote")
    parser.add_argument("--work", type=Path, default=Path("target/peers"), help="folder for the environment and the model files")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "peers.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=rounds, default=ROUNDS, help="rounds of each workload: W1=3,W2=4,W3=2")
    parser.add_argument("--tuning", type=Path, help="earlier results of this machine, whose batch sizes are used without new trials")
    parser.add_argument("--systems", default=",".join(system.name for system in SYSTEMS), help="names of systems to measure")
    parser.add_argument("--documents", type=int, help="use only this number of documents of each workload, to try this program out")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    names = arguments.systems.split(",")
    if unknown := set(names) - {system.name for system in SYSTEMS}:
        sys.exit(f"--systems: {sorted(unknown)[0]} is not known; the systems are {', '.join(system.name for system in SYSTEMS)}")
    systems = [system for system in SYSTEMS if system.name in names]
    python = environment(arguments.work, {system.kind for system in systems}).absolute()
    if Path(sys.prefix) != python.parent.parent:
        os.execv(python, [str(python), *sys.argv])
    (arguments.work / arguments.model.name).mkdir(parents=True, exist_ok=True)
    # Without this handler, a killed program would leave paused processes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    processes: dict[str, Process] = {}
    starts: dict[str, list[float]] = {}
    try:
        for system in systems:
            processes[system.name], starts[system.name] = started(system, arguments, python)
        Run(arguments, systems, processes, starts).measure()
    finally:
        for process in processes.values():
            process.stop()
    print(f"wrote {arguments.output}; `python3 benches/render.py` makes tables and charts of it", file=sys.stderr)


if __name__ == "__main__":
    main()
