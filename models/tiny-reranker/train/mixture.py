"""The stream of training groups, and the small held-out sets that training watches.

Input: a seed. Output: batches in order, without end.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from batches import Encoded, Encoder
from coverage import coverage_group
from groups import Group, Maker, Settings
from instructed import in_language, instructed_group
from languages import LANGUAGES
from world import HELD_OUT_RELATIONS, TIMED

POOL = 160  # groups that are sorted by length together
TOKENS = 3600  # padded document tokens per batch
# Comparing years is the hardest task, so it comes more often.
TIMED_AND_TRAINED = sorted(TIMED - HELD_OUT_RELATIONS)
HARD_AFTER, LONG_AFTER = 500, 1000  # steps until all kinds of negatives come, and until long documents come
# Steps until everyday facts come twice as often: they are few, and training ends with them because people ask
# about them first.
EVERYDAY_AFTER = 3600


def training_group(maker: Maker, step: int) -> Group:
    """One group; later steps bring more kinds of negatives, then long documents."""
    hard, long = min(1.0, 0.2 + step / HARD_AFTER), 0.02 if step > LONG_AFTER else 0.0
    maker.settings = replace(maker.settings, hard=hard, long=long)
    draw = maker.rng.random()
    if draw < (0.45 if step < EVERYDAY_AFTER else 0.31):
        languages = maker.rng.sample(LANGUAGES, 2) if maker.rng.random() < 0.08 else [maker.rng.choice(LANGUAGES)]
        relation = maker.rng.choice(TIMED_AND_TRAINED) if maker.rng.random() < 0.25 else None
        return maker.relation_group(relation, languages[0], languages[-1])
    if draw < 0.61:
        return maker.everyday_group()
    if draw < 0.77:
        return coverage_group(maker)
    if draw < 0.83:
        return maker.keyword_group()
    return in_language(maker, instructed=False) if draw < 0.85 else instructed_group(maker)


def packed(groups: list[Encoded]) -> Iterator[list[Encoded]]:
    """Batches of groups of similar length, with about TOKENS padded document tokens each."""
    batch: list[Encoded] = []
    for group in sorted(groups, key=lambda group: group.longest):
        documents = sum(len(each.documents) for each in batch) + len(group.documents)
        if batch and documents * group.longest > TOKENS:
            yield batch
            batch = []
        batch.append(group)
    yield batch


def stream(encoder: Encoder, seed: str, start: int) -> Iterator[list[Encoded]]:
    """Batches, one for each step from `start`."""
    rng = random.Random(f"{seed}-{start}" if start else seed)
    maker, step = Maker(rng, Settings()), start
    while True:
        batches = list(packed([encoder.encode(training_group(maker, step)) for _ in range(POOL)]))
        rng.shuffle(batches)
        step += len(batches)
        yield from batches


def watched(seed: int, size: int) -> dict[str, list[Group]]:
    """Held-out sets: names, names and forms, relations, everyday facts, instructions."""
    names = Settings(held_out_names=True)
    sets = {
        "names": names,
        "forms": replace(names, held_out_forms=True),
        "relations": replace(names, relations=tuple(sorted(HELD_OUT_RELATIONS))),
    }
    result = {}
    for index, (family, settings) in enumerate(sets.items()):
        maker = Maker(random.Random(seed + index), settings)
        result[family] = [maker.relation_group(language=LANGUAGES[number % 5]) for number in range(size)]
    maker = Maker(random.Random(seed + 7), Settings(held_out_names=True, held_out_everyday=True))
    result["everyday"] = [maker.everyday_group(language=LANGUAGES[number % 5]) for number in range(size)]
    maker = Maker(random.Random(seed + 8), names)
    result["instructed"] = [instructed_group(maker) for _ in range(size)]
    return result
