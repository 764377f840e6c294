"""Makes the evaluation's groups.

The families: held-out names, forms, relations and everyday facts, long documents and instructions. Input: a
seed and a size. Output: lists of `Group`s by family. What must hold: no group has a name that training saw;
the families other than `new names` add the property that they are named after.
"""

import random
from dataclasses import replace

from groups import DEFAULT_INSTRUCTION, HELD_OUT_EVERYDAY, HELD_OUT_WORDING, Document, Group, Maker, Settings
from instructed import about, claim, in_language
from languages import LANGUAGES
from world import HELD_OUT_RELATIONS, TIMED

CANDIDATES = 15
NAMES = Settings(held_out_names=True, documents=CANDIDATES)
RELATIONS = replace(NAMES, relations=tuple(sorted(HELD_OUT_RELATIONS)))
FAMILIES = {
    "new names": NAMES,
    "new names, new sentence forms": replace(NAMES, held_out_forms=True),
    "new names, new relations": RELATIONS,
}
EVERYDAY = "new everyday facts"


def standard(groups: list[Group]) -> list[Group]:
    """The groups with the default instruction."""
    return [replace(group, instruction=DEFAULT_INSTRUCTION) for group in groups]


def by_language(seed: int, size: int) -> dict[str, dict[str, list[Group]]]:
    """`size` groups for each family and language."""
    result: dict[str, dict[str, list[Group]]] = {}
    for family, settings in FAMILIES.items():
        maker = Maker(random.Random(f"{seed} {family}"), settings)
        result[family] = {language: standard([maker.relation_group(language=language) for _ in range(size)]) for language in LANGUAGES}
    maker = Maker(random.Random(f"{seed} everyday"), replace(NAMES, held_out_everyday=True))
    keys = sorted(HELD_OUT_EVERYDAY)
    result[EVERYDAY] = {
        language: standard([maker.everyday_group(language, keys[number % len(keys)]) for number in range(size)]) for language in LANGUAGES
    }
    return result


def across_languages(seed: int, size: int) -> list[Group]:
    """Query in one language, documents in another; each spells the name in its own script."""
    maker = Maker(random.Random(f"{seed} across"), NAMES)
    pairs = [maker.rng.sample(LANGUAGES, 2) for _ in range(size)]
    return standard([maker.relation_group(language=one, query_language=other) for one, other in pairs])


def other_years(seed: int, size: int) -> list[Group]:
    """Questions that give a year and ask about an office that several persons held."""
    maker = Maker(random.Random(f"{seed} years"), NAMES)
    relations = sorted(TIMED - HELD_OUT_RELATIONS)
    return standard([maker.relation_group(relations[number % len(relations)], LANGUAGES[number % 5]) for number in range(size)])


def keywords(seed: int, size: int) -> list[Group]:
    """Queries that are words of a document."""
    maker = Maker(random.Random(f"{seed} keywords"), NAMES)
    return standard([maker.keyword_group() for _ in range(size)])


def long(seed: int, size: int, place: float, sentences: int) -> list[Group]:
    """Documents of many sentences, with the sentences that matter at `place`.

    All documents of a group have about the same length.
    """
    maker = Maker(random.Random(f"{seed} long"), replace(NAMES, documents=5))
    result = []
    for number in range(size):
        group = maker.relation_group(language=LANGUAGES[number % 5])
        group.documents = [maker.longer(document, place, sentences) for document in group.documents]
        result.append(group)
    return standard(result)


def instructed(seed: int, size: int) -> dict[str, list[Group]]:
    """The families of instructed.py, and a wording of the default instruction that training never saw."""
    maker = Maker(random.Random(f"{seed} instructed"), replace(NAMES, documents=10))
    result = {
        "passages in one language": [in_language(maker) for _ in range(size)],
        "all about a name": [about(maker) for _ in range(size)],
        "support a claim": [claim(maker, False) for _ in range(size)],
        "contradict a claim": [claim(maker, True) for _ in range(size)],
    }
    plain = [maker.relation_group(language=LANGUAGES[number % 5]) for number in range(size)]
    result["new wording of the default"] = [replace(group, instruction=HELD_OUT_WORDING) for group in plain]
    return result


def texts(groups: list[Group]) -> list[Document]:
    """All documents of the groups."""
    return [document for group in groups for document in group.documents]
