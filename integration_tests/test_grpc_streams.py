"""Features that only gRPC has: health, reflection and streams, also broken ones; and keys."""

import threading

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_client import Grpc, messages
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from reference_data import CASES, TEXTS, VECTORS
from server import ANSWER_LIMIT, Background, Server, wait_until
from vectors import check_same

GRPC = ("--grpc-port", "0")
TEI = "tei.v1"
TEXT = TEXTS["korean"]["text"]
SHORT = [TEXTS[name]["text"] for name in ("english", "korean", "one-letter", "emoji", "arabic", "code", "only-spaces")]
SERVICES = ("Info", "Embed", "Predict", "Rerank", "Tokenize")
HEALTH = {
    "embedding-last": {"Info", "Embed", "Rerank", "Tokenize"},
    "seq-cls-1": {"Info", "Predict", "Rerank", "Tokenize"},
    "seq-cls-3": {"Info", "Predict", "Tokenize"},
    "tied-bf16": {"Info", "Predict", "Rerank", "Tokenize"},
}


@pytest.mark.parametrize("model", HEALTH)
def test_health_follows_the_kind_of_model(connected, model):
    _, client = connected(model)
    assert client.serves("") == "SERVING"
    for service in SERVICES:
        expected = "SERVING" if service in HEALTH[model] else "NOT_SERVING"
        assert client.serves(f"{TEI}.{service}") == expected, service
    request = health_pb2.HealthCheckRequest(service="tei.v1.Nothing")
    assert client.failure(client.health.Check, request)[0] == "NOT_FOUND"


def test_reflection_describes_the_proto(connected):
    _, client = connected("tied-bf16")
    database = ProtoReflectionDescriptorDatabase(client.channel)
    names = set(database.get_services())
    assert names == {f"{TEI}.{service}" for service in (*SERVICES, "Decide")} | {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    pool = DescriptorPool(database)
    for service in SERVICES:
        found = pool.FindServiceByName(f"{TEI}.{service}")
        local = messages.DESCRIPTOR.services_by_name[service]
        for method, other in zip(found.methods, local.methods, strict=True):
            assert method.name == other.name and method.input_type.full_name == other.input_type.full_name
            assert (method.client_streaming, method.server_streaming) == (other.client_streaming, other.server_streaming)
            for left, right in ((method.input_type, other.input_type), (method.output_type, other.output_type)):
                assert {(f.name, f.number, f.type) for f in left.fields} == {(f.name, f.number, f.type) for f in right.fields}


class TestStreams:
    """Streams that are empty, broken, endless or not read."""

    def test_an_empty_stream(self, connected):
        _, client = connected("embedding-last")
        assert client.stream(client.embed.EmbedStream, []) == []
        _, reranker = connected("tied-bf16")
        assert reranker.failure(reranker.rerank.RerankStream, iter([]))[0] == "INVALID_ARGUMENT"

    def test_answers_come_in_order_while_the_stream_is_open(self, connected):
        _, client = connected("embedding-last")
        asked = threading.Semaphore(0)
        texts = iter(SHORT)

        def requests():
            for text in texts:
                asked.acquire(timeout=ANSWER_LIMIT)
                yield messages.EmbedRequest(inputs=text)

        answers = client.embed.EmbedStream(requests(), timeout=ANSWER_LIMIT)
        for text in SHORT:
            asked.release()
            alone = client.call(client.embed.Embed, messages.EmbedRequest(inputs=text))
            check_same(list(next(answers).embeddings), list(alone.embeddings))
        with pytest.raises(StopIteration):
            next(answers)

    def test_an_error_ends_the_stream_after_the_answers_before_it(self, connected):
        _, client = connected("embedding-last")
        bad = messages.EmbedRequest(inputs="a", prompt_name="nobody")
        good = messages.EmbedRequest(inputs="a")
        answers = client.embed.EmbedStream(iter([good, good, bad, good]), timeout=ANSWER_LIMIT)
        assert len(next(answers).embeddings) == len(next(answers).embeddings) == 40
        with pytest.raises(grpc.RpcError) as error:
            next(answers)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "nobody" in error.value.details()

    def test_a_cancelled_stream_leaves_nothing_behind(self):
        # A server of its own with one permit: a request left behind would keep the permit.
        with Server("embedding-last", *GRPC, "--max-concurrent-requests", "1") as server, Grpc(server) as client:
            endless = threading.Event()

            def requests():
                while not endless.is_set():
                    yield messages.EmbedRequest(inputs=TEXT)

            for _ in range(3):
                answers = client.embed.EmbedStream(requests(), timeout=ANSWER_LIMIT)
                next(answers)
                answers.cancel()
            endless.set()

            def is_free() -> bool:
                return server.post("/embed", {"inputs": TEXT}).status_code == 200

            wait_until(is_free, 30, "the permit is not released")
            wait_until(lambda: server.metrics()["te_queue_size"] == 0, 30, "the queue is not empty")

    def test_many_short_messages_ahead_of_the_server_are_accepted(self, connected):
        """The HTTP/2 library ends connections with too many small unread frames; normal streams must not."""
        _, client = connected("embedding-last")
        requests = (messages.EmbedRequest(inputs="a") for _ in range(6000))
        assert sum(1 for _ in client.embed.EmbedStream(requests, timeout=ANSWER_LIMIT)) == 6000

    def test_a_stream_that_never_ends_does_not_delay_others(self):
        with Server("tied-bf16", *GRPC, "--max-concurrent-requests", "1") as server, Grpc(server) as client:
            done = threading.Event()

            def requests():
                yield messages.RerankStreamRequest(query="q", text="a")
                done.wait(ANSWER_LIMIT)

            waiting = client.rerank.RerankStream.future(requests(), timeout=ANSWER_LIMIT)
            for _ in range(3):
                assert len(server.rerank("q", ["a", "b"])) == 2
            assert not waiting.done()
            done.set()
            assert [rank.index for rank in waiting.result(ANSWER_LIMIT).ranks] == [0]

    def test_a_client_that_does_not_read_is_not_read_from(self, connected):
        _, client = connected("embedding-last")
        sent = 0

        def requests():
            nonlocal sent
            for _ in range(100_000):
                sent += 1
                yield messages.EmbedAllRequest(inputs=TEXTS["code"]["text"])

        answers = client.embed.EmbedAllStream(requests(), timeout=ANSWER_LIMIT)
        first = next(answers)
        before = 0

        def stands_still() -> bool:
            nonlocal before
            still, before = sent == before, sent
            threading.Event().wait(0.5)
            return still

        wait_until(stands_still, 60, "the server does not stop reading")
        assert sent < 20_000
        answers.cancel()
        assert len(first.token_embeddings) == len(VECTORS["embedding-last"]["code"]["ids"])


def test_a_stop_lets_calls_in_flight_finish():
    long = CASES["over-default-limit"]["document"]
    with Server("tied-bf16", *GRPC) as server, Grpc(server) as client:
        texts = [f"{number} {long}" for number in range(8)]
        request = messages.RerankRequest(query="q", texts=texts, truncate=True)
        slow = Background(client.call, client.rerank.Rerank, request)
        wait_until(lambda: server.metrics().get("te_batch_next_size_count"), 30, "none of its batches began")
        server.process.terminate()
        server.wait_for_log("stopping", 10)
        assert len(slow.result().ranks) == len(texts)
        assert server.process.wait(30) == 0


def test_all_methods_but_probes_need_the_key(served):
    server = served("tied-bf16", *GRPC, "--api-key", "k3y")
    request = messages.RerankRequest(query="q", texts=["a"])
    for key in (None, "wrong", "k3", "k3y ", "K3Y"):
        with Grpc(server, key) as client:
            assert client.serves("tei.v1.Rerank") == "SERVING"
            assert ProtoReflectionDescriptorDatabase(client.channel).get_services()
            for method, sent in (
                (client.info.Info, messages.InfoRequest()),
                (client.embed.Embed, messages.EmbedRequest()),
                (client.predict.PredictPairStream, iter([messages.PredictPairRequest()])),
                (client.rerank.Rerank, request),
                (client.tokenize.TokenizeStream, iter([messages.EncodeRequest(inputs="a")])),
                (client.decide.Decide, messages.DecideRequest()),
            ):
                assert client.failure(method, sent) == ("UNAUTHENTICATED", "No valid auth token")
    with Grpc(server, "k3y") as client:
        assert len(client.call(client.rerank.Rerank, request).ranks) == 1
