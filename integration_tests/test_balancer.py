"""deploy/haproxy in front of three real servers: equal queries reach the same server in every dialect, and no
request is lost while servers are killed, drained and added.

SCALE_REQUESTS is the number of requests in the run with changes. `make scale-test` sets it to 10,000; then
other ways to balance are measured as well, and a table for docs/scaling.md is printed.
"""

import http.client
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, local

import grpc
import pytest
import requests
from balancer import Balancer, free_ports
from grpc_client import messages, stubs
from server import ANSWER_LIMIT, Server



MODEL = "demo"
# Longer than HAProxy takes to notice that a server is not ready.
DRAIN = ("--shutdown-delay", "4")
NAMED = {"    balance hash var(txn.query)\n": "    balance hash var(txn.query)\n    http-response set-header x-pod %s\n"}
TEXTS = ["Mars is red.", "Bread is baked."]
QUERIES = [f"{word} {number}" for number in range(3) for word in ("planet", "화성", 'say "yes"', "back\\slash")]
CLIENTS = 8


@pytest.fixture(scope="module")
def three() -> Iterator[list[Server]]:
    with Server(MODEL, "--grpc-port", "0") as one, Server(MODEL, "--grpc-port", "0") as two, Server(MODEL, "--grpc-port", "0") as three:
        yield [one, two, three]


@pytest.fixture(scope="module")
def balancer(three) -> Iterator[Balancer]:
    with Balancer([(server.port, grpc_port(server)) for server in three], NAMED) as balancer:
        balancer.wait_for(1, 2, 3)
        yield balancer


def grpc_port(server: Server) -> int:
    return int(server.grpc_address.rpartition(":")[2])


def dumps(body: dict) -> bytes:
    """JSON as JavaScript and users of curl write it: characters are not escaped."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def escaped(body: dict) -> bytes:
    """JSON as Python writes it by default: all characters but ASCII are escaped."""
    return json.dumps(body).encode()


# For each dialect: the path, and the body for a query.
DIALECTS: dict[str, tuple[str, Callable[[str], dict]]] = {
    "TEI": ("/rerank", lambda query: {"query": query, "texts": TEXTS}),
    "TEI, the query last": ("/rerank", lambda query: {"texts": TEXTS, "query": query}),
    "the main task": ("/", lambda query: {"query": query, "texts": TEXTS}),
    "SageMaker": ("/invocations", lambda query: {"query": query, "texts": TEXTS}),
    "Cohere v2": ("/v2/rerank", lambda query: {"model": "any", "query": query, "documents": TEXTS}),
    "Cohere v1, Jina, vLLM": ("/v1/rerank", lambda query: {"model": "any", "top_n": 1, "query": query, "documents": TEXTS}),
    "Mixedbread": ("/v1/reranking", lambda query: {"query": {"text": query}, "input": TEXTS}),
    "NIM": ("/v1/ranking", lambda query: {"query": {"text": query}, "passages": [{"text": text} for text in TEXTS]}),
    "vLLM's pairs": ("/score", lambda query: {"text_1": query, "text_2": TEXTS}),
    "pairs of lists": ("/v1/score", lambda query: {"queries": [query, query], "documents": TEXTS}),
}


SESSION = requests.Session()


def post(balancer: Balancer, path: str, body: bytes) -> requests.Response:
    headers = {"Content-Type": "application/json"}
    # All requests share one connection, and still each goes to the server of its query.
    answer = SESSION.post(balancer.url + path, data=body, headers=headers, timeout=ANSWER_LIMIT)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("write", [dumps, escaped])
def test_equal_queries_meet_the_same_server(balancer, name, write):
    path, body = DIALECTS[name]
    pods = {query: [post(balancer, path, write(body(query))).headers["x-pod"] for _ in range(2)] for query in QUERIES}
    if write is escaped and name in ("Mixedbread", "NIM", "vLLM's pairs", "pairs of lists"):
        # json_query does not read \uXXXX, and the configuration's own search knows the field `query` only.
        pods = {query: met for query, met in pods.items() if query.isascii()}
    assert all(len(set(met)) == 1 for met in pods.values()), pods
    assert len({met[0] for met in pods.values()}) == 3, pods


def test_a_query_has_one_server_in_all_dialects(balancer):
    for query in QUERIES:
        if "\\" in query or '"' in query:
            continue
        met = {post(balancer, path, dumps(body(query))).headers["x-pod"] for path, body in DIALECTS.values()}
        assert len(met) == 1, query


def test_requests_without_a_query_go_to_all_servers(balancer, three):
    before = [server.metrics().get('te_request_count{method="single"}', 0) for server in three]
    for _ in range(12):
        post(balancer, "/predict", dumps({"inputs": ["red planet", "Mars is red."]}))
    moved = [server.metrics()['te_request_count{method="single"}'] - old for server, old in zip(three, before, strict=True)]
    assert sum(moved) == 12 and min(moved) > 0, moved


def test_large_requests_and_refusals_pass(balancer):
    limit = 2_000_000
    for query in ("large", "큰"):
        # The server ignores this field, so that the body is large and the computation small.
        body = {"padding": "x" * (limit - 100), "query": query, "texts": TEXTS}
        met = {post(balancer, "/rerank", write(body)).headers["x-pod"] for write in (dumps, escaped) for _ in range(2)}
        assert len(met) == 1 or not query.isascii(), met
    for size in (limit + 10, 3 * limit):
        refused = requests.post(f"{balancer.url}/rerank", json={"query": "q", "texts": ["a" * size]}, timeout=ANSWER_LIMIT)
        assert refused.status_code == 413, refused.text


def test_grpc_per_request(balancer, three):
    channel = grpc.insecure_channel(f"127.0.0.1:{balancer.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)])
    with channel:
        rerank, info = stubs.RerankStub(channel), stubs.InfoStub(channel)
        for query in QUERIES[:4]:
            message = messages.RerankRequest(query=query, texts=TEXTS, truncate=True)
            before = [counted(server) for server in three]
            over_grpc = [rerank.Rerank(message, timeout=ANSWER_LIMIT) for _ in range(3)]
            moved = [counted(server) - old for server, old in zip(three, before, strict=True)]
            assert sorted(moved) == [0, 0, 3], moved
            over_http = post(balancer, "/rerank", dumps({"query": query, "texts": TEXTS})).json()
            for answer in over_grpc:
                assert [rank.index for rank in answer.ranks] == [rank["index"] for rank in over_http]
        assert info.Info(messages.InfoRequest(), timeout=ANSWER_LIMIT).model_id == MODEL
        stream = [messages.RerankStreamRequest(query="q", text=text, truncate=True) for text in TEXTS]
        assert len(rerank.RerankStream(iter(stream), timeout=ANSWER_LIMIT).ranks) == 2


def counted(server: Server) -> float:
    return server.metrics().get('te_request_count{method="batch"}', 0)


def test_without_a_server_the_answer_is_503():
    (port, other) = free_ports(2)
    with Balancer([(port, other)]) as balancer:
        balancer.wait_for()
        answer = requests.post(f"{balancer.url}/rerank", json={"query": "q", "texts": ["a"]}, timeout=ANSWER_LIMIT)
        assert answer.status_code == 503


# The run in which servers are killed, added and drained.

Request = tuple[str, list[str]]


def workload(requests_in_all: int, seed: int = 1) -> list[Request]:
    """Requests in random order: 20 for each query, each with other texts."""
    numbers = random.Random(seed)
    words = "red planet bread water light moon river stone glass paper winter summer music garden train bridge island".split()
    queries = [" ".join(numbers.choices(words, k=16)) for _ in range(requests_in_all // 20)]
    asked = [(query, [" ".join(numbers.choices(words, k=8)) for _ in range(2)]) for query in queries for _ in range(20)]
    numbers.shuffle(asked)
    return asked


@dataclass
class Run:
    """The result of a run: the scores of each request, the number of requests sent again because their
    connection broke, seconds, and the servers' counters."""

    scores: list[list[float]]
    sent_again: int
    seconds: float
    counts: Counter


NAMES = ("te_prefix_cache_tokens", "te_batch_tokens_computed", "te_batch_next_size_count", "te_predict_count")


def send_all(url: str, asked: list[Request], changes: dict[int, Callable[[], None]] | None = None) -> tuple[list[list[float]], int]:
    """Sends all requests, `CLIENTS` at a time, over connections that are kept open. Before a request whose
    number is in `changes`, calls that function. Returns the scores of each request, and how many requests
    were sent again."""
    address = url.removeprefix("http://")
    own, lock, sent_again = local(), Lock(), 0
    changes = changes or {}

    def ask(number: int) -> list[float]:
        nonlocal sent_again
        if number in changes:
            changes[number]()
        query, texts = asked[number]
        body = dumps({"query": query, "texts": texts, "raw_scores": True})
        for _ in range(10):
            connection = getattr(own, "connection", None) or http.client.HTTPConnection(address, timeout=ANSWER_LIMIT)
            own.connection = connection
            try:
                connection.request("POST", "/rerank", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
                if answer.status == 200:
                    ranks = json.loads(content)
                    return [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])]
                # A 502 means that the server was killed during the computation. No other error may occur.
                assert answer.status == 502, f"{answer.status}: {content[:200]}"
            except http.client.RemoteDisconnected:
                # HAProxy closes the connection instead if it had used its own one to the server before.
                connection.close()
            with lock:
                sent_again += 1
        raise AssertionError("a request was cut off ten times")

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, range(len(asked)))), sent_again


def counts(server: Server) -> Counter:
    metrics = server.metrics()
    return Counter({name: int(metrics.get(name, 0)) for name in NAMES})


def template_tokens(server: Server) -> int:
    """The number of tokens before the query, which the cache holds after the first request."""
    server.rerank("warm up", ["a"])
    before = counts(server)["te_prefix_cache_tokens"]
    server.rerank("never asked", ["a"])
    return counts(server)["te_prefix_cache_tokens"] - before


def query_tokens_cached(counted: Counter, template: int) -> int:
    """The tokens of queries that were taken from the cache. The template, which also counts once for each
    batch, is subtracted."""
    return counted["te_prefix_cache_tokens"] - template * counted["te_batch_next_size_count"]


def alone(asked: list[Request], *flags: str) -> tuple[Run, int]:
    """Sends all requests to one server. Returns the run and the number of tokens of the server's template."""
    with Server(MODEL, *flags) as server:
        template = template_tokens(server)
        before, started = counts(server), time.monotonic()
        scores, _ = send_all(server.url, asked)
        seconds = time.monotonic() - started
        moved = counts(server)
        moved.subtract(before)
        return Run(scores, 0, seconds, moved), template


def balanced(asked: list[Request], changes: dict[str, str], *flags: str, is_steady: bool) -> Run:
    """Sends all requests to three servers behind the balancer. Unless `is_steady`, one server is killed, one
    added and one drained during the run."""
    late = free_ports(2)
    given = ("--grpc-port", "0", *DRAIN, *flags)
    with Server(MODEL, *given) as one, Server(MODEL, *given) as two, Server(MODEL, *given) as three:
        ports = [(server.port, grpc_port(server)) for server in (one, two, three)]
        with Balancer([*ports, tuple(late)], changes) as balancer:
            balancer.wait_for(1, 2, 3)
            at_the_end: Counter = Counter()
            added: list[Server] = []

            def kill() -> None:
                at_the_end.update(counts(one))
                one.process.kill()

            def add() -> None:
                added.append(Server(MODEL, "--port", str(late[0]), "--grpc-port", str(late[1]), *DRAIN, *flags))

            def drain() -> None:
                at_the_end.update(counts(two))
                two.process.send_signal(signal.SIGTERM)

            number = len(asked)
            steps = {} if is_steady else {number // 4: kill, number * 2 // 5: add, number * 3 // 5: drain}
            started = time.monotonic()
            try:
                scores, sent_again = send_all(balancer.url, asked, steps)
                seconds = time.monotonic() - started
                if is_steady:
                    left = [one, two, three]
                else:
                    left = [three, *added]
                    balancer.wait_for(3, 4)
                    assert two.process.wait(60) == 0
                for server in left:
                    at_the_end.update(counts(server))
                if not is_steady:
                    # The new server computed its share.
                    assert counts(added[0])["te_predict_count"] > number * 2 * 0.05
            finally:
                for server in added:
                    server.stop()
            if not is_steady:
                # It was killed on purpose, so `stop` would fail.
                one.process.wait(30)
                one._close()
            return Run(scores, sent_again, seconds, at_the_end)


def check_equal(run: Run, reference: Run) -> None:
    assert len(run.scores) == len(reference.scores)
    for scores, expected in zip(run.scores, reference.scores, strict=True):
        assert scores == pytest.approx(expected, abs=1e-4)


def test_no_request_is_lost_and_the_cache_is_used_while_servers_come_and_go():
    asked = workload(int(os.environ.get("SCALE_REQUESTS", "1000")))
    reference, template = alone(asked)
    run = balanced(asked, {}, is_steady=False)
    check_equal(run, reference)
    # Only requests that the killed server was computing are sent again.
    assert run.sent_again <= CLIENTS
    share = query_tokens_cached(run.counts, template) / query_tokens_cached(reference.counts, template)
    # The cost of the three changes depends on how soon HAProxy notices them, not on the requests.
    assert share >= (0.9 if len(asked) >= 10_000 else 0.7), (share, run.counts, reference.counts)


WAYS = {
    "hashed by the query": {},
    "round robin": {"balance hash var(txn.query)": "balance roundrobin"},
    "fewest in flight": {"balance hash var(txn.query)": "balance leastconn"},
}


@pytest.mark.skipif("SCALE_REQUESTS" not in os.environ, reason="measures for minutes: `make scale-test`")
def test_ways_to_balance(capsys):
    asked = workload(int(os.environ["SCALE_REQUESTS"]))
    with Server(MODEL) as server:
        send_all(server.url, asked[:2000])
        # Bytes of cached prefixes for the queries of all requests; a cache then holds 40 % of them.
        bytes_of_all = server.metrics()["te_prefix_cache_bytes"] * len({query for query, _ in asked})
        bytes_of_all /= len({query for query, _ in asked[:2000]})
    rows = []
    for cache, flags in (("all queries", ()), ("40 % of the queries", ("--prefix-cache-bytes", str(int(bytes_of_all * 0.4))))):
        single, template = alone(asked, *flags)
        runs = {"one server": single}
        runs |= {way: balanced(asked, changes, *flags, is_steady=True) for way, changes in WAYS.items()}
        for way, run in runs.items():
            check_equal(run, single)
            cached = query_tokens_cached(run.counts, template)
            share = cached / query_tokens_cached(single.counts, template)
            computed = run.counts["te_batch_tokens_computed"] / len(asked)
            rows.append(f"| {cache} | {way} | {cached:,} | {share:.0%} | {computed:.0f} | {len(asked) / run.seconds:.0f} |")
    with capsys.disabled():
        print("\n| each cache holds | balanced | tokens of queries from the cache | of one server's | tokens computed for a request | requests/s |")
        print("|---|---|--:|--:|--:|--:|\n" + "\n".join(rows))
