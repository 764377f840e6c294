"""Reads word lists, sentence forms and everyday facts of the five languages; fits names into sentences.

Input: lexicon.txt, forms/, facts/ and words/<language>.txt in this file's folder. Output: dictionaries by
language. What must hold: every language has the same relations, the same facts and the same lists of words
(`check`).
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
LANGUAGES = ("en", "ko", "zh", "ru", "es")
Forms = dict[str, str]  # one text per language


@dataclass
class Relation:
    """Sentence forms of one relation in one language; the last question and last statement are held out."""

    questions: list[str] = field(default_factory=list)
    keywords: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)


@dataclass
class Everyday:
    """An everyday fact in one language: ways to ask for it, and passages that answer each of them."""

    category: str
    queries: list[str] = field(default_factory=list)
    passages: list[str] = field(default_factory=list)


@cache
def lexicon() -> dict[str, list[Forms]]:
    """Aligned words by category."""
    lists: dict[str, list[Forms]] = {}
    for line in lines("lexicon.txt"):
        if line.startswith("["):
            words = lists.setdefault(line.strip("[]"), [])
        else:
            words.append(dict(zip(LANGUAGES, line.split("|"), strict=True)))
    return lists


@cache
def relations(language: str) -> dict[str, Relation]:
    """Sentence forms by relation.

    Names that start with `_` are not relations; they hold sentences about nothing in particular.
    """
    result: dict[str, Relation] = {}
    for line in lines(f"forms/{language}.txt"):
        if line.startswith("["):
            relation = result.setdefault(line.strip("[]"), Relation())
        else:
            target = {"?": relation.questions, "~": relation.keywords, "!": relation.statements}[line[0]]
            target.append(line[2:])
    return result


@cache
def everyday(language: str) -> dict[str, Everyday]:
    """Everyday facts by key; `kimchi/what` and `kimchi/how` are two aspects of one topic."""
    result: dict[str, Everyday] = {}
    for line in lines(f"facts/{language}.txt"):
        if line.startswith("["):
            key, category = line[1:].split("] ")
            fact = result.setdefault(key, Everyday(category))
        elif line.startswith("?"):
            fact.queries += line[2:].split(" | ")
        else:
            fact.passages.append(line[2:])
    return result


@cache
def words(language: str) -> list[str]:
    """Common words of a language, each once."""
    return list(dict.fromkeys(word for line in lines(f"words/{language}.txt") for word in line.split()))


def lines(name: str) -> list[str]:
    """The lines of a file in this file's folder, without empty lines and comments."""
    return [line for line in (HERE / name).read_text(encoding="utf-8").splitlines() if line and not line.startswith("# ")]


PARTICLES = {
    "은": "는", "이": "가", "을": "를", "과": "와", "으로": "로", "이란": "란", "이라고": "라고", "이라는": "라는", "이었다": "였다",
}  # fmt: skip
CONTRACTED = re.compile(r"\b([dD]e|[aA]) el (?=\S)")
SLOT = re.compile(r"\{(\w)(?::(\w))?\}(이라고|이라는|이었다|이란|으로|은|이|을|과)?(?=([\s.,?!:;]|$)?)")


def fill(template: str, values: dict[str, str], language: str) -> str:
    """The template with its slots filled.

    Korean particles fit the word before them; Russian names take their case.
    """

    def one(match: re.Match) -> str:
        slot, case, particle = match.group(1, 2, 3)
        word = decline(values[slot], case) if case else values[slot]
        if particle and language == "ko" and match.group(4) is not None:
            particle = fitting(word, particle)
        return word + (particle or "")

    text = SLOT.sub(one, template)
    return CONTRACTED.sub(r"\1l ", text) if language == "es" else text


def fitting(word: str, particle: str) -> str:
    """The form that a Korean particle takes after a word."""
    last = next((character for character in reversed(word) if character.isalnum()), "a")
    if "가" <= last <= "힣":
        final = (ord(last) - ord("가")) % 28
    else:
        final = 1 if last in "013678bcdfgklmnpqrtvzxj" else 0
        final = 8 if last in "178lr" else final
    if final == 0 or (final == 8 and particle == "으로"):
        return PARTICLES[particle]
    return particle


CASES = {
    "g": ("а", "я", "ы", "и"),
    "d": ("у", "ю", "е", "е"),
    "a": ("а", "я", "у", "ю"),
    "i": ("ом", "ем", "ой", "ей"),
    "p": ("е", "е", "е", "е"),
}


def decline(name: str, case: str) -> str:
    """A Russian name in another case.

    Regular masculine and feminine names follow their rules; other names stay as they are.
    """
    hard, soft, feminine, feminine_soft = CASES[case]
    words = []
    for word in name.split(" "):
        if not re.search(r"[а-яё]$", word):
            words.append(word)
        elif word.endswith("а"):
            words.append(word[:-1] + ("и" if case == "g" and word[-2] in "гкхжшчщ" else feminine))
        elif word.endswith("я"):
            words.append(word[:-1] + feminine_soft)
        elif word[-1] in "йь":
            words.append(word[:-1] + soft)
        elif word[-1] in "оеуиюэыё":
            words.append(word)
        else:
            words.append(word + hard)
    return " ".join(words)


def check() -> None:
    """Asserts that the five languages have the same relations and facts."""
    for language in LANGUAGES[1:]:
        assert relations(language).keys() == relations("en").keys(), language
        assert everyday(language).keys() == everyday("en").keys(), language
