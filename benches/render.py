#!/usr/bin/env python3
"""Makes tables and charts of the measurements in `benches/results/`, and puts the tables into
`docs/performance.md`, `docs/performance-details.md` and `docs/gpu.md`.

Input: `peers.json` (from peers.py), `encoders.json` (from encoders.py), `load.json` (from load.py) and
`request_costs.json` (from request_costs.py), and `encoders_gpu.json` (from encoders.py on a GPU). If a file
is missing, its part of the documents stays as it is. Output: the parts of the documents between `<!-- name
-->` and `<!-- /name -->`, and charts next to them. Invariants: the same measurements give the same documents,
and nothing else in them changes. Standard library only.
usage: render.py [--check]; with --check, it writes nothing, and exits with 1 if something would change"""

import json
import re
import statistics
import sys
from pathlib import Path

from charts import Curve, Panel, bars, curves

ROOT = Path(__file__).resolve().parent.parent
RESULTS, FOLDER = ROOT / "benches" / "results", ROOT / "docs"
DOCUMENTS = ("performance.md", "gpu.md", "performance-details.md")
WORKLOADS = {"W1": "W1, pairs/s", "W2": "W2, ms", "W3": "W3, pairs/s"}
REFERENCES = {"transformers-float32": "transformers float32", "transformers-bfloat16": "transformers bfloat16"}
MEBIBYTE = 1 << 20
OURS = ("float32", "bfloat16", "int8")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


class Peers:
    """The readings of peers.py by system and workload."""

    def __init__(self, results: dict):
        self.results, self.systems = results, results["systems"]
        asked = {reading["workload"] for reading in results["readings"]}
        self.workloads = {name: title for name, title in WORKLOADS.items() if name in asked}

    def of(self, system: str, workload: str) -> list[dict]:
        """The measured readings."""
        return [reading for reading in self.results["readings"] if reading["measured"]
                and (reading["system"], reading["workload"]) == (system, workload)]

    def values(self, system: str, workload: str) -> list[float]:
        """Milliseconds for W2, pairs per second for the others."""
        readings = self.of(system, workload)
        if workload == "W2":
            return [reading["seconds"] * 1e3 for reading in readings]
        return [len(reading["scores"]) / reading["seconds"] for reading in readings]

    def median(self, system: str, workload: str) -> float | None:
        values = self.values(system, workload)
        return statistics.median(values) if values else None

    def times_faster(self, system: str, than: str, workload: str) -> float | None:
        ours, theirs = self.median(system, workload), self.median(than, workload)
        if not ours or not theirs:
            return None
        return theirs / ours if workload == "W2" else ours / theirs

    def worst_difference(self, system: str) -> float | None:
        """The largest difference between a score and transformers' float32 score for the same request,
        including warm-up."""
        def by_request(name: str) -> dict:
            return {(reading["workload"], reading["query"]): reading["scores"]
                    for reading in self.results["readings"] if reading["system"] == name}

        reference = by_request("transformers-float32")
        differences = [abs(a - b) for request, scores in by_request(system).items() if request in reference
                       for a, b in zip(scores, reference[request], strict=True)]
        return max(differences, default=None)

    def peak(self, name: str) -> float:
        """The median peak of the run, in G/s."""
        return statistics.median(peaks[name] for peaks in self.results["peaks"])


def figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def spread(values: list[float], digits: int) -> str:
    """The median, followed by minimum and maximum in brackets."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def difference(value: float | None) -> str:
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-")


def digits(workload: str) -> int:
    return 0 if workload == "W2" else 2


def measured(peers: Peers) -> str:
    rows = []
    for system in peers.systems:
        name = system["name"]
        row = [system["label"]] + [spread(peers.values(name, workload), digits(workload)) for workload in peers.workloads]
        memory, ready = system["memory_mb"], system["ready_seconds"]
        row += [figure(memory and memory * MEBIBYTE / 1e9, 2), difference(peers.worst_difference(name)),
                figure(statistics.median(ready), 1) if system["name"] in OURS else ""]
        rows.append(row)
    head = ["", *peers.workloads.values(), "memory at most, GB", "worst score difference", "ready after, s"]
    return table(head, rows)


def ratios(peers: Peers) -> str:
    rows = []
    for name in OURS:
        row = [f"this server, {name}"]
        for workload in peers.workloads:
            times = [peers.times_faster(name, than, workload) for than in REFERENCES]
            row.append(" / ".join(figure(value, 2) or "–" for value in times))
        rows.append(row)
    return table(["times as fast as transformers in float32 / bfloat16", *peers.workloads], rows)


def shares(peers: Peers) -> str:
    """The speed of W1's forward pass as a share of the CPU's peak."""
    rows = []
    requests = [request for request in peers.results["requests"] if request["measured"] and request["workload"] == "W1"]
    for name in OURS:
        readings = {reading["query"]: reading["seconds"] for reading in peers.of(name, "W1")}
        work = [(request, readings[request["query"]]) for request in requests if request["query"] in readings]
        if not work:
            continue
        peak = peers.peak(name)
        products = statistics.median(request["products"] / seconds / 1e9 for request, seconds in work)
        all_of_it = statistics.median((request["products"] + request["attention"]) / seconds / 1e9 for request, seconds in work)
        tokens = statistics.median(request["computed"] / seconds for request, seconds in work)
        rows.append([name, f"{tokens:.0f}", f"{products:.0f}", f"{peak:.0f}", f"{100 * products / peak:.0f} %",
                     f"{100 * all_of_it / peak:.0f} %"])
    head = ["W1", "computed tokens/s", "products, G/s", "peak, G/s", "share of the peak", "attention's products counted too"]
    return table(head, rows)


def how(peers: Peers) -> str:
    """A description of the run."""
    results = peers.results
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    batches = "; ".join(
        f"{system['label']}: {', '.join(f'{size} in {workload}' for workload, size in system['batches'].items())}"
        for system in peers.systems if system["batches"])
    counts = ", ".join(f"{workload} {len(peers.of(peers.systems[0]['name'], workload))}" for workload in peers.workloads)
    return (
        f"{results['date']}, {results['machine']}; {results['threads']} threads; commit {results['commit']}; {versions}. "
        f"Readings of each system: {counts}. Medians, in brackets the least and the most. "
        f"Pairs in a batch, the fastest of those tried: {batches or 'nothing was tried'}.\n"
    )


def peers_part(peers: Peers) -> str:
    return "\n".join([how(peers), "![Speed beside other software](performance-peers.svg)\n", measured(peers), ratios(peers), shares(peers)])


def peers_chart(peers: Peers) -> str:
    rows = [(system["label"], system["label"].startswith("this server")) for system in peers.systems]
    panels = [Panel(f"{title} ({'less' if workload == 'W2' else 'more'} is better)",
                    [peers.median(system["name"], workload) for system in peers.systems], digits(workload))
              for workload, title in peers.workloads.items()]
    return bars("Re-ranking on " + peers.results["machine"], rows, panels)


def load_part(load: dict) -> str:
    rows = [[str(point["texts"]), f"{point['rate'] * point['texts']:.1f}", f"{100 * point['share']:.0f} %",
             f"{point['p50']:.0f}", f"{point['p99']:.0f}", str(point["requests"]), str(point["errors"])]
            for point in load["points"]]
    head = ["texts of a request", "pairs/s due", "of what it can do", "p50, ms", "p99, ms", "requests", "errors"]
    said = f"{load['date']}, {load['machine']}; {load['threads']} threads; {load['dtype']}; commit {load['commit']}.\n"
    return "\n".join([said, "![Latency over load](performance-load.svg)\n", table(head, rows)])


def load_chart(load: dict) -> str:
    lines = []
    for group, texts in zip(("first", "second"), sorted({point["texts"] for point in load["points"]}), strict=False):
        points = [point for point in load["points"] if point["texts"] == texts]
        for percentile, dashed in (("p50", False), ("p99", True)):
            name = f"{percentile}, {texts} text{'s' if texts > 1 else ''}"
            lines.append(Curve(name, [(point["rate"] * texts, point[percentile]) for point in points], group, dashed))
    return curves(f"Latency over load, {load['dtype']}", ("pairs/s due", "ms"), lines)


def encoders_part(results: dict) -> str:
    """A table for each model. The share of its products in the peak uses the peak of the same run."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts = [f"{results['date']}, {results['machine']}; {results['threads']} threads; commit {results['commit']}; {versions}. Medians.\n"]
    for model in results["models"]:
        noun = "pairs" if model["pairs"] else "texts"
        rows = []
        for label, readings in model["systems"].items():
            rate = statistics.median(readings["many"])
            dtype = label.rsplit(" ", 1)[1]
            row = [label, f"{rate:.1f}"]
            if model["peaks"]:
                peak = statistics.median(peaks[dtype] for peaks in model["peaks"])
                row.append(f"{100 * rate * 128 * 2 * model['parameters'] / 1e9 / peak:.0f} %")
            else:
                row.append(f"{statistics.median(readings['many_clients']):.0f}" if readings["many_clients"] else "–")
            row.append(f"{statistics.median(readings['one']):.2f}")
            row += [f"{statistics.median(readings['load']):.0f}" if readings["load"] else "–"]
            row.append(difference(max(readings.get("error", 0.0), 0.0)))
            rows.append(row + ([figure(readings["memory_mb"] * MEBIBYTE / 1e9, 2)] if model["peaks"] else []))
        head = [model["title"], f"32 {noun} of 128 tokens, {noun}/s", "share of the peak" if model["peaks"] else "64 clients of such",
                f"one {noun[:-1]} of 12 words, ms", "64 clients of such, requests/s",
                "worst score difference" if model["pairs"] else "1 − least cosine", *(["memory at most, GB"] if model["peaks"] else [])]
        parts.append(table(head, rows))
    return "\n".join(parts)


def request_costs_part(results: dict) -> str:
    """A row for each load: medians over the rounds."""
    loads: dict[tuple[int, int], list[dict]] = {}
    for reading in results["readings"]:
        loads.setdefault((reading["threads"], reading["clients"]), []).append(reading)
    kinds = list(results["readings"][0]["cpu_microseconds"])
    rows = []
    for (threads, clients), readings in loads.items():
        def median(field: str, of: list[dict] = readings) -> float:
            return statistics.median(reading[field] for reading in of)

        rate = median("requests_per_second")
        row = [str(threads), str(clients), f"{rate:.0f}", f"{median('p50_ms'):.1f}", f"{median('device_ms'):.2f}",
               f"{100 * statistics.median(reading['requests_per_second'] * reading['device_ms'] / 1000 for reading in readings):.0f} %"]
        rows.append(row + [f"{statistics.median(reading['cpu_microseconds'][kind] for reading in readings):.0f}" for kind in kinds])
    head = ["threads", "clients", "requests/s", "p50, ms", "forward pass of a text, ms", "share of the time in passes",
            *(f"CPU, µs: {kind}" for kind in kinds)]
    title = f"{results['date']}, {results['machine']}; commit {results['commit']}; {results['dtype']}"
    return f"{title}; texts of {results['words']} words; medians of {len(next(iter(loads.values())))} readings\n\n" + table(head, rows)


def summary_part(peers: Peers, encoders: dict) -> str:
    """Speed of all systems, then latency of this server, with a row for each model."""
    labels = ["this server, float32", "this server, bfloat16", "this server, int8", "transformers, bfloat16", "OpenVINO, bfloat16",
              "onnxruntime, float32", "onnxruntime, int8", "llama.cpp, BF16"]
    speeds, latencies = [], []
    for model in encoders["models"]:
        systems, title = model["systems"], model["title"].split(" (")[0]
        rates = [statistics.median(systems[label]["many"]) if label in systems else None for label in labels]
        speeds.append([f"{title}, {'pairs' if model['pairs'] else 'texts'}/s", *rates])
        ours = [systems[label] for label in labels[:3]]
        latencies.append([title, *(f"{statistics.median(row['one']):.0f}" for row in ours)])
    named = {system["label"]: system for system in peers.systems}
    qwen = "Qwen3-Reranker-0.6B's shape"
    speeds.append([f"{qwen}, pairs/s", *(peers.median(named[label]["name"], "W1") if label in named else None for label in labels)])
    latencies.append([qwen, *(f"{peers.median(named[label]['name'], 'W2'):.0f}" for label in labels[:3])])
    rows = [[name, *("–" if rate is None else f"{rate:.1f}" for rate in rates)] for name, *rates in speeds]
    kinds = ["float32", "bfloat16", "int8"]
    return "\n".join([
        table(["32 texts or pairs of about 128 tokens in one request", *labels], rows),
        table(["one short text or pair, ms", *(f"this server, {kind}" for kind in kinds)], latencies),
    ])


def put(document: str, name: str, content: str) -> str:
    """The document with the part `name` replaced."""
    part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not part.search(document):
        sys.exit(f"no document has a part between `<!-- {name} -->` and `<!-- /{name} -->`")
    return part.sub(lambda found: found[1] + content + found[2], document)


def rendered(results: Path, documents: dict[str, str]) -> dict[str, str]:
    """The documents and the charts next to them, by file name."""
    files = dict(documents)

    def place(name: str, content: str) -> None:
        holder = next((file for file, text in documents.items() if f"<!-- {name} -->" in text), DOCUMENTS[-1])
        files[holder] = put(files[holder], name, content)

    peers = encoders = None
    if (path := results / "peers.json").exists():
        peers = Peers(json.loads(path.read_text()))
        place("peers", peers_part(peers))
        files["performance-peers.svg"] = peers_chart(peers)
    if (path := results / "encoders.json").exists():
        encoders = json.loads(path.read_text())
        place("encoders", encoders_part(encoders))
    if (path := results / "encoders_gpu.json").exists():
        place("gpu-encoders", encoders_part(json.loads(path.read_text())))
    if peers and encoders:
        place("summary", summary_part(peers, encoders))
    if (path := results / "load.json").exists():
        load = json.loads(path.read_text())
        place("load", load_part(load))
        files["performance-load.svg"] = load_chart(load)
    if (path := results / "request_costs.json").exists():
        place("request-costs", request_costs_part(json.loads(path.read_text())))
    return files


def main() -> None:
    stale = []
    for name, content in rendered(RESULTS, {name: (FOLDER / name).read_text() for name in DOCUMENTS}).items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != content:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(content)
    if stale:
        print(("stale: " if "--check" in sys.argv else "written: ") + ", ".join(stale))
    sys.exit(1 if stale and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
