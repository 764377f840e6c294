"""Makes groups about nothing in particular.

The relevant text has the query's words; the others have fewer of them or none. Input: a `Maker`. Output:
`Group`s of the family `coverage`. They teach the model to look for every word of a query, in whatever form
and sentence, and not only for the forms of known relations.
"""

import random

from groups import Group, Maker
from languages import LANGUAGES, everyday, words

QUERIES = {
    "en": ["How do I {w}?", "What is {w}?", "Where can I find {w}?", "Why {w}?", "When does {w}?", "how to {w}", "{w}", "best {w}"],
    "ko": ["{w} 어떻게 하나요?", "{w}란 무엇인가요?", "{w} 어디에서 찾나요?", "{w} 왜 그런가요?", "{w} 언제인가요?", "{w} 방법", "{w}", "{w} 추천"],
    "zh": ["怎样{w}？", "什么是{w}？", "哪里有{w}？", "为什么{w}？", "{w}是什么时候？", "{w}的方法", "{w}", "最好的{w}"],
    "ru": ["Как {w}?", "Что такое {w}?", "Где найти {w}?", "Почему {w}?", "Когда {w}?", "как {w}", "{w}", "лучший {w}"],
    "es": ["¿Cómo {w}?", "¿Qué es {w}?", "¿Dónde hay {w}?", "¿Por qué {w}?", "¿Cuándo {w}?", "cómo {w}", "{w}", "mejor {w}"],
}
PARTICLES = ["은", "는", "이", "가", "을", "를", "의", "에", "에서", "으로", "와", "도"]


def bent(word: str, language: str, rng: random.Random) -> str:
    """The word in another grammatical form, roughly."""
    if language == "ko":
        return word + rng.choice(PARTICLES)
    if language == "ru" and len(word) > 3:
        stem = word[:-1] if word[-1] in "аеиоуыэюяйь" else word
        return stem + rng.choice(["а", "ы", "у", "е", "ом", "ой", "ах", "и"])
    if language in ("en", "es") and len(word) > 3:
        return word[:-1] if word.endswith("s") else word + "s"
    return word


def sentence(language: str, include: list[str], rng: random.Random) -> str:
    """A sentence that has the words of `include`.

    It is a real sentence in which they replace some words, or they are among common words in random order.
    """
    gap = "" if language == "zh" else " "
    if rng.random() < 0.5:
        parts = rng.sample(words(language), rng.randrange(4, 10))
    else:
        text = rng.choice(rng.choice(list(everyday(language).values())).passages).rstrip(".。")
        parts = [text[index : index + 2] for index in range(0, len(text), 2)] if language == "zh" else text.split()
    for word in include:
        place = rng.randrange(len(parts) + 1)
        parts[place : place + rng.randrange(2)] = [bent(word, language, rng) if rng.random() < 0.35 else word]
    if len(include) > 1 and rng.random() < 0.5:  # in the order of the query, as in real sentences
        parts = [part for part in parts if part not in include]
        place = rng.randrange(len(parts) + 1)
        parts[place:place] = include
    text = gap.join(parts)
    return text[0].upper() + text[1:] + ("。" if language == "zh" else ".")


def coverage_group(maker: Maker) -> Group:
    """A query of two to four common or invented words with its documents."""
    rng = maker.rng
    language = rng.choice(LANGUAGES)
    asked = rng.sample(words(language), rng.choice((2, 2, 3, 3, 4)))
    query = rng.choice(QUERIES[language]).format(w=("" if language == "zh" else " ").join(asked))
    documents = []
    for index in range(maker.settings.documents):
        if index == 0:
            kept = asked if len(asked) < 3 or rng.random() < 0.6 else rng.sample(asked, len(asked) - 1)
            best = len(kept)
        else:
            kept = rng.sample(asked, min(best - 1, rng.choice((0, 0, 1, 1, 2))))
        text = sentence(language, kept, rng)
        core = [(text, index == 0)]
        extra = [maker.filler(language)] if rng.random() < 0.25 else []
        documents.append(maker.document(core, "unrelated" if index else "positive", language, extra))
    rng.shuffle(documents)
    return Group(maker.instruction(), query, documents, language, "coverage")
