"""Adds MessagePack to schemathesis as a second format of bodies. `schemathesis.toml` loads this file.

Input: the values that schemathesis generates. Output: bytes in MessagePack, and the values of the server's
answers. Invariants: a value that MessagePack cannot represent is sent as the nearest one that it can; binary
data is read as the base64 that it is in JSON, which the description describes.
"""

import base64

import msgpack
import schemathesis

TYPE = "application/msgpack"
SMALLEST, LARGEST = -(2**63), 2**64 - 1


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
