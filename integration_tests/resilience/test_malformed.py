"""Bytes that are not an HTTP request: the server answers or closes the connection, and keeps serving."""

import random

from target import read_answer

GARBAGE = 100


def test_random_bytes_do_no_harm(target, bystander, record):
    aim = target()
    generator = random.Random(20)
    with bystander(aim) as others:
        for _ in range(GARBAGE):
            with aim.connect() as connection:
                connection.sendall(b"\x00" + generator.randbytes(generator.randrange(1, 5000)))
                assert b" 200 " not in read_answer(connection)[:16]
    assert not others.lost, others.lost
    assert aim.is_alive()
    record("connections that send random bytes", GARBAGE, len(others.lost), "each is closed")
