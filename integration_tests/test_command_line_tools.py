"""The commands other than `rerank`: `download` from a Hub on loopback, `bench` against a running server whose
metrics are the reference, and `verify` with transformers' scores."""

import hashlib
import json
import re
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import models
import pytest
from command_line import rerank, run
from fake_hub import COMMIT, FakeHub
from reference_data import CASES, EXPECTED
from server import BINARY, MODELS, Server, variables

MODEL = "tied-bf16"
ID = "Qwen/Qwen3-Reranker-Tiny"
SIZES = ("--texts", 3, "--words", 6, "--query-words", 2, "--output", "json")


def online(hub: FakeHub, home: Path) -> dict:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}


def test_a_downloaded_model_is_served_without_the_network(tmp_path):
    cache = tmp_path / "cache"
    with FakeHub(ID, MODELS / MODEL) as hub:
        ended = run("download", ID, "--huggingface-hub-cache", cache, environment=online(hub, tmp_path))
        assert ended.code == 0 and "model.safetensors" in ended.err, ended.err
        again = run("download", ID, "--huggingface-hub-cache", cache, environment=online(hub, tmp_path))
        assert again.out == ended.out and "INFO downloaded" not in again.err, again.err
    (line,) = ended.out.splitlines()
    folder = Path(line)
    assert folder.is_relative_to(cache) and folder.name == COMMIT
    assert (folder / "model.safetensors").read_bytes() == (MODELS / MODEL / "model.safetensors").read_bytes()
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    expected = rerank(MODEL, "q", "a", "b", "--output", "jsonl").lines()
    for flags in (("--model-id", folder), ("--model-id", ID, "--huggingface-hub-cache", cache)):
        got = run("rerank", *flags, "--query", "q", "a", "b", "--output", "jsonl", environment=offline)
        assert got.lines() == expected


def test_the_demonstration_model_needs_no_download():
    ended = run("download", "demo")
    assert (ended.code, ended.out) == (0, "demo\n"), ended.err
    for ended in (run("download", "demo", "demo"), run("download", environment={"MODEL_ID": "demo,demo"})):
        assert (ended.code, ended.out) == (0, "demo\ndemo\n"), ended.err


def test_a_failed_download_is_explained_in_one_line(tmp_path):
    with FakeHub(ID, MODELS / MODEL, token="hf_secret") as hub:
        environment = online(hub, tmp_path)
        assert "--hf-token" in run("download", ID, environment=environment).refusal()
        assert "hf_wrong" not in run("download", ID, "--hf-token", "hf_wrong", environment=environment).refusal()
        assert run("download", ID, "--hf-token", "hf_secret", environment=environment).code == 0
        missing = run("download", "Qwen/Nothing", "--hf-token", "hf_secret", environment=environment).refusal()
        assert "there is no model `Qwen/Nothing`" in missing
    offline = {"HF_HOME": str(tmp_path / "empty"), "HF_HUB_OFFLINE": "1"}
    line = run("download", ID, environment=offline).refusal()
    assert "HF_HUB_OFFLINE" in line and "start once without" in line
    assert run("download", environment=offline).code == 2


def requests_of(server: Server) -> int:
    return int(sum(value for name, value in server.metrics().items() if name.startswith("te_request_count{")))


def test_bench_sends_exactly_the_requests_of_its_flags(tmp_path):
    picture = tmp_path / "latency.svg"
    with Server(MODEL) as server:
        for warm_up, mode in ((5, ()), (0, ("--rate", 200))):
            before, tokens = requests_of(server), server.metrics().get("te_request_input_length_sum", 0)
            flags = ("--requests", 37, "--warm-up", warm_up, "--concurrency", 4, "--histogram", picture, *mode)
            ended = run("bench", "--url", server.url, *SIZES, *flags)
            assert ended.code == 0, ended.err
            report = json.loads(ended.out)
            assert requests_of(server) - before == 37 + warm_up
            assert (report["requests"], report["succeeded"], report["errors"]) == (37, 37, {})
            assert (report["pairs"], report["mode"]) == (111, "open" if mode else "closed")
            assert abs(report["pairs_per_second"] - 111 / report["seconds"]) < 1e-6
            if not warm_up:
                assert report["tokens"] == server.metrics()["te_request_input_length_sum"] - tokens
                assert report["seconds"] >= 36 / 200
            latency = report["latency_ms"]
            assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p95"] <= latency["p99"] <= latency["max"]
            svg = ElementTree.parse(picture).getroot()
            titles = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
            assert sum(int(re.search(r": (\d+)$", title)[1]) for title in titles) == 37
        text = run("bench", "--url", server.url + "/", "--requests", 3, "--texts", 2, "--words", 4)
        assert text.code == 0 and re.search(r"pairs/s +\d+\.\d", text.out) and "3 requests (2 texts" in text.out, text.out


@pytest.mark.parametrize(
    "route", ["/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking", "/score", "/v1/score", "/predict"]
)
def test_bench_knows_the_bodies_of_every_route_of_a_reranker(server, route):
    report = json.loads(run("bench", "--url", server.url, "--route", route, "--requests", 2, "--warm-up", 0, *SIZES).out)
    assert (report["succeeded"], report["errors"], report["pairs"]) == (2, {}, 6) and report["tokens"] > 100


def test_bench_ends_when_the_time_is_over_and_counts_every_answer():
    with Server(MODEL) as server:
        before = requests_of(server)
        report = json.loads(run("bench", "--url", server.url, "--duration", 0.5, "--warm-up", 2, *SIZES).out)
        assert requests_of(server) - before == report["requests"] + 2 and report["requests"] > 0
        assert report["seconds"] >= 0.5


def test_bench_counts_errors_by_their_status(tmp_path):
    bodies = tmp_path / "bodies.jsonl"
    good, bad = {"query": "q", "texts": ["a", "b"]}, {"query": "q", "texts": []}
    bodies.write_text("".join(json.dumps(body) + "\n" for body in (good, bad, good, good)))
    with Server(MODEL, "--api-key", "s3cret") as server:
        flags = ("--url", server.url, "--workload", bodies, "--requests", 8, "--output", "json")
        report = json.loads(run("bench", *flags, "--api-key", "s3cret").out)
        assert (report["requests"], report["succeeded"], report["pairs"]) == (8, 6, 12)
        assert list(report["errors"].values()) == [2] and list(report["errors"])[0] in ("400", "422")
        refused = run("bench", *flags).refusal()
        assert "401" in refused and "s3cret" not in refused
        url = server.url
    assert "no connection" in run("bench", "--url", url, "--requests", 1).refusal()
    for arguments in (("--url", "localhost:3000"), ("--url", url, "--route", "/x"), ("--url", url, "--route", "x")):
        assert "bench --help" in run("bench", *arguments).refusal(2)


class Stalls(BaseHTTPRequestHandler):
    """Answers the first request after a second and the others at once."""

    protocol_version = "HTTP/1.1"
    seen = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Stalls.seen += 1
        if Stalls.seen == 1:
            time.sleep(1)
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_):
        pass


def test_a_stall_shows_when_requests_are_due_at_fixed_times():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stalls)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        flags = ("--url", url, "--concurrency", 1, "--warm-up", 0, "--requests", 10)
        report = json.loads(run("bench", *flags, "--rate", 20, *SIZES).out)
    finally:
        server.shutdown()
        server.server_close()
    # The last of the ten requests was due after 0.45 s, but could be sent only after 1 s.
    assert report["requests"] == 10 and report["latency_ms"]["min"] >= 540 and report["late"] >= 9, report
    assert report["tokens"] is None


def golden(path: Path, offset: float = 0.0) -> Path:
    """Scores of transformers, some as raw scores and some as probabilities."""
    names = ("english-1", "korean-1", "chinese-2", "russian-1")
    rows = []
    for number, name in enumerate(names):
        case, expected = CASES[name], EXPECTED[MODEL][name]
        row = {"query": case["query"], "document": case["document"], "instruction": case["instruction"]}
        rows.append(row | ({"raw": expected["raw"] + offset} if number % 2 == 0 else {"score": expected["score"]}))
    path.write_text(json.dumps(rows, ensure_ascii=False))
    return path


def lines(out: str) -> list[tuple[str, str, str]]:
    """Mark, name and text of each line of `verify`."""
    return [re.fullmatch(r"(pass|FAIL|-) +(\w+) +(.*)", line).groups() for line in out.splitlines() if not line.startswith("     |")]


def test_verify_passes_a_good_model_step_by_step(tmp_path):
    ended = run("verify", MODELS / MODEL, "--golden", golden(tmp_path / "golden.json"), "--verbose")
    assert ended.code == 0 and ended.err == "", ended.out + ended.err
    found = lines(ended.out)
    assert [name for _, name, _ in found] == ["files", "kind", "template", "prompt", "tokenizer", "answers", "score", "start"] + ["golden"] * 5
    assert [mark for mark, _, _ in found] == ["pass"] * 6 + ["-", "pass", "-"] + ["pass"] * 4
    texts = {name: text for _, name, text in found}
    assert "modules.json names a LogitScore" in texts["kind"] and "repository's chat template" in texts["template"]
    assert "float32" in texts["start"]
    template = (MODELS / MODEL / "chat_template.jinja").read_text(encoding="utf-8")
    instruction = json.loads((MODELS / MODEL / "config_sentence_transformers.json").read_text())["prompts"]["query"]
    texts_of = {"system": instruction, "query": "{query}", "document": "{document}"}
    messages = [{"role": role, "content": text} for role, text in texts_of.items()]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    prompt = environment.from_string(template).render(messages=messages, add_generation_prompt=True)
    assert hashlib.sha256(prompt.encode()).hexdigest() in texts["prompt"], prompt
    shown = [line.removeprefix("     | ").removeprefix("     |") for line in ended.out.splitlines() if line.startswith("     |")]
    assert "\n".join(shown) == prompt.rstrip("\n") or "\n".join(shown) + "\n" == prompt
    tokenizer = json.loads((MODELS / MODEL / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    assert all(f"{token} is {ids[token]}" in texts["tokenizer"] for token in ("<|im_start|>", "<|im_end|>"))
    vocabulary = tokenizer["model"]["vocab"]
    assert f"`yes` ({vocabulary['yes']}) less `no` ({vocabulary['no']})" in texts["answers"]
    assert "sigmoid of the raw score" in texts["score"] and "qwen3-reranker" in texts["score"]


def test_verify_fails_wrong_scores_and_says_which(tmp_path):
    ended = run("verify", MODELS / MODEL, "--golden", golden(tmp_path / "golden.json", offset=0.01))
    assert ended.refusal() == "Error: 2 of 11 checks failed"
    marks = [mark for mark, name, _ in lines(ended.out) if name == "golden"]
    assert marks == ["-", "FAIL", "pass", "FAIL", "pass"]
    # A reader that stops reading does not make it a success.
    command = [str(BINARY), "verify", str(MODELS / MODEL), "--golden", str(tmp_path / "golden.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables()) as process:
        process.stdout.close()
        assert process.wait(60) == 1


def test_verify_compares_a_published_model_with_published_scores(tmp_path):
    # Random weights under the model's name: all checks run, and the comparison must fail.
    folder = models.copy(MODEL, tmp_path).rename(tmp_path / "Qwen3-Reranker-0.6B")
    ended = run("verify", folder)
    found = [mark for mark, name, _ in lines(ended.out) if name == "golden"]
    assert ended.code == 1 and found == ["-"] + ["FAIL"] * 4 + ["-"] + ["FAIL"] * 2, ended.out


def test_verify_says_for_which_checks_it_has_no_values(tmp_path):
    ended = run("verify", MODELS / MODEL)
    assert ended.code == 0 and f"no scores are published for `{MODEL}`" in ended.out, ended.out
    embedding = run("verify", MODELS / "embedding-last")
    assert embedding.code == 0 and "no vectors with last-token pooling are published for `embedding-last`" in embedding.out, embedding.out


def test_verify_compares_an_embedding_model_with_published_vectors(tmp_path):
    # Random weights, found by the folder's name or by --as: the comparison must fail.
    folder = models.copy("embedding-last", tmp_path).rename(tmp_path / "qwen3-embedding-0.6b")
    for flags in ([folder], [MODELS / "embedding-last", "--as", "Qwen/Qwen3-Embedding-0.6B"]):
        ended = run("verify", *flags)
        found = [mark for mark, name, _ in lines(ended.out) if name == "golden"]
        assert ended.refusal() == "Error: 1 of 4 checks failed" and found == ["-", "FAIL"], ended.out
    unknown = run("verify", MODELS / MODEL, "--as", "nobody/nothing")
    assert "`--as nobody/nothing`" in unknown.refusal(code=2)
    both = run("verify", MODELS / MODEL, "--as", "BAAI/bge-m3", "--golden", golden(tmp_path / "golden.json"))
    assert both.code == 2 and "--as" in both.err


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "files"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{{ 'query' 'document' "), "template"),
        (lambda folder: models.edit_json(folder / "1_LogitScore/config.json", true_token_id=2, false_token_id=2), "answers"),
        (lambda folder: models.edit_tensors(folder, lambda tensors: models.zero(tensors, "norm.weight")), "start"),
    ],
)
def test_verify_fails_a_broken_model_with_the_step(tmp_path, change, name):
    folder = models.copy(MODEL, tmp_path)
    change(folder)
    ended = run("verify", folder)
    assert ended.code == 1 and " failed" in ended.refusal()
    failed = [found for mark, found, _ in lines(ended.out) if mark == "FAIL"]
    assert failed[0] == name, ended.out


def test_verify_refuses_a_file_that_is_not_golden(tmp_path):
    path = tmp_path / "golden.json"
    path.write_text('[{"query": "q"}]')
    assert "--golden" in run("verify", MODELS / MODEL, "--golden", path).refusal()
    assert "--golden" in run("verify", MODELS / MODEL, "--golden", tmp_path / "nowhere.json").refusal()
