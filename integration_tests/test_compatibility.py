"""docs/wire-compatibility.md lists every route, flag, Cargo feature, metric and kind of failure of the
server, and no others.

Input: the page's tables, the binary's `--help`, `router/Cargo.toml`, `docs/openapi.json`, and `/metrics` of a
running server. A row says how the server relates to text-embeddings-inference, so a flag or metric without a
row is one that nobody compared.
"""

import ast
import inspect
import json
import re
import sys
import tomllib

import pytest
from server import ROOT, run

sys.path.insert(0, str(ROOT / "python"))
import text_embeddings_router  # noqa: E402

PAGE = (ROOT / "docs/wire-compatibility.md").read_text(encoding="utf-8")
MIGRATING = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
TELEMETRY = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")
TEIS = set(json.loads((ROOT / "integration_tests/tei_metrics.json").read_text(encoding="utf-8"))["families"]["te_request_failure"]["labels"]["err"])
STATES = ("same", "added", "different", "not yet")
# The endings of the metrics of texts. The page has one row for all six that begin with `te_embed_`.
OF_TEXTS = ("count", "success", "duration", "tokenization_duration", "queue_duration", "inference_duration")
NAME = re.compile(r"`((?:te|process)_\w+)")


def rows(section: str, page: str = PAGE) -> list[list[str]]:
    """The cells of the rows of a section's table, without its head."""
    part = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def named(section: str, pattern: str) -> set[str]:
    """The names in the first column of a table. None may be there twice."""
    found = [name for row in rows(section) for name in re.findall(pattern, row[0])]
    assert len(found) == len(set(found)), sorted(name for name in found if found.count(name) > 1)
    return set(found)


def test_every_flag_has_a_row():
    flags = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", run("--help").stdout, re.MULTILINE)) - {"--help", "--version"}
    assert len(flags) > 60
    listed = named("Flags", r"`(--[a-z-]+)`")
    # Flags that the help does not show.
    hidden = {name for name in listed - flags if run(name, "value", "--help").returncode == 0}
    assert listed == flags | hidden
    assert hidden == {"--hf-api-token"}


def test_every_feature_has_a_row():
    features = tomllib.loads((ROOT / "router/Cargo.toml").read_text(encoding="utf-8"))["features"]
    table = rows("Cargo features of the router")
    missing = {name for row in table if row[1] == "not yet" for name in re.findall(r"`([\w-]+)`", row[0])}
    assert named("Cargo features of the router", r"`([\w-]+)`") == set(features) - {"default"} | missing
    assert not missing & set(features)
    default = {name for row in table for name in re.findall(r"`([\w-]+)` \(default\)", row[0])}
    assert default == set(features["default"])


def test_every_route_has_a_row():
    described = set(json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))["paths"])
    # A path may have a row for each method. Pages are not described.
    listed = {path for row in rows("Routes") for path in re.findall(r"[ `](/[\w/.{}-]*)`", row[0])}
    assert listed == described | {"/docs", "/api-doc/openapi.json", "/playground"}


def test_every_field_of_info_is_named(served):
    teis = json.loads((ROOT / "router/src/http/openapi/tei.json").read_text(encoding="utf-8"))["schemas"]["Info"]["properties"]
    ours = served("demo").get("/info").json().keys() - teis.keys()
    (row,) = [row for row in rows("Routes") if row[0] == "`GET /info`"]
    assert len(ours) > 10
    assert set(re.findall(r"`(\w+)`", row[2].partition(".")[0])) == ours


@pytest.fixture(scope="module")
def metrics(served) -> str:
    return served("demo").get("/metrics").text


def test_every_metric_has_a_row(metrics):
    listed = named("Metrics", NAME.pattern)
    assert "te_embed_" in listed
    listed = listed - {"te_embed_"} | {f"te_embed_{name}" for name in OF_TEXTS}
    assert {f"te_predict_{name}" for name in OF_TEXTS} <= listed
    # A histogram is there once it has a value; a test in Rust holds this table to all metrics.
    documented = set(re.findall(r"^\| `(te_\w+)", TELEMETRY, re.MULTILINE))
    process = {name for name in listed if name.startswith("process_")}
    assert listed == documented | process
    assert set(re.findall(r"^# TYPE (\w+)", metrics, re.MULTILINE)) - documented == process


def test_every_kind_of_failure_is_documented(metrics):
    kinds = set(re.findall(r'^te_request_failure\{err="(\w+)"\}', metrics, re.MULTILINE))
    assert len(kinds) >= 10
    sentence = re.search(r"^- `err` is (.*?)\.\n?\s", TELEMETRY, re.MULTILINE | re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == kinds
    (row,) = [row for row in rows("Metrics") if "te_request_failure" in row[0]]
    assert set(re.findall(r"`(\w+)`", row[1])) == kinds - TEIS


@pytest.mark.parametrize("section", ["From Infinity", "From vLLM"])
def test_the_flags_for_users_of_other_servers_exist(section):
    help_text = run("--help").stdout
    found = rows(section, MIGRATING)
    assert len(found) > 8
    for theirs, ours in found:
        words = re.findall(r"--[a-z-]+", ours) + ("the same" in ours) * re.findall(r"--[a-z-]+", theirs)
        assert all(re.search(rf" {word}\b", help_text) for word in words), (theirs, words)


def test_the_calls_for_users_of_sentence_transformers_exist():
    found = rows("From sentence-transformers", MIGRATING)
    calls = [ast.parse(call, mode="eval").body for _, ours in found for call in re.findall(r"`(client\.[^`]*)`", ours)]
    assert len(calls) > 8
    for call in calls:
        method = inspect.signature(getattr(text_embeddings_router.Client, call.func.attr))
        method.bind(None, *call.args, **{keyword.arg: None for keyword in call.keywords})


@pytest.mark.parametrize("section", ["Flags", "Cargo features of the router", "Metrics"])
def test_every_row_says_its_state(section):
    assert [row for row in rows(section) if not row[1].startswith(STATES)] == []
