"""Hooks of schemathesis for MessagePack and for routes with several names. `schemathesis.toml` loads them.

MessagePack is a second format of bodies. Input: the values that schemathesis generates. Output: bytes in
MessagePack, and the values of the server's answers. Invariants: a value that MessagePack cannot represent is
sent as the nearest one that it can; binary data is read as the base64 that it is in JSON, which the
description describes.

If a route has several names, each body with a mistake is sent to one of them. Invariants: every such body is
sent; every name gets its share of them, all valid bodies, and the methods that it does not have.
"""

import base64
from collections import Counter

import msgpack
import schemathesis
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import TestPhase

TYPE = "application/msgpack"
SMALLEST, LARGEST = -(2**63), 2**64 - 1
# The bodies so far, by name and method of a route.
BODIES: Counter[str] = Counter()


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case) -> bool:
    """Whether a request is sent. All names of a route would get the same bodies in the same order, because
    their descriptions of the body are the same, so each body is sent to exactly one name."""
    phase, operation = case.meta.phase, case.operation
    if phase.name is not TestPhase.COVERAGE or case.meta.generation.mode is not GenerationMode.NEGATIVE:
        return True
    if case.media_type is None or phase.data.parameter_location is not ParameterLocation.BODY:
        return True
    paths, method = operation.schema.raw_schema["paths"], operation.method.lower()
    described = paths[operation.path][method]["requestBody"]
    names = [path for path, methods in paths.items() if methods.get(method, {}).get("requestBody") == described]
    BODIES[operation.label] += 1
    return BODIES[operation.label] % len(names) == names.index(operation.path)


@schemathesis.serializer(TYPE)
def write(_: schemathesis.SerializationContext, value: object) -> bytes:
    return msgpack.packb(_nearest(value), unicode_errors="surrogatepass", default=str)


@schemathesis.deserializer(TYPE)
def read(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> object:
    return _in_json(msgpack.unpackb(response.content))


def _in_json(value: object) -> object:
    """The value with base64 instead of bytes."""
    if isinstance(value, dict):
        return {key: _in_json(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_in_json(element) for element in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _nearest(value: object) -> object:
    """The value with each integer beyond 64 bits replaced by a float."""
    if isinstance(value, dict):
        return {key: _nearest(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_nearest(element) for element in value]
    if isinstance(value, int) and not isinstance(value, bool) and not SMALLEST <= value <= LARGEST:
        return float(value) if abs(value) < 10**300 else 0.0
    return value
