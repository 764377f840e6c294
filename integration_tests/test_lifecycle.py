"""The server's process: its description of itself, its metrics and its end."""

import json
import re
import signal
import socket
import subprocess
import time

import pytest
import requests
from reference_data import CASES, PROMPT
from server import BINARY, LISTEN, ROOT, VERSION, Background, Server, run, variables, wait_until

LONG = CASES["over-default-limit"]["document"]
SLOW = [f"{number} {LONG}" for number in range(8)]


def begun(server: Server, texts: list[str]) -> Background:
    """Starts a request and waits until its computation has begun."""
    request = Background(server.rerank, "q", texts)
    wait_until(lambda: server.metrics().get("te_batch_next_size_count"), 30, "none of its batches began")
    return request


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_in_flight_finish(number):
    with Server("tied-bf16") as server:
        slow = begun(server, SLOW)
        server.process.send_signal(number)
        server.wait_for_log("stopping", 10)

        def refuses() -> bool:
            with socket.socket() as stream:
                return stream.connect_ex(("127.0.0.1", server.port)) != 0

        wait_until(refuses, 10, "new connections are still accepted")
        refused_at = time.monotonic()
        assert len(slow.result()) == len(SLOW)
        assert slow.ended > refused_at, "the request was too fast for this test"
        assert server.process.wait(30) == 0


def test_an_idle_server_ends_at_once_although_a_client_stays_connected():
    with Server("tied-bf16") as server, socket.create_connection(("127.0.0.1", server.port)):
        server.rerank("q", ["a"])
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 5


def test_with_a_delay_it_serves_on_but_is_not_ready():
    with Server("tied-bf16", "--shutdown-delay", "5") as server:
        server.process.send_signal(signal.SIGTERM)
        asked_at = time.monotonic()
        server.wait_for_log("stopping: serving on for 5s", 10)
        ready = requests.get(f"{server.url}/health/ready", timeout=10)
        live = requests.get(f"{server.url}/health", timeout=10)
        ranks = server.rerank("q", ["a"])
        if time.monotonic() - asked_at < 4.5:
            assert (ready.status_code, live.status_code, len(ranks)) == (503, 200, 1)
        assert server.process.wait(30) == 0
        assert time.monotonic() - asked_at >= 5


def test_requests_that_take_longer_than_the_drain_are_dropped():
    with Server("tied-bf16", "--drain-timeout", "1") as server:
        slow = begun(server, [f"{number} {LONG}" for number in range(60)])
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("some requests are not answered after 1s: they are dropped", 10)
        assert server.process.wait(10) == 0
        with pytest.raises(requests.ConnectionError):
            slow.result()


def test_half_a_header_delays_the_end_no_longer_than_the_drain():
    with Server("tied-bf16", "--drain-timeout", "1") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            stream.sendall(b"POST /rerank HTTP/1.1\r\nHost: a\r\n")
            server.rerank("q", ["a"])
            start = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(10) == 0
            assert time.monotonic() - start < 5


def test_a_second_signal_drops_the_requests_in_flight():
    with Server("tied-bf16") as server:
        slow = begun(server, [f"{number} {LONG}" for number in range(60)])
        # As `timeout` does, which signals the process and then its group.
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        server.wait_for_log("stopping", 10)
        time.sleep(0.5)
        assert "second signal" not in server.log()
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("second signal", 10)
        assert server.process.wait(10) == 0
        with pytest.raises(requests.ConnectionError):
            slow.result()


def test_a_port_is_free_again_at_once():
    with Server("tied-bf16") as first:
        first.rerank("q", ["a"])
        port = first.port
    # Not `Server`: it passes `--port 0`.
    ended = run("--model-id", "nowhere/at-all", "--hostname", "127.0.0.1", "--port", str(port), "--prometheus-port", "0")
    assert "cannot listen" not in ended.stderr and "HF_HUB_OFFLINE" in ended.stderr, ended.stderr


@pytest.fixture(scope="module")
def counted():
    """A server that no other test uses."""
    with Server("tied-bf16") as server:
        yield server


class TestMetrics:
    """Which metrics a request changes. All others must keep their values."""

    STEPS = ("", "_tokenization", "_queue", "_inference")

    def moved(self, server: Server, path: str, body: object) -> tuple[requests.Response, dict[str, float]]:
        """The answer, and the changes of all counters, counts and gauges that changed."""
        before = server.metrics()
        answer = server.post(path, body)
        after = server.metrics()
        # The test cannot predict times, nor the number of batches that compute a request.
        unforeseen = re.compile(r"^process_|_duration_sum|_bucket|te_batch_next_tokens|te_batch_next_size_count|te_rerank_score_sum|te_device_busy_seconds")
        names = (name for name in after if not unforeseen.search(name))
        return answer, {name: delta for name in names if (delta := after[name] - before.get(name, 0))}

    def check_success(self, answer: requests.Response, moved: dict[str, float], method: str, texts: int) -> None:
        """Checks and removes from `moved` the changes that every request to the model makes."""
        tokens = int(answer.headers["x-compute-tokens"])
        # Each token is either computed, shared within the batch, or taken from the prefix cache.
        once = ("te_batch_tokens_computed", "te_prefix_shared_tokens", "te_prefix_cache_tokens")
        assert sum(moved.pop(name, 0) for name in once) == tokens
        assert moved.pop("te_prefix_cache_hits", 0) <= texts and moved.pop("te_prefix_cache_bytes", 0) >= 0
        expected = self.success(method, texts, tokens)
        assert {name: moved.pop(name, 0) for name in expected} == expected

    def success(self, method: str, texts: int, tokens: int) -> dict[str, float]:
        moved = {f'te_request_{what}{{method="{method}"}}': 1 for what in ("count", "success")}
        moved |= {f"te_predict_{what}": texts for what in ("count", "success")}
        moved |= {f"te_request{step}_duration_count": 1 for step in self.STEPS}
        moved |= {f"te_predict{step}_duration_count": texts for step in self.STEPS}
        moved |= {"te_request_input_length_count": texts, "te_request_input_length_sum": tokens}
        return moved | {"te_batch_next_size_sum": texts}

    def failure(self, method: str, kind: str) -> dict[str, float]:
        return {f'te_request_count{{method="{method}"}}': 1, f'te_request_failure{{err="{kind}"}}': 1}

    def test_a_rerank(self, counted):
        answer, moved = self.moved(counted, "/rerank", {"query": "q", "texts": ["a", "b", "c"]})
        self.check_success(answer, moved, "batch", 3)
        assert moved == {"te_rerank_score_count": 3}

    @pytest.mark.parametrize(("inputs", "method", "texts"), [(["q", "a"], "single", 1), ([["q", "a"], ["q", "b"]], "batch", 2)])
    def test_a_predict(self, counted, inputs, method, texts):
        answer, moved = self.moved(counted, "/predict", {"inputs": inputs})
        self.check_success(answer, moved, method, texts)
        assert moved == {}

    def test_tokens_need_no_model(self, counted):
        table = [("/tokenize", {"inputs": "a"}, "single"), ("/decode", {"ids": [[1], [2]]}, "batch")]
        for path, body, method in table:
            _, moved = self.moved(counted, path, body)
            assert moved == {f'te_tokenize_{what}{{method="{method}"}}': 1 for what in ("count", "success")}

    def test_failures(self, counted):
        table = [
            # This request is refused before it is counted as one.
            ("/rerank", {"query": "q", "texts": []}, {'te_request_failure{err="validation"}': 1}),
            ("/rerank", {"query": "", "texts": ["a"]}, self.failure("batch", "validation")),
            ("/rerank", {"query": "q", "texts": ["a"] * 1001}, self.failure("batch", "batch_size")),
            ("/predict", {"inputs": "a"}, self.failure("single", "validation")),
        ]
        for path, body, expected in table:
            answer, moved = self.moved(counted, path, body)
            assert answer.status_code >= 400 and moved == expected, body

    def test_at_rest_nothing_waits(self, counted):
        counted.rerank("q", ["a"] * 50)
        assert counted.metrics()["te_queue_size"] == 0

    def test_all_is_described_and_the_second_port_says_the_same(self, counted):
        text = counted.get("/metrics").text
        series = {name.split("{")[0] for name in counted.metrics()}
        described = set(re.findall(r"^# HELP (\S+) \S", text, re.M))
        typed = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.M))
        assert described == set(typed) and all(name.startswith(("te_", "process_")) for name in described)
        assert len(typed) > 10 and {name if name in typed else name.rsplit("_", 1)[0] for name in series} == set(typed)
        assert typed["te_queue_size"] == "gauge" and typed["te_request_count"] == "counter"
        assert typed["te_request_duration"] == "histogram"
        second = int(re.search(r"metrics are served on port (\d+)", counted.log())[1])

        # The process's numbers move meanwhile, and a question may find the connection of the one before.
        def own(metrics):
            return {name: value for name, value in metrics.items() if not name.startswith(("process_", "te_connections"))}

        assert own(counted.metrics(second)) == own(counted.metrics())

    def test_the_build_and_the_process_are_there_and_every_counter_from_the_start(self):
        with Server("tied-bf16") as server:
            metrics = server.metrics()
            types = dict(re.findall(r"^# TYPE (\S+) (\S+)", server.get("/metrics").text, re.M))
        (build,) = [name for name in metrics if name.startswith("te_build_info")]
        assert f'version="{VERSION}"' in build and "commit=" in build and metrics[build] == 1
        assert metrics["process_resident_memory_bytes"] > 1e6 and metrics["process_start_time_seconds"] > 1e9
        counters = {name for name, kind in types.items() if kind == "counter" and name.startswith("te_")}
        page = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")
        assert counters == set(re.findall(r"^\| `(te_\w+)[{`].*\| counter \|", page, re.M))
        assert metrics['te_request_failure{err="overloaded"}'] == metrics['te_request_success{method="single"}'] == 0

    def test_the_buckets_of_durations_are_teis(self, counted):
        name = re.compile(r'te_request_duration_bucket\{le="([^"]+)"\}')
        bounds = [float(found[1]) for series in counted.metrics() if (found := name.fullmatch(series))]
        assert sorted(bounds) == pytest.approx([1e-5 * 1.5**k for k in range(1, 36)] + [float("inf")])


def test_headers_have_the_cost_of_a_request(server: Server):
    names = ("compute-time", "compute-characters", "compute-tokens", "total-time", "tokenization-time", "queue-time", "inference-time")
    answers = [
        server.post("/rerank", {"query": "감독", "texts": ["a😀", ""]}),
        server.post("/predict", {"inputs": [["감독", "a😀"], ["감독", ""]]}),
    ]
    for answer in answers:
        cost = {name: int(answer.headers[f"x-{name}"]) for name in names}
        assert answer.headers["x-compute-type"] == "cpu"
        # Characters, not bytes; the query counts with each of its texts.
        assert cost["compute-characters"] == 2 * 2 + 2
        assert cost["compute-tokens"] > 2 * len(PROMPT["prefix"] + PROMPT["suffix"])
        assert all(cost[f"{step}-time"] <= cost["total-time"] for step in ("tokenization", "queue", "inference"))
    start = time.monotonic()
    slow = server.post("/rerank", {"query": "q", "texts": SLOW[:2]})
    elapsed = (time.monotonic() - start) * 1000
    assert elapsed / 2 < int(slow.headers["x-total-time"]) <= elapsed + 1
    assert int(slow.headers["x-inference-time"]) > 0
    assert slow.headers["x-truncated-texts"] == "2"


def test_info_has_teis_fields(served):
    flags = ("--max-batch-tokens", "9000", "--max-batch-requests", "7", "--served-model-name", "mine", "--threads", "2")
    info = served("tied-bf16", *flags).get("/info").json()
    # They depend on the build and the machine.
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", info.pop("version")) and {"sha", "docker_label", "instruction_set", "pin_threads"} <= set(info)
    assert info.pop("model_id").endswith("tied-bf16") and info.pop("tokenization_workers") >= 1 and len(info.pop("prompt_hash")) == 16
    reranker = info.pop("reranker")
    assert (reranker["family"], reranker["score"], reranker["scores_depend_on_request"]) == ("qwen3-reranker", "sigmoid", False)
    assert set(reranker) == {"family", "family_reason", "prompt", "answers", "cutoff_layers", "score", "score_reason", "scores_depend_on_request"}
    for name in ("sha", "docker_label", "instruction_set", "pin_threads"):
        info.pop(name)
    assert info == {
        "model_sha": None, "model_dtype": "float32", "model_type": {"reranker": {"id2label": {"0": "yes"}, "label2id": {"yes": 0}}},
        "served_model_name": "mine", "max_concurrent_requests": 512, "max_input_length": 8192, "max_batch_tokens": 9000,
        "max_batch_requests": 7, "max_client_batch_size": 32, "auto_truncate": True,
        # Fields that text-embeddings-inference does not have.
        "backend": "candle", "weights": "model.safetensors (safetensors: BF16)", "model_kind": "listwise-reranker", "arithmetic": "float32",
        "max_rerank_texts": 1000, "max_questions": 400, "min_score": None, "default_instruction": PROMPT["default_instruction"],
        "score_activation": "identity", "cosine_reranking": None, "threads": 2, "prefix_cache_bytes": 256 << 20, "score_cache_bytes": 0,
    }


@pytest.mark.parametrize("path", ["/health", "/", "/ping"])
def test_probes_answer_with_nothing(server: Server, path):
    answer = server.get(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_any_page_may_send_requests_unless_origins_are_given(server: Server, served):
    # `openai` sends many headers of its own.
    headers = "authorization,content-type,x-stainless-lang"
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}
    own = served("tied-bf16", "--api-key", "k", "--cors-allow-origin", "https://own.example")
    page = "https://page.example"
    for asked, origin, expected in ((server, page, "*"), (own, page, None), (own, "https://own.example", "https://own.example")):
        answer = asked.get("/health", headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == expected
        assert answer.headers["access-control-expose-headers"] == "*"
        answer = asked.session.request("OPTIONS", asked.url + "/rerank", headers={"Origin": origin, **preflight})
        assert (answer.status_code, answer.headers.get("access-control-allow-origin")) == (200, expected)
        assert answer.headers["access-control-allow-headers"] == headers


FLAGS = """
    model-id revision tokenization-workers dtype served-model-name pooling max-concurrent-requests max-batch-tokens
    max-batch-requests max-client-batch-size auto-truncate default-prompt-name default-prompt dense-path hf-token
    hostname port uds-path huggingface-hub-cache payload-limit api-key json-output disable-spans otlp-endpoint
    otlp-service-name prometheus-port cors-allow-origin
    model-type default-instruction chat-template parse-special-tokens max-input-length max-rerank-texts threads pin-threads
    instruction-set
""".split()


def test_help_names_every_flag_and_its_variable():
    ended = run("--help")
    assert ended.returncode == 0 and ended.stderr == ""
    for flag in FLAGS:
        assert re.search(rf"--{flag}\b(?!-)", ended.stdout), flag
        assert re.search(rf"\[env: {flag.replace('-', '_').upper()}\b", ended.stdout), flag
    # The old name of `--hf-token` still works but is not advertised.
    assert "hf-api-token" not in ended.stdout
    assert re.fullmatch(rf"text-embeddings-router {VERSION}( \(commit [0-9a-f]{{7,12}}\))?\n", run("--version").stdout)


@pytest.mark.parametrize("way", ["flags", "variables"])
def test_secrets_are_not_in_the_log(way):
    secrets = {"--api-key": "s3cret-key", "--hf-token": "s3cret-token", "--hf-api-token": "s3cret-old"}
    flags = [part for pair in secrets.items() for part in pair] if way == "flags" else []
    values = {name[2:].replace("-", "_").upper(): value for name, value in secrets.items()}
    ended = run("--help", environment=values)
    assert "API_KEY" in ended.stdout and "s3cret" not in ended.stdout
    # Everything but the trace of the tokenizer, which has a line for each token.
    environment = {"LOG_LEVEL": "trace,tokenizers=info"} | (values if way == "variables" else {})
    with Server("tied-bf16", *flags, environment=environment) as server:
        for key in ("s3cret-key", "s3cret-guess"):
            server.post("/rerank", {"query": "q", "texts": ["a"]}, headers={"Authorization": f"Bearer {key}"})
        assert f"text-embeddings-router {VERSION} --model-id" in server.log() and "--api-key" in server.log()
        assert "`--hf-api-token` is deprecated" in server.log()
        assert "s3cret" not in server.log()


def test_the_log_is_json_when_asked():
    with Server("tied-bf16", "--json-output") as server:
        given = server.post("/rerank", {"query": "q", "texts": ["a", "b"]}, headers={"X-Request-Id": "mine"})
        mistaken = server.post("/rerank", {"query": "q"})
        server.wait_for_log(r'"kind":\s*"Validation"', 10)
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert given.headers["x-request-id"] == "mine"
    (success,) = [line for line in lines if line["message"] == "Success"]
    assert success["span"] == {"name": "request", "request_id": "mine", "route": "/rerank"}, success
    assert (success["level"], success["task"], success["status"], success["texts"]) == ("INFO", "rerank", 200, 2)
    assert success["tokens"] == int(given.headers["x-compute-tokens"])
    assert all(isinstance(success[f"{step}_ms"], float) for step in ("total", "tokenization", "queue", "inference"))
    (failure,) = [line for line in lines if line.get("kind") == "Validation"]
    assert failure["span"]["request_id"] == mistaken.headers["x-request-id"] and failure["level"] != "ERROR"
    shown = [json.loads(line) for line in (ROOT / "docs/telemetry.md").read_text().splitlines() if line.startswith('{"')]
    # The tests' servers have no score cache.
    assert [line.keys() for line in shown] == [success.keys() | {"cached"}, failure.keys()]


def test_the_first_and_the_last_line_of_the_start_say_what_runs():
    with Server("tied-bf16", "--threads", "1", environment={"DTYPE": "float32"}) as server:
        lines = server.log().splitlines()
        first, ready = lines[0], next(line for line in lines if "Ready" in line)
        assert re.search(r"text-embeddings-router \d\S+ (\(commit \w+\) )?--model-id \S+tied-bf16 ", first), first
        assert "--dtype float32 (DTYPE)" in first and "--threads 1" in first and "--revision" not in first, first
        assert re.search(r"Ready: listening on \S+:\d+; text-embeddings-router \d\S+ .*serves \S+tied-bf16 in float32 on cpu, 1 thread with", ready)
        assert re.search(r", \d+ MB loaded$", ready), ready
        assert not [line for line in lines if " WARN " in line], lines
        told = [line for line in lines if "--max-input-length" in line]
        assert len(told) == 1 and " INFO " in told[0], lines


def test_a_revision_of_a_folder_is_said_to_have_no_effect():
    with Server("tied-bf16", "--revision", "v1") as server:
        (warning,) = [line for line in server.log().splitlines() if " WARN " in line]
        assert "`--revision v1` has no effect" in warning


def test_a_log_outside_a_terminal_has_no_colours():
    with Server("tied-bf16") as server:
        assert "\x1b" not in server.raw_log()


def test_the_command_health_follows_the_server():
    with Server("tied-bf16", "--shutdown-delay", "5") as server:
        ready = run("health", "--url", server.url)
        by_variable = run("health", environment={"PORT": str(server.port)})
        assert [(ended.returncode, ended.stdout, ended.stderr) for ended in (ready, by_variable)] == [(0, "", "")] * 2
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("stopping: serving on for 5s", 10)
        stopping = run("health", "--url", server.url)
        assert stopping.returncode == 1 and server.url in stopping.stderr and "503" in stopping.stderr, stopping
        assert server.process.wait(30) == 0


def test_a_signal_at_the_moment_of_readiness_is_not_lost():
    for _ in range(8):
        flags = ["--model-id", "demo", *LISTEN]
        with subprocess.Popen([BINARY, *flags], stdout=subprocess.PIPE, text=True, env=variables()) as process:
            try:
                assert any("Ready: listening" in line for line in process.stdout)
                process.terminate()
                assert process.wait(60) == 0
            finally:
                process.kill()
