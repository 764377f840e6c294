"""Objects of a request that its answer repeats take about as much memory as their bytes, in either format."""

from concurrent.futures import ThreadPoolExecutor

import requests
from server import ANSWER_LIMIT

BODIES = 4
# Maps with one short name each: as a tree, such a map takes 200 times its bytes.
MAPS = 600_000
PACKED = b"\x81\xa0\x00" * MAPS
WRITTEN = b",".join([b'{"":0}'] * (MAPS // 2))
# The most memory that bodies may take while it is parsed and kept, in all copies.
MOST = BODIES * (30 << 20)


def packed_body() -> bytes:
    """`{"query": "q", "return_documents": true, "documents": [{"text": "a", "n": […]}]}` as MessagePack."""
    list_of_maps = b"\xdd" + MAPS.to_bytes(4, "big") + PACKED
    document = b"\x82\xa4text\xa1a\xa1n" + list_of_maps
    return b"\x83\xa5query\xa1q\xb0return_documents\xc3\xa9documents\x91" + document


def written_body() -> bytes:
    """The same as JSON, with half as many maps."""
    return b'{"query":"q","return_documents":true,"documents":[{"text":"a","n":[' + WRITTEN + b"]}]}"


def test_objects_take_no_more_than_their_bytes(target, record):
    aim = target("--threads", "2", "--max-concurrent-requests", "64", "--payload-limit", "4000000")
    path, small = aim.small()
    aim.post(path, small)
    for body, media_type in [(packed_body(), "application/msgpack"), (written_body(), "application/json")]:
        before = aim.memory()

        def ask(_: int, body: bytes = body, media_type: str = media_type) -> int:
            headers = aim.headers | {"Content-Type": media_type, "Accept": "application/json"}
            answer = requests.post(aim.url + "/v1/rerank", data=body, headers=headers, timeout=ANSWER_LIMIT, verify=False)
            assert answer.content.count(b'{"":0}') >= MAPS // 2, answer.content[:300]
            return answer.status_code

        with ThreadPoolExecutor(BODIES) as pool:
            assert set(pool.map(ask, range(BODIES))) == {200}
        peak = aim.process("memory").peak_memory()
        assert peak <= before + MOST, f"{media_type}: {(peak - before) >> 20} MiB for {BODIES} bodies of {len(body)} bytes"
    record("documents of 600,000 objects, repeated in the answer", 2 * BODIES, 0, "answered; at most 30 MB for each")
