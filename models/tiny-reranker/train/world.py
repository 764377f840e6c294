"""Makes facts about invented things, with statements and questions in a language.

It defines which kinds each relation connects, and draws random values. Input: a random generator, split and
language. Output: `Fact`, `Question` and their texts. A question mentions some of entity, value and year. A
fact answers it if the fact has the same relation and agrees with everything that is mentioned
(`Question.answered_by`).
"""

import random
from dataclasses import dataclass

from languages import LANGUAGES, Forms, fill, lexicon, relations
from names import Name, name

# For each relation: the kind of its entity and the kind of its value.
RELATIONS: dict[str, tuple[str, str]] = {
    "coach": ("team", "person"), "ceo": ("company", "person"), "mayor": ("city", "person"), "founder": ("company", "person"),
    "founded": ("company", "year"), "headquarters": ("company", "city"), "author": ("book", "person"), "published": ("book", "year"),
    "director": ("film", "person"), "singer": ("song", "person"), "born": ("person", "year"), "birthplace": ("person", "city"),
    "profession": ("person", "profession"), "height": ("mountain", "metres"), "length": ("river", "kilometres"),
    "population": ("city", "count"), "located": ("city", "country"), "hours": ("museum", "hours"), "ticket": ("museum", "money"),
    "architect": ("building", "person"), "built": ("building", "year"), "ingredients": ("dish", "ingredients"),
    "cooking": ("dish", "minutes"), "origin": ("dish", "country"), "price": ("product", "money"), "warranty": ("product", "years"),
    "material": ("product", "material"), "function": ("function", "action"), "symptom": ("disease", "symptoms"),
    "cause": ("disease", "cause"), "treatment": ("disease", "treatment"), "habitat": ("creature", "habitat"),
    "diet": ("creature", "food"), "lifespan": ("creature", "years"), "champion": ("tournament", "team"), "member": ("band", "person"),
    "phone": ("shop", "phone"), "meeting": ("event", "weekday"), "language": ("country", "language"), "capital": ("country", "city"),
    "definition": ("term", "meaning"), "rector": ("university", "person"), "painter": ("painting", "person"),
    "depth": ("lake", "metres"), "weight": ("product", "kilograms"), "inventor": ("device", "person"),
}  # fmt: skip
TIMED = {"coach", "ceo", "mayor", "rector", "champion"}
HELD_OUT_RELATIONS = {"rector", "painter", "depth", "weight", "inventor"}
TRAINED_RELATIONS = [relation for relation in RELATIONS if relation not in HELD_OUT_RELATIONS]
UNITS: dict[str, Forms] = {
    "metres": {"en": "{n} metres", "ko": "{n}미터", "zh": "{n}米", "ru": "{n} метров", "es": "{n} metros"},
    "kilometres": {"en": "{n} kilometres", "ko": "{n}킬로미터", "zh": "{n}公里", "ru": "{n} километров", "es": "{n} kilómetros"},
    "kilograms": {"en": "{n} kilograms", "ko": "{n}킬로그램", "zh": "{n}公斤", "ru": "{n} килограммов", "es": "{n} kilos"},
    "minutes": {"en": "{n} minutes", "ko": "{n}분", "zh": "{n}分钟", "ru": "{n} минут", "es": "{n} minutos"},
    "years": {"en": "{n} years", "ko": "{n}년", "zh": "{n}年", "ru": "{n} лет", "es": "{n} años"},
    "money": {"en": "{n} dollars", "ko": "{n}원", "zh": "{n}元", "ru": "{n} рублей", "es": "{n} euros"},
    "hours": {"en": "{a}:00 to {b}:00", "ko": "{a}시부터 {b}시까지", "zh": "{a}点到{b}点", "ru": "с {a}:00 до {b}:00", "es": "de {a}:00 a {b}:00"},
}
RANGES = {"metres": (5, 8000), "kilometres": (20, 4000), "kilograms": (2, 90), "minutes": (5, 180), "years": (2, 80), "money": (2, 3000), "count": (900, 900000)}
AND = {"en": " and ", "ko": ", ", "zh": "和", "ru": " и ", "es": " y "}


@dataclass(frozen=True)
class Fact:
    """`relation` connects `entity` to `value`; if the relation is timed, from year `start` to `end`."""

    relation: str
    entity: Name
    value: tuple[tuple[str, str], ...]
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class Question:
    """A filled form that asks about a fact. `mentions`: the slots that it names."""

    fact: Fact
    text: str
    mentions: frozenset[str]
    start: int
    end: int

    def answered_by(self, fact: Fact) -> bool:
        """Whether the fact answers the question."""
        if fact.relation != self.fact.relation:
            return False
        if "e" in self.mentions and fact.entity != self.fact.entity:
            return False
        if "v" in self.mentions and fact.value != self.fact.value:
            return False
        return not self.start or (fact.start <= self.start and self.end <= fact.end)


def value(kind: str, rng: random.Random, held_out: bool) -> Forms:
    """A random value in all languages."""
    if kind in ("person", "city", "team"):
        return dict(name(kind, rng, held_out).forms)
    if kind in ("ingredients", "symptoms"):
        words = rng.sample(lexicon()[kind.removesuffix("s")], rng.choice((2, 3)))
        return {language: ", ".join(word[language] for word in words[:-1]) + AND[language] + words[-1][language] for language in LANGUAGES}
    if kind == "hours":
        opening, closing = rng.randrange(6, 12), rng.randrange(15, 24)
        return {language: form.format(a=opening, b=closing) for language, form in UNITS["hours"].items()}
    if kind == "year":
        return dict.fromkeys(LANGUAGES, str(rng.randrange(1850, 2024)))
    if kind == "phone":
        return dict.fromkeys(LANGUAGES, f"{rng.randrange(100, 999)}-{rng.randrange(1000, 9999)}")
    if kind in RANGES:
        low, high = RANGES[kind]
        number = str(int(low * (high / low) ** rng.random()))
        return {language: UNITS[kind][language].format(n=number) if kind in UNITS else number for language in LANGUAGES}
    return rng.choice(lexicon()[kind])


def facts_of(entity: Name, relation: str, rng: random.Random, held_out: bool) -> list[Fact]:
    """The facts of one relation: one, or a series of holders in consecutive years."""
    kind = RELATIONS[relation][1]
    if relation not in TIMED:
        return [Fact(relation, entity, tuple(value(kind, rng, held_out).items()))]
    facts, year = [], rng.randrange(1930, 2012)
    for _ in range(rng.choice((2, 3, 4))):
        length = 0 if relation == "champion" else rng.randrange(1, 7)
        facts.append(Fact(relation, entity, tuple(value(kind, rng, held_out).items()), year, year + length))
        year += length + rng.choice((1, 1, 2, 3))
    return facts


def statement(fact: Fact, language: str, rng: random.Random, held_out_form: bool, short: bool = False) -> str:
    """A sentence that states the fact; held-out forms are the last of each relation."""
    forms = relations(language)[fact.relation].statements
    form = forms[-1] if held_out_form else rng.choice(forms[:-1])
    text = fill(form, slots(fact, language, short), language)
    return text[0].upper() + text[1:]


def slots(fact: Fact, language: str, short: bool) -> dict[str, str]:
    """The text for each slot of a form."""
    return {
        "e": fact.entity.text(language, short),
        "v": dict(fact.value)[language],
        "a": str(fact.start),
        "b": str(fact.end),
        "y": str(fact.start),
    }


def question(fact: Fact, language: str, rng: random.Random, held_out_form: bool, short: bool = False) -> Question:
    """A question or keywords that the fact answers; held-out forms are the last question of each relation."""
    relation = relations(language)[fact.relation]
    if held_out_form:
        form = relation.questions[-1]
    elif rng.random() < 0.2:
        form = rng.choice(relation.keywords)
    else:
        form = rng.choice(relation.questions[:-1])
    values = slots(fact, language, short)
    start = end = 0
    if "{a}" in form:
        start, end = fact.start, fact.end
    elif "{y}" in form:
        start = end = rng.randrange(fact.start, fact.end + 1)
        values["y"] = str(start)
    mentions = frozenset(slot for slot in "ev" if "{" + slot in form)
    return Question(fact, casual(fill(form, values, language), rng), mentions, start, end)


def casual(text: str, rng: random.Random) -> str:
    """The text as people type it: now and then in lower case or without its question mark."""
    text = text[0].upper() + text[1:] if rng.random() < 0.9 else text.lower()
    return text.rstrip("?？").lstrip("¿") if rng.random() < 0.15 else text
