#!/usr/bin/env python3
"""A worker with one fault or another. It replaces the Python interpreter.

Its name decides how it starts, and the ids of a batch decide how it answers. The right answer for a text is the sum
of its ids and their number, and for a token its id.
"""

import json
import math
import os
import struct
import sys
import time

MODE = os.path.basename(sys.argv[0])
FACTS = {"device": "cpu", "dtype": "float32", "width": 2, "token_width": 1, "padding": 5, "versions": "none"}


def receive(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            while MODE == "deaf":
                time.sleep(1)
            os._exit(0)
        data += part
    return data


def frame(header, payload=b""):
    header = json.dumps(header).encode()
    return struct.pack("<II", len(header), len(payload)) + header + payload


def send(data):
    while data:
        data = data[os.write(0, data) :]


def answer(header, payload):
    count, width = header["texts"], header["width"]
    numbers = struct.unpack(f"<{3 * count * width}I", payload)
    rows = [
        [numbers[row * width + column] for column in range(width) if numbers[(count + row) * width + column]]
        for row in range(count)
    ]
    seen = {number for row in rows for number in row}
    whole = [float(value) for row in rows for value in (sum(row), len(row))]
    tokens = [float(number) for row in rows for number in row] if header["tokens"] else []
    right = {
        "kind": "values",
        "batch": header["batch"],
        "whole": [count, 2],
        "tokens": [len(tokens), 1] if tokens else [0, 0],
    }
    if 103 in seen:
        send(b"Loading weights: 100%|#####|\n" * 10)
    if 104 in seen:
        send(struct.pack("<II", 10, 0xFFFFFFF0) + b"0123456789")
    if 105 in seen:
        right["whole"] = [count + 1, 2]
    if 106 in seen:
        right["batch"] += 1
    if 107 in seen:
        whole[0] = math.nan
    if 108 in seen:
        send(frame({"kind": "failed", "batch": header["batch"], "reason": "no\nway\x1b[31m"}))
        return
    if MODE == "small" and count > 2 or 114 in seen:
        failed = {"kind": "failed", "batch": header["batch"], "reason": "2 GiB are missing", "out_of_memory": True}
        send(frame(failed))
        return
    if 109 in seen:
        print("a line on standard output")
        print("x" * 1_000_000, file=sys.stderr, flush=True)
    if 110 in seen:
        whole.append(0.0)
    if 111 in seen:
        send(frame({"kind": "hello", "version": 1, "python": "again"}))
    if 112 in seen:
        send(frame({"kind": "unknown"}))
    data = frame(right, struct.pack(f"<{len(whole) + len(tokens)}f", *whole, *tokens))
    if 101 in seen:
        send(data[: len(data) // 2])
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    if 102 in seen:
        time.sleep(1000)
    send(data)
    if 113 in seen:
        os._exit(0)


def main():
    with open(sys.argv[0] + ".pids", "a+") as pids:
        pids.seek(0)
        starts = len(pids.read().split()) + 1
        pids.write(f"{os.getpid()}\n")
    receive(int(sys.argv[-1]))
    if MODE == "silent":
        time.sleep(1000)
    if MODE == "exits" or MODE == "once" and starts > 1:
        print("no module named x", file=sys.stderr, flush=True)
        os._exit(1)
    if MODE == "talks":
        send(b"Python 3.12.1 (main) [GCC]\n>>> ")
    send(frame({"kind": "hello", "version": 2 if MODE == "version" else 1, "python": "3.11"}))
    facts = dict(FACTS)
    if MODE == "changes" and starts > 1:
        facts["width"] = 3
    facts.update({"wide": {"width": 1 << 40}, "tpu": {"device": "tpu"}, "none": {"width": 0}}.get(MODE, {}))
    while True:
        header, payload = struct.unpack("<II", receive(8))
        header, payload = json.loads(receive(header)), receive(payload)
        if header["kind"] == "batch":
            answer(header, payload)
        elif MODE == "refuses":
            send(frame({"kind": "refused", "reason": "the weights are\nmissing"}))
        elif MODE == "slow":
            time.sleep(1000)
        else:
            send(frame({"kind": "loaded", **facts}))


main()
