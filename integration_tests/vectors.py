"""Compares vectors with reference vectors, and answers of the server with each other."""

import math
from collections.abc import Sequence

Vector = Sequence[float]
# Bounds for a vector against sentence-transformers': the smallest cosine, and the largest relative error of
# the length, which a cosine does not see.
COSINE = 0.99999
LENGTH = 1e-4
# Largest difference between two answers to the same input: float32 sums in another order change a value of a
# unit vector by at most this much.
SAME = 2e-5


def length(vector: Vector) -> float:
    return math.sqrt(math.fsum(value * value for value in vector))


def cosine(left: Vector, right: Vector) -> float:
    product = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return product / (length(left) * length(right))


def check_reference(vector: Vector, expected: Vector) -> None:
    """Checks that the vector has the direction and the length of the reference."""
    assert cosine(vector, expected) >= COSINE
    assert abs(length(vector) / length(expected) - 1) <= LENGTH


def difference(left: Sequence, right: Sequence) -> float:
    """The largest difference between values at the same place, in two vectors or two equally nested lists."""
    if isinstance(left, Sequence):
        return max((difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    return abs(left - right)


def check_same(left: Sequence, right: Sequence) -> None:
    """Checks two answers to the same inputs."""
    assert difference(left, right) <= SAME
