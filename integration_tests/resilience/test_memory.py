"""After large requests have been answered, the server returns their memory to the system."""

import time
from concurrent.futures import ThreadPoolExecutor

BODIES = 8
# Each digit is one token.
DIGITS = "1234567890" * 40_000
# Bytes that may stay resident: buffers of the largest batch, and the allocator's for each thread.
KEPT = 100 << 20
LIMIT = 60


def test_memory_is_given_back(target, record):
    aim = target("--threads", "2", "--max-concurrent-requests", "64")
    path, small = aim.small()
    aim.post(path, small)
    before = aim.memory()

    def ask(_: int) -> int:
        return aim.post("/tokenize", {"inputs": DIGITS}).status_code

    with ThreadPoolExecutor(BODIES) as pool:
        statuses = list(pool.map(ask, range(BODIES)))
    assert set(statuses) <= {200, 429}, statuses
    peak = aim.process("memory").peak_memory()
    assert peak > before + KEPT + (50 << 20), f"the requests took only {(peak - before) >> 20} MiB: too little for this test"
    end = time.monotonic() + LIMIT
    while aim.memory() > before + KEPT and time.monotonic() < end:
        time.sleep(0.5)
    assert aim.memory() <= before + KEPT, f"{before >> 20} MiB, {peak >> 20} MiB, then {aim.memory() >> 20} MiB"
    assert aim.is_alive()
    record("8 texts of 400,000 tokens at a time", BODIES, 0, "the memory is given back within a minute")
