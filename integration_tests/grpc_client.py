"""A gRPC client made as users make theirs: stubs that grpcio-tools generates from `proto/tei.proto`, and a
channel.

Input: a `Server` with `--grpc-port`. Output: `Grpc`, a context manager with one stub per service, and
`messages`, the generated messages.
"""

import sys
import tempfile
from collections.abc import Callable, Iterable

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_tools import protoc
from server import ANSWER_LIMIT, ROOT, Server

_folder = tempfile.TemporaryDirectory(prefix="stubs-")
_status = protoc.main(
    ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={_folder.name}", f"--grpc_python_out={_folder.name}", "tei.proto"]
)
assert _status == 0, "tei.proto does not compile"
sys.path.append(_folder.name)

import tei_pb2 as messages  # noqa: E402
import tei_pb2_grpc as stubs  # noqa: E402

RIGHT, LEFT = messages.TRUNCATION_DIRECTION_RIGHT, messages.TRUNCATION_DIRECTION_LEFT


class Grpc:
    """A connection to a server. Its calls have the same time limit as requests over HTTP."""

    def __init__(self, server: Server, key: str | None = None):
        # Without this option, channels to the same address would share a connection.
        self.channel = grpc.insecure_channel(server.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.metadata = [("authorization", f"Bearer {key}")] if key else []
        self.info, self.embed, self.predict = (
            make(self.channel) for make in (stubs.InfoStub, stubs.EmbedStub, stubs.PredictStub)
        )
        self.rerank, self.tokenize = (make(self.channel) for make in (stubs.RerankStub, stubs.TokenizeStub))
        self.decide = stubs.DecideStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def __enter__(self) -> "Grpc":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, method: Callable, request: object) -> object:
        """The single answer to a message or to a stream of messages."""
        return method(request, timeout=ANSWER_LIMIT, metadata=self.metadata)

    def stream(self, method: Callable, requests: Iterable) -> list:
        """The answers to a stream."""
        return list(method(iter(requests), timeout=ANSWER_LIMIT, metadata=self.metadata))

    def failure(self, method: Callable, request: object) -> tuple[str, str]:
        """The code's name and the message of a call that must fail."""
        try:
            answer = method(request, timeout=ANSWER_LIMIT, metadata=self.metadata)
            if hasattr(answer, "__iter__"):
                list(answer)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"the call succeeded: {answer}")

    def serves(self, service: str) -> str:
        """The name of the health status of a service."""
        request = health_pb2.HealthCheckRequest(service=service)
        status = self.health.Check(request, timeout=ANSWER_LIMIT, metadata=self.metadata).status
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)


def fields(message: object) -> dict:
    """A message as a dict with the names of `tei.proto`, including unset fields without presence."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
