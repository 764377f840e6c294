"""The benchmarks' own arithmetic: the requests that they send, and how readings become a document. Nothing is
timed.

The reference is brute force on random texts, numbers computed by hand, and the checked-in document."""

import json
import random
import re
import statistics
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

BENCHES = Path(__file__).resolve().parent.parent / "benches"
sys.path.append(str(BENCHES))  # at the end, so that installed packages of the same names come first
import asked  # noqa: E402
import charts  # noqa: E402
import choosing  # noqa: E402
import gpu  # noqa: E402
import peer  # noqa: E402
import render  # noqa: E402


def test_each_different_beginning_of_a_text_is_a_token_to_compute():
    generator = random.Random(31)
    for _ in range(300):
        texts = [[generator.randrange(3) for _ in range(generator.randrange(1, 9))] for _ in range(generator.randrange(1, 7))]
        beginnings = {tuple(text[: length + 1]) for text in texts for length in range(len(text))}
        assert sorted(asked.unique_depths(texts)) == sorted(map(len, beginnings))


def test_the_kept_beginning_of_earlier_requests_is_not_computed_again(fixture_model):
    work = asked.Work(fixture_model)
    first = work.of({"query": "what is the capital of france?", "documents": ["Paris.", "Rome."]})
    again = work.of({"query": "what is the capital of france?", "documents": ["Paris.", "Rome."]})
    ids = work.prompts.ids("what is the capital of france?", ["Paris.", "Rome."])
    assert first["tokens"] == sum(map(len, ids)) and first["computed"] == first["unique"]
    # Kept: system line, instruction and query, and nothing of the documents.
    kept = first["computed"] - again["computed"]
    assert len(work.prompts.prompt.prefix) + 10 < kept < asked.same(*ids) + 1
    config = json.loads((fixture_model / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries, keys = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    weights = hidden * queries + 2 * hidden * keys + queries * hidden + 3 * hidden * inner
    assert again["products"] == 2 * config["num_hidden_layers"] * weights * again["computed"]


@pytest.fixture
def fixture_model() -> Path:
    return Path(__file__).resolve().parent / "reference" / "fixtures" / "models" / "tied-bf16"


@pytest.mark.parametrize("workload", ["W1", "W2", "W3"])
def test_no_two_requests_of_a_workload_have_the_same_query_and_the_first_is_the_file_s(workload):
    content = json.loads((BENCHES / "workloads" / f"{workload.lower()}.json").read_text())
    requests = asked.Asked(workload)
    found = [requests.request(index, 1)["query"] for index in range(len(requests.queries))]
    assert found[0] == content["query"] and len(set(found)) == len(found)
    assert requests.request(0, 1)["documents"] == content["documents"]
    with pytest.raises(SystemExit, match=f"{workload}: {len(found) + 1} requests"):
        requests.request(len(found), 1)


def test_a_batch_has_texts_of_similar_length_and_scores_come_back_in_order():
    generator = random.Random(32)
    for _ in range(100):
        ids = [[generator.randrange(99)] * generator.randrange(1, 30) for _ in range(generator.randrange(1, 20))]
        size = generator.randrange(1, 8)
        sizes, padding = [], []

        def score(texts: list[list[int]]) -> list[float]:
            sizes.append(len(texts))
            padding.append(max(map(len, texts)) - min(map(len, texts)))
            return [len(text) + text[0] / 100 for text in texts]

        assert peer.batched(ids, size, score) == [len(text) + text[0] / 100 for text in ids]
        assert sum(sizes) == len(ids) and max(sizes) <= size
        lengths = sorted(map(len, ids))
        assert padding == [lengths[min(start + size, len(ids)) - 1] - lengths[start] for start in range(0, len(ids), size)]


def results() -> dict:
    """Two of our configurations and two references. int8's largest error is in the warm-up's score."""
    def reading(system: str, workload: str, query: int, seconds: float, scores: list[float]) -> dict:
        return {"system": system, "workload": workload, "round": query - 1, "query": query, "measured": query > 0,
                "seconds": seconds, "scores": scores}

    times = {"float32": (4.0, 5.0, 2.0), "int8": (1.0, 1.5, 1.25),
             "transformers-float32": (8.0, 10.0, 9.0), "transformers-bfloat16": (5.0, 4.0, 6.0)}
    scores = {"float32": 0.5, "int8": 0.55, "transformers-float32": 0.5000004, "transformers-bfloat16": 0.48}
    readings = [reading(name, "W1", query + 1, seconds, [scores[name], 0.25])
                for name, each in times.items() for query, seconds in enumerate(each)]
    readings += [reading(name, "W2", 1, 0.1 * each[0], [0.75]) for name, each in times.items()]
    readings += [reading(name, "W1", 0, 99.0, [0.5, 0.4 if name == "int8" else 0.25]) for name in times]
    systems = [{"name": name, "label": name if "-" in name else f"this server, {name}", "detail": "", "memory_mb": 1500,
                "batches": {"W1": 4} if "-" in name else {}, "ready_seconds": [3.0, 2.5, 4.0]} for name in times]
    requests = [{"workload": "W1", "query": query, "measured": query > 0, "computed": 40, "products": int(2e12),
                 "attention": int(1e12)} for query in range(4)]
    return {"date": "2026-01-02", "machine": "a CPU & more", "threads": 2, "commit": "abc", "versions": {"torch": "2"},
            "systems": systems, "readings": readings, "requests": requests,
            "peaks": [{"float32": peak, "int8": 4000, "bfloat16": 2000} for peak in (900, 1000, 1300)]}


def rows(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("|")]


def test_a_table_has_medians_spreads_memory_and_the_worst_score_difference():
    table = {row[0]: row[1:] for row in rows(render.measured(render.Peers(results())))}
    # Two pairs in 4, 5 and 2 s; in 1, 1.5 and 1.25 s. Without readings, W3 has no column.
    assert table["this server, float32"] == ["0.50 (0.40–1.00)", "400", "1.57", "4e-7", "3.0"]
    assert table["this server, int8"] == ["1.60 (1.33–2.00)", "100", "1.57", "0.150", "3.0"]
    assert table["transformers-bfloat16"][-2:] == ["0.020", ""] and table["transformers-float32"][-2] == "0"


def test_ratios_are_those_of_the_medians_and_larger_is_faster():
    table = {row[0]: row[1:] for row in rows(render.ratios(render.Peers(results())))}
    # 9 and 5 s against 4 s, 800 and 500 ms against 400 ms.
    assert table["this server, float32"] == ["2.25 / 1.25", "2.00 / 1.25"]
    assert table["this server, bfloat16"] == ["– / –", "– / –"]


def test_the_share_of_the_peak_is_that_of_the_run_s_median():
    table = {row[0]: row[1:] for row in rows(render.shares(render.Peers(results())))}
    # 40 tokens and 2000 G of products in 4 s, against a peak of 1000 G/s; attention adds 1000 G.
    assert table["float32"] == ["10", "500", "1000", "50 %", "75 %"]
    assert table["int8"][2:] == ["4000", "40 %", "60 %"]
    assert "bfloat16" not in table


def test_only_the_parts_between_marks_change():
    document = "a\n<!-- peers -->\nold\n<!-- /peers -->\nb\n<!-- load -->\nkept\n<!-- /load -->\n"
    assert render.put(document, "peers", "new \\1\n") == document.replace("old\n", "new \\1\n")
    with pytest.raises(SystemExit, match="<!-- roofline -->"):
        render.put(document, "roofline", "x")


def test_charts_are_xml_and_say_every_number():
    peers = render.Peers(results())
    tree = ElementTree.fromstring(render.peers_chart(peers))
    written = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]
    for system in ("float32", "int8", "transformers-float32", "transformers-bfloat16"):
        assert f"{peers.median(system, 'W1'):.2f}" in written
    points = [{"texts": texts, "share": share, "rate": 10 * share / texts, "p50": 50 * texts + share, "p99": 900 * share,
               "requests": 9, "errors": 0} for texts in (1, 8) for share in (0.1, 0.5, 1.1)]
    load = {"date": "", "machine": "", "threads": 2, "dtype": "bfloat16", "commit": "", "points": points}
    tree = ElementTree.fromstring(render.load_chart(load))
    said = [element.text for element in tree.iter("{http://www.w3.org/2000/svg}title")]
    for point in points:
        at = point["rate"] * point["texts"]
        assert f"p99, {point['texts']} text{'s' if point['texts'] > 1 else ''}: {point['p99']:.0f} at {at:.1f}" in said
    assert len(rows(render.load_part(load))) == 2 + len(points)


def test_ticks_are_round_and_within():
    generator = random.Random(33)
    for _ in range(200):
        low = 10 ** generator.uniform(-3, 3)
        high = low * 10 ** generator.uniform(0.5, 3)
        found = charts.ticks(low, high)
        assert found and all(low <= tick <= high and f"{tick:e}"[0] in "125" for tick in found)
        assert 4 <= len(charts.steps(high)) <= 11 and charts.steps(high)[-1] <= high * (1 + 1e-9)


def test_the_documents_follow_from_the_measurements():
    """`python3 benches/render.py` writes them."""
    documents = {name: (render.FOLDER / name).read_text() for name in render.DOCUMENTS}
    for name, content in render.rendered(render.RESULTS, documents).items():
        assert (render.FOLDER / name).read_text() == content, name


def test_medians_need_no_even_number_of_readings():
    assert render.spread([3.0, 1.0], 1) == f"{statistics.median([1, 3]):.1f} (1.0–3.0)"
    assert render.spread([2.0], 1) == "2.0" and render.spread([], 1) == ""


def test_the_speeds_in_the_readme_are_those_of_the_run():
    peers = render.Peers(json.loads((BENCHES / "results/peers.json").read_text()))
    section = (BENCHES.parent / "README.md").read_text().partition("## How fast")[2].partition("##")[0]
    said = [float(number) for number in re.findall(r"(\d+\.\d)\b|(?:takes|and) (\d+)\s+ms", section) for number in number if number]
    systems = ("bfloat16", "int8", "transformers-bfloat16")
    pairs = [round(peers.median(system, "W1"), 1) for system in systems]
    assert said == pairs + [round(peers.median(system, "W2")) for system in systems]


class TestRerankers:
    """The shapes of re-rankers, and the table made from their readings."""

    @pytest.fixture
    def speeds(self):
        pytest.importorskip("numpy")
        import reranker_speeds

        return reranker_speeds

    def test_the_products_of_a_layer_are_those_of_its_matrices(self, speeds):
        for shape in [speeds.BASE, *speeds.SHAPES]:
            shapes = speeds.tensor_shapes(shape, 1000)
            matrices = [of for name, of in shapes.items() if ".layers.0." in name and len(of) == 2]
            assert sum(rows * columns for rows, columns in matrices) == shape.layer_weights
            assert 0 < shape.layers <= shape.all_layers
            config = speeds.configuration(shape, 1000)
            assert config["num_hidden_layers"] == shape.layers and config["architectures"] == [shape.architecture]

    def test_every_family_of_the_page_has_a_shape(self, speeds):
        page = speeds.PAGE.read_text()
        shapes = {shape.family for shape in [speeds.BASE, *speeds.SHAPES]}
        rows = [line for line in page.split("## What each does")[0].splitlines() if line.startswith("| `")]
        assert {row.split("`")[1] for row in rows} == shapes | speeds.NOT_MEASURED
        assert page.count(speeds.BEGIN) == page.count(speeds.END) == 1

    def test_the_checked_in_page_has_the_checked_in_readings(self, speeds):
        results = json.loads((BENCHES / "results/rerankers.json").read_text())
        assert speeds.BEGIN + speeds.table(results) + speeds.END in speeds.PAGE.read_text()

    def test_a_reading_becomes_a_row(self, speeds):
        pairs = len(speeds.WORKLOAD["documents"])
        readings = [{"seconds": seconds, "tokens": 5000, "computed": 4000} for seconds in (2.0, 1.0, 4.0)]
        shape = next(shape for shape in speeds.SHAPES if shape.layers < shape.all_layers)
        found = speeds.summary(shape, readings)
        # In the last layer, only keys and values are computed for all tokens.
        assert found["seconds"] == 2.0
        assert found["pairs_per_second"] == pytest.approx(pairs / 2 * (shape.layers - 1) / (shape.all_layers - 1))
        keys = shape.heads[1] * shape.head * shape.hidden
        products = (shape.layers - 1) * shape.layer_weights + 2 * keys
        assert found["gflops"] == pytest.approx(2 * products * 4000 / 2 / 1e9)
        base = speeds.summary(speeds.BASE, readings)
        results = {"date": "d", "machine": "m", "threads": 2, "dtype": "bfloat16", "commit": "c", "rounds": 3}
        lines = speeds.table(results | {"rows": [{"base": base, "shape": found}]}).splitlines()
        assert lines[-1].startswith(f"| {shape.name} ") and "5000, 4000" in lines[-1]


def gpu_reading(system: str, workload: str, seconds: float, scores: list[float], **other: object) -> dict:
    return {"system": system, "workload": workload, "query": 2, "batch": 1, "again": False, "measured": True, "seconds": seconds,
            "scores": scores} | other


def test_the_table_of_a_gpu_has_the_fastest_batch_and_the_worst_score():
    readings = [
        gpu_reading(gpu.REFERENCE, "W1", 0.4, [0.5, 0.25]),
        gpu_reading(gpu.REFERENCE, "W1", 0.2, [0.5, 0.25], batch=8),
        gpu_reading(gpu.REFERENCE, "W1", 0.3, [0.5, 0.25], batch=8),
        gpu_reading("server-bfloat16", "W1", 0.01, [0.5, 0.26]),
        gpu_reading("server-bfloat16", "W1", 0.005, [0.5, 0.26], again=True),
        # Not measured, yet its scores count.
        gpu_reading("server-bfloat16", "W1", 9.0, [0.53, 0.25], measured=False),
        gpu_reading("server-bfloat16", "W2", 0.0125, [0.1]),
        gpu_reading("server-bfloat16", "W2", 0.0135, [0.1]),
        gpu_reading("server-bfloat16", "W2", 0.5, [0.1]),
    ]
    load = {"pairs_per_second": 1.0, "computed_tokens_per_second": 123456}
    systems = [
        {"name": "server-bfloat16", "label": "ours", "ready_seconds": 1.25, "memory_mb": 2048, "load": load, "new_lengths": 0.0042},
        {"name": gpu.REFERENCE, "label": "theirs", "ready_seconds": 9.0, "memory_mb": None, "load": None, "new_lengths": None},
    ]
    results = {"date": "2026-01-02", "requests": 4, "card": "a card", "commit": "abc", "versions": {"torch": "2"}, "systems": systems, "readings": readings}
    rows = gpu.table(results).splitlines()
    assert rows[0].startswith("2026-01-02, a card; commit abc; torch 2. Medians of 4 requests")
    assert rows[-2] == "| ours | 200 | 13.5 |  | 400 | 4.2 | 123,456 | 0.030 | 2.0 | 1.2 |"
    assert rows[-1] == "| theirs | 8 |  |  |  |  |  | 0 |  | 9.0 |"
    assert render.put(gpu.DOCUMENT.read_text(), "gpu", gpu.table(results)).count("| ours | 200 |") == 1


def test_the_tables_of_choosing_follow_from_the_readings():
    assert [path.name for path, content in choosing.rendered().items() if path.read_text() != content] == []


def test_the_time_of_100_candidates_is_the_mean_of_the_lengths_medians():
    reading = {"model": "a/b", "dtype": "int8", "memory_bytes": 5}
    rates = [(64, 10.0), (64, 30.0), (64, 20.0), (128, 5.0)]
    readings = [reading | {"tokens": tokens, "measured_per_second": rate} for tokens, rate in rates]
    results = {"lengths": [64, 128], "readings": readings, "peers": [{"model": "a/b", "seconds": {"64": 0.5, "128": 1.5}}]}
    found = choosing.Readings(results)
    assert abs(found.seconds("a/b", "int8") - 100 * (0.05 + 0.2) / 2) < 1e-9
    assert found.seconds("a/b", "float32") is None and found.memory("a/b", "int8") == 5
    assert found.peer_seconds("a/b") == 100
    assert choosing.Readings(results | {"lengths": [64, 288]}).seconds("a/b", "int8") is None


def test_a_scatter_has_a_circle_and_a_name_for_each_point():
    drawn = ElementTree.fromstring(charts.scatter("T", ("x", "y"), [charts.Point("small", 1, 5, 1), charts.Point("large", 100, 6, 4)]))
    space = "{http://www.w3.org/2000/svg}"
    small, large = sorted(drawn.iter(f"{space}circle"), key=lambda circle: float(circle.get("r")))
    assert abs(float(large.get("r")) / float(small.get("r")) - 2) < 0.02
    assert float(large.get("cx")) > float(small.get("cx")) and float(large.get("cy")) < float(small.get("cy"))
    assert {"small", "large"} <= {text.text for text in drawn.iter(f"{space}text")}
