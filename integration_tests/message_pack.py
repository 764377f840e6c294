"""Teaches schemathesis the second format of bodies, which it loads as `schemathesis.toml` says.

Input: the values that it makes. Output: bytes in MessagePack, and values out of the server's answers. What must hold: a
value that MessagePack cannot write goes as the nearest that it can.
"""

import msgpack
import schemathesis

TYPE = "application/msgpack"
SMALLEST, LARGEST = -(2**63), 2**64 - 1


@schemathesis.serializer(TYPE)
def write(_: schemathesis.SerializationContext, value: object) -> bytes:
    return msgpack.packb(_nearest(value), unicode_errors="surrogatepass", default=str)


@schemathesis.deserializer(TYPE)
def read(_: schemathesis.DeserializationContext, response: schemathesis.Response) -> object:
    return msgpack.unpackb(response.content)


def _nearest(value: object) -> object:
    """Numbers have 64 bits."""
    if isinstance(value, dict):
        return {key: _nearest(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_nearest(element) for element in value]
    if isinstance(value, int) and not isinstance(value, bool) and not SMALLEST <= value <= LARGEST:
        return float(value) if abs(value) < 10**300 else 0.0
    return value
