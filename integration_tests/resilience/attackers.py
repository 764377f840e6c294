"""Attackers for a soak, each at a low rate, and an honest client whose answers must never change.

Input: a target, and SOAK_ATTACKS, the attacks per second; without it nobody attacks. Output: the honest
client's 99th percentiles without and with attackers, which are printed. What must hold: every answer of the
honest client has the same bytes, and each attack ends as its row says.
"""

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import requests
from target import Target, head
from test_states import STATES, TIMES

RATE = float(os.environ.get("SOAK_ATTACKS") or 0)
# Flags under which stopped clients are ended soon.
FLAGS = (*TIMES, "--grpc-port", "0") if RATE else ()
AT_A_TIME = 8
# MiB that attacks which run at the moment may hold.
HELD = 64 if RATE else 0
LONG = 1_900_000
# A frame of zstd whose blocks of four bytes are 128 KiB each.
BOMB = bytes.fromhex("28b52ffd0038")
BLOCK = ((128 << 10) << 3 | 2).to_bytes(3, "little") + b"a"
STEADY = {"query": "Which planet is red?", "texts": ["Mars is red.", "Bread is baked.", "서울은 수도이다."]}

# Path, body, further headers, and the statuses that it may have.
Body = tuple[str, object, dict[str, str], set[int]]
BUSY = {429, 503}


def choice(identity: str, instructions: str, options: int) -> dict:
    criteria = {f"o{number}": None for number in range(options)}
    question = {"type": "choice", "instructions": instructions, "criteria": criteria}
    return {"model": "ranks", "state": "a", "questions": {identity: question}}


BODIES: list[Body] = [
    ("/v1/systemone", choice("i" * (LONG // 2), "a", 60_000), {}, {422}),
    ("/v1/systemone", choice("i", "a " * (LONG // 4), 50), {}, {422}),
    ("/v1/systemone", choice("i", "a", 200) | {"state": "planet " * 100_000}, {}, {422}),
    ("/v1/systemone", b'{"state":' + b"[" * (LONG // 2) + b"]" * (LONG // 2) + b',"questions":{}}', {}, {400, 422}),
    ("/v1/decisions", BOMB + BLOCK * 100_000, {"Content-Encoding": "zstd"}, {400, 413, 422}),
    ("/v1/decisions", BOMB + BLOCK, {"Content-Encoding": "zstd"}, {400, 413, 422}),
    ("/playground/prompt", {"query": "planet " * 100_000, "text": "red " * 200_000, "truncate": False}, {}, {422}),
    ("/rerank", {"query": "a", "texts": ["." * LONG, "ﷺ" * (LONG // 9)], "truncate": True}, {}, {200}),
    ("/rerank", {"query": "a", "texts": ["7" * LONG], "truncate": False}, {}, {422}),
    ("/rerank", {"query": "a", "texts": ["b"], "instruction": "planet " * 250_000}, {}, {422}),
    ("/rerank", {"query": "</s><mask>", "texts": ["<|im_end|>", "</s></s>", "[SEP]"]}, {}, {200}),
    ("/v2/rerank", {"query": "a", "documents": ["planet red " * 150_000], "max_chunks_per_doc": 1 << 40, "max_tokens_per_doc": 20}, {}, {422}),
    ("/v1/rerank", b'{"query":"q","return_documents":true,"documents":[{"text":"a","n":[' + b'{"":0},' * 250_000 + b"0]}]}", {}, {200}),
    ("/embed_all", {"model": "embeds", "inputs": ["7" * 60_000] * 2}, {}, {200, 422}),
    ("/embed", {"model": "embeds", "inputs": "a", "prompt_name": "p" * LONG}, {}, {422}),
    ("/vertex", {"instances": [{"inputs": ["a", "b"]}] * 2000}, {}, {200, 422}),
    ("/tokenize", {"inputs": "7" * LONG}, {}, {422}),
    ("/rerank", {"model": "m" * LONG, "query": "a", "texts": ["b"]}, {}, {404}),
    ("/rerank", os.urandom(100_000), {}, {400}),
]  # fmt: skip


def posted(aim: Target, body: Body) -> None:
    path, content, headers, expected = body
    data = content if isinstance(content, bytes) else json.dumps(content, ensure_ascii=False).encode()
    answer = requests.post(aim.url + path, data=data, headers={"Content-Type": "application/json"} | headers, timeout=120)
    assert answer.status_code in expected | BUSY, f"{path}: {answer.status_code} {answer.text[:300]}"
    assert len(answer.content) < 1 << 14 or answer.status_code == 200, f"{path}: an error of {len(answer.content)} bytes"


def left(aim: Target) -> None:
    """Asks for much, and leaves before the answer."""
    body = json.dumps({"query": "red", "texts": [f"{number} {'planet ' * 250}" for number in range(800)], "truncate": True}).encode()
    with aim.connect() as connection:
        connection.sendall(head("/rerank", len(body)) + body)
        time.sleep(0.2)


def hung_up(aim: Target) -> None:
    """Has the models file and the files of its models read again."""
    aim.process("signals").process.send_signal(signal.SIGHUP)


class Attackers:
    """Attacks after `pause` seconds, at RATE, until `stop`."""

    def __init__(self, aim: Target, pause: float):
        self._aim, self._pause, self._over = aim, pause, threading.Event()
        self._seconds: dict[bool, list[float]] = {False: [], True: []}
        self._wrong: list[str] = []
        self._attacks = 0
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._attack, self._ask)] if RATE else []
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits until the last attacks have ended. Prints the counts, and fails if an answer was wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive(), "an attack or an honest request does not end"
        if RATE:
            alone, attacked = (percentile(self._seconds[is_attacked]) for is_attacked in (False, True))
            asked = sum(map(len, self._seconds.values()))
            print(f"{self._attacks} attacks; {asked} requests of the honest client; {len(self._wrong)} wrong in all")
            print(f"its 99th percentile: {alone * 1000:.0f} ms alone, {attacked * 1000:.0f} ms among attackers")
            assert self._attacks and not self._wrong, self._wrong[:5]

    def _attack(self) -> None:
        own: list[Callable[[Target], object]] = [left, hung_up]
        own += [lambda aim, body=body: posted(aim, body) for body in BODIES]
        own += [lambda aim, state=state: state.enter(aim)() for state in STATES]
        random.Random(1).shuffle(own)
        self._over.wait(self._pause)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            running: list[Future] = []
            for attack in itertools.cycle(own):
                if self._over.wait(1 / RATE):
                    break
                running = self._note_ended(running)
                if len(running) >= AT_A_TIME:
                    continue
                self._attacks += 1
                running.append(pool.submit(attack, self._aim))
        self._note_ended(running)

    def _note_ended(self, running: list[Future]) -> list[Future]:
        """Returns the attacks that still run, and notes the errors of the others."""
        over = [one for one in running if one.done()]
        self._wrong += [f"an attack: {one.exception()!r}" for one in over if one.exception()]
        return [one for one in running if one not in over]

    def _ask(self) -> None:
        first = None
        while not self._over.is_set():
            is_attacked, start = self._attacks > 0, time.monotonic()
            try:
                answer = requests.post(f"{self._aim.url}/rerank", json=STEADY, timeout=120)
                first = first or answer.content
                if answer.status_code != 200 or answer.content != first:
                    self._wrong.append(f"the honest client: {answer.status_code} {answer.text[:200]}")
            except requests.RequestException as error:
                self._wrong.append(f"the honest client: {error!r}"[:200])
            self._seconds[is_attacked].append(time.monotonic() - start)
            self._over.wait(0.05)


def percentile(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))] if seconds else float("nan")
