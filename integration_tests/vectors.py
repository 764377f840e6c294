"""How far two vectors are apart."""

import math
from collections.abc import Sequence

Vector = Sequence[float]
# A vector against that of sentence-transformers, as in the issue; and its length, which a cosine does not see.
COSINE = 0.99999
LENGTH = 1e-4
# Two answers of the server for the same input: what float32 sums of another order may change in a value of a vector of
# length one.
SAME = 2e-5


def length(vector: Vector) -> float:
    return math.sqrt(math.fsum(value * value for value in vector))


def cosine(left: Vector, right: Vector) -> float:
    product = math.fsum(a * b for a, b in zip(left, right, strict=True))
    return product / (length(left) * length(right))


def check_reference(vector: Vector, expected: Vector) -> None:
    """The vector points where the reference points and is as long."""
    assert cosine(vector, expected) >= COSINE
    assert abs(length(vector) / length(expected) - 1) <= LENGTH


def difference(left: Sequence, right: Sequence) -> float:
    """The largest difference of two values at the same place, in vectors or lists of those of the same shape."""
    if isinstance(left, Sequence):
        return max((difference(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    return abs(left - right)


def check_same(left: Sequence, right: Sequence) -> None:
    """Two answers for the same inputs."""
    assert difference(left, right) <= SAME
