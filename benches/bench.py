#!/usr/bin/env python3
"""Speed and latency of the server, text in to scores out, over HTTP.

Starts the binary on the given model, sends three workloads one request at a time, and prints for each the pairs and
prompt tokens per second and the median and 95th percentile of the latency:
  W1  one query x 32 texts of about 128 tokens
  W2  one short pair
  W3  one query x 8 texts of about 1,000 tokens
Tokens are those of Qwen3's tokenizer; another one makes more of the same texts. Standard library only."""

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
WORKLOADS = {"W1": ("w1.json", 3), "W2": ("w2.json", 20), "W3": ("w3.json", 2)}


def machine() -> str:
    name = platform.processor() or platform.machine()
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
        name = found[1] if found else name
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


class Server:
    """The binary on a port that the system chose; read from its log."""

    def __init__(self, binary: Path, model: Path, flags: list[str]):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [binary, "--model-id", model, "--model-type", "listwise-reranker", "--hostname", "127.0.0.1"]
        command += ["--port", "0", "--prometheus-port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://127.0.0.1:{self.wait_for_port()}"

    def wait_for_port(self) -> str:
        for _ in range(1200):
            text = Path(self.log.name).read_text()
            if found := re.search(r"listening on \S*:(\d+)", text):
                return found[1]
            if self.process.poll() is not None:
                sys.exit(f"the server did not start:\n{text}")
            time.sleep(0.1)
        sys.exit("the server was not ready after two minutes")

    def rerank(self, workload: dict) -> tuple[float, dict]:
        body = {"query": workload["query"], "texts": workload["documents"]}
        request = urllib.request.Request(
            f"{self.url}/rerank", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        start = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            json.load(answer)
            return time.perf_counter() - start, dict(answer.headers)

    def memory(self) -> dict[str, int]:
        """Peak and current resident megabytes, where the system tells them."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return {}
        fields = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
        return {field: int(re.search(rf"{field}:\s*(\d+)", status)[1]) // 1024 for field in fields}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def percentile(times: list[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def measure(server: Server, name: str, rounds: int) -> dict:
    workload = json.loads((HERE / "workloads" / name).read_text())
    server.rerank(workload)
    answers = [server.rerank(workload) for _ in range(rounds)]
    times = [seconds for seconds, _ in answers]
    median = statistics.median(times)
    pairs, tokens = len(workload["documents"]), int(answers[0][1]["x-compute-tokens"])
    return {
        "pairs": pairs,
        "prompt_tokens": tokens,
        "requests": rounds,
        "pairs_per_second": pairs / median,
        "tokens_per_second": tokens / median,
        "p50_ms": median * 1e3,
        "p95_ms": percentile(times, 0.95) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workloads", default="W1,W2,W3", help="which, separated by commas")
    parser.add_argument("--output", type=Path, help="write the results as JSON here too")
    arguments, flags = parser.parse_known_args()
    print(f"machine: {machine()}\nmodel:   {arguments.model} {' '.join(flags)}\n")
    server = Server(arguments.binary, arguments.model, flags)
    results = {}
    try:
        print(f"{'':4}{'pairs':>6}{'tokens':>8}{'pairs/s':>10}{'tokens/s':>10}{'p50 ms':>10}{'p95 ms':>10}")
        for workload in arguments.workloads.split(","):
            row = results[workload] = measure(server, *WORKLOADS[workload])
            print(
                f"{workload:4}{row['pairs']:6}{row['prompt_tokens']:8}{row['pairs_per_second']:10.2f}"
                f"{row['tokens_per_second']:10.0f}{row['p50_ms']:10.0f}{row['p95_ms']:10.0f}",
                flush=True,
            )
        if memory := server.memory():
            print(f"\nresident memory: {memory['VmHWM']} MB at most, of which now {memory['RssFile']} MB are the "
                  f"checkpoint's mapped file and {memory['RssAnon']} MB the server's own")
            results["memory_mb"] = memory
    finally:
        server.stop()
    if arguments.output:
        arguments.output.write_text(json.dumps({"machine": machine(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
