"""Makes groups for training and evaluation.

A group is one instruction and query with documents that answer the query or fail in a known way. Input: a
random generator and `Settings` (which names, forms, relations and facts may appear). Output: `Group`. Each
document says which kind it is (`positive`, or the kind of negative), and for each of its sentences whether
the sentence answers the query.
"""

import random
from dataclasses import dataclass

from languages import LANGUAGES, everyday, fill, relations, words
from names import Name, name
from world import RELATIONS, TIMED, TRAINED_RELATIONS, Fact, Question, casual, facts_of, question, statement

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
OTHER_WORDINGS = [
    "",
    "Given a question, find the passages that answer it",
    "Retrieve documents that answer the user's question",
    "Find text that contains the answer to the search query",
    "Given a query, retrieve relevant documents",
]
HELD_OUT_WORDING = "Select the passage in which the question is answered"
HELD_OUT_EVERYDAY = {
    "paella", "egg", "cheetah", "bee", "gravity", "volcano", "git/branch", "wifi", "pacific", "burn", "stain", "passport", "quixote",
    "football", "library",
}  # fmt: skip
KINDS = {  # kinds of negatives and how often each is drawn
    "same entity, other relation": 3.0, "other entity": 2.5, "other years": 3.0, "near duplicate": 2.0, "mixed facts": 1.5,
    "question repeated": 0.7, "topic neighbour": 1.0, "same value": 1.0, "unrelated": 1.5,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Which names, forms, relations and facts may appear.

    `long`: share of groups with long documents. `hard`: 0 for few and easy negatives, 1 for all.
    """

    held_out_names: bool = False
    held_out_forms: bool = False
    relations: tuple[str, ...] = tuple(TRAINED_RELATIONS)
    held_out_everyday: bool = False
    long: float = 0.0
    documents: int = 8
    hard: float = 1.0


@dataclass
class Document:
    """Sentences, each with a flag (does it answer the query?), and the document's kind and language."""

    sentences: list[tuple[str, bool]]
    kind: str
    language: str

    @property
    def relevant(self) -> bool:
        return self.kind == "positive"

    def text(self) -> str:
        """The document as the model reads it."""
        return ("" if self.language == "zh" else " ").join(sentence for sentence, _ in self.sentences)


@dataclass
class Group:
    """One query with its documents.

    `family` says how the group was made; `detail` names the relation or fact that it was made from.
    """

    instruction: str
    query: str
    documents: list[Document]
    language: str
    family: str
    detail: str = ""


class Maker:
    """Makes groups by one set of settings, from one random generator."""

    def __init__(self, rng: random.Random, settings: Settings):
        self.rng, self.settings = rng, settings

    def instruction(self) -> str:
        """An instruction, mostly the default one."""
        return DEFAULT_INSTRUCTION if self.rng.random() < 0.8 else self.rng.choice(OTHER_WORDINGS)

    def state(self, fact: Fact, language: str) -> str:
        """The fact as a sentence."""
        short = self.rng.random() < 0.15
        return statement(fact, language, self.rng, self.settings.held_out_forms and self.rng.random() < 0.7, short)

    def filler(self, language: str) -> str:
        """A sentence about nothing in particular."""
        return self.rng.choice(relations(language)["_filler"].statements)

    def some_fact(self, entity: Name, without: str) -> Fact | None:
        """A fact about the entity in a relation other than `without`, if the entity's kind has any."""
        choices = [relation for relation, (kind, _) in RELATIONS.items() if kind == entity.kind and relation != without]
        choices = [relation for relation in choices if relation in self.settings.relations or relation in TRAINED_RELATIONS]
        return self.rng.choice(facts_of(entity, self.rng.choice(choices), self.rng, self.settings.held_out_names)) if choices else None

    def about(self, entity: Name, without: str, language: str) -> str:
        """A sentence about the entity that does not state the relation `without`."""
        fact = self.some_fact(entity, without) if self.rng.random() < 0.85 else None
        if fact:
            return self.state(fact, language)
        text = fill(self.rng.choice(relations(language)["_about"].statements), {"e": entity.text(language)}, language)
        return text[0].upper() + text[1:]

    def document(self, core: list[tuple[str, bool]], kind: str, language: str, extra: list[str]) -> Document:
        """The core sentences, with the `extra` sentences before and after them."""
        before = [(text, False) for text in extra if self.rng.random() < 0.4]
        after = [(text, False) for text in extra if (text, False) not in before]
        return Document(before + core + after, kind, language)

    def unrelated(self, language: str) -> list[str]:
        """One or two sentences about something else."""
        if self.rng.random() < 0.4:
            return [self.rng.choice(self.rng.choice(list(everyday(language).values())).passages)]
        relation = self.rng.choice(self.settings.relations)
        entity = name(RELATIONS[relation][0], self.rng, self.settings.held_out_names)
        fact = self.rng.choice(facts_of(entity, relation, self.rng, self.settings.held_out_names))
        return [self.state(fact, language)] + ([self.about(entity, relation, language)] if self.rng.random() < 0.4 else [])

    def relation_group(self, relation: str | None = None, language: str | None = None, query_language: str | None = None) -> Group:
        """A question about an invented thing, its answer, and negatives of several kinds."""
        rng = self.rng
        relation = relation or rng.choice(self.settings.relations)
        language = language or rng.choice(LANGUAGES)
        query_language = query_language or language
        kind = RELATIONS[relation][0]
        entity = name(kind, rng, self.settings.held_out_names)
        facts = facts_of(entity, relation, rng, self.settings.held_out_names)
        fact = rng.choice(facts)
        asked = question(fact, query_language, rng, self.settings.held_out_forms and rng.random() < 0.7, rng.random() < 0.12)
        story = Story(self, asked, facts, language)
        documents = [story.positive() for _ in range(2 if rng.random() < 0.2 else 1)]
        kinds = [each for each in KINDS if each != "other years" or relation in TIMED]
        if self.settings.hard < rng.random():
            kinds = ["unrelated", "topic neighbour", "other entity", "same entity, other relation"]
        weights = [KINDS[each] for each in kinds]
        while len(documents) < self.settings.documents:
            documents.append(story.negative(rng.choices(kinds, weights)[0], documents[0]))
        if rng.random() < self.settings.long:
            documents = [self.longer(document) for document in documents]
        rng.shuffle(documents)
        return Group(self.instruction(), asked.text, documents, query_language, "relation", relation)

    def longer(self, document: Document, place: float | None = None, sentences: int | None = None) -> Document:
        """The document with many sentences around it; `place` 0 puts the document first, 1 last."""
        count = sentences or self.rng.randrange(6, 20)
        others = []
        while len(others) < count:
            others += [self.filler(document.language)] if self.rng.random() < 0.6 else self.unrelated(document.language)
        split = round(len(others) * (self.rng.random() if place is None else place))
        before, after = ([(text, False) for text in part] for part in (others[:split], others[split:]))
        return Document(before + document.sentences + after, document.kind, document.language)

    def everyday_group(self, language: str | None = None, key: str | None = None) -> Group:
        """A question about the real world; negatives are other facts, most of them of the same field."""
        rng = self.rng
        language = language or rng.choice(LANGUAGES)
        facts = everyday(language)
        allowed = [each for each in facts if (each in HELD_OUT_EVERYDAY) == self.settings.held_out_everyday]
        key = key or rng.choice(allowed)
        fact = facts[key]
        queries = fact.queries
        query = casual(rng.choice(queries), rng)
        others = [each for each in facts if each != key and (self.settings.held_out_everyday or each not in HELD_OUT_EVERYDAY)]
        near = [each for each in others if facts[each].category == fact.category]
        topic = [each for each in others if each.split("/")[0] == key.split("/")[0]]
        documents = [self.everyday_document(rng.choice(fact.passages), True, "positive", language)]
        while len(documents) < self.settings.documents:
            draw = rng.random()
            pool = topic if draw < 0.15 and topic else near if draw < 0.55 else others
            kind = "topic neighbour" if pool is not others else "unrelated"
            if draw > 0.95:
                repeated = fill(rng.choice(relations(language)["_mention"].statements), {"q": query}, language)
                documents.append(Document([(repeated, False)], "question repeated", language))
            elif draw > 0.8:
                documents.append(self.document([(text, False) for text in self.unrelated(language)], "unrelated", language, []))
            else:
                documents.append(self.everyday_document(rng.choice(facts[rng.choice(pool)].passages), False, kind, language))
        rng.shuffle(documents)
        return Group(self.instruction(), query, documents, language, "everyday", key)

    def everyday_document(self, passage: str, answers: bool, kind: str, language: str) -> Document:
        """The passage, now and then with a sentence about nothing in particular."""
        extra = [self.filler(language)] if self.rng.random() < 0.25 else []
        return self.document([(passage, answers)], kind, language, extra)

    def word_salad(self, language: str) -> str:
        """Common words in random order, so that the model has compared every word."""
        picked = self.rng.sample(words(language), self.rng.randrange(5, 12))
        return ("" if language == "zh" else " ").join(picked) + ("。" if language == "zh" else ".")

    def keyword_group(self) -> Group:
        """A query of words from a document; only a document that has them all is relevant."""
        rng = self.rng
        language = rng.choice(LANGUAGES)
        texts = []
        for _ in range(self.settings.documents):
            texts.append(self.unrelated(language) + ([self.filler(language)] if rng.random() < 0.3 else []))
        if rng.random() < 0.5:
            texts = [[self.word_salad(language)] for _ in texts]
        source = rng.choice(texts[0])
        if language == "zh":
            starts = sorted(rng.sample(range(max(1, len(source) - 4)), min(2, max(1, len(source) - 4))))
            asked = [source[start : start + rng.choice((2, 3, 4))].strip("。，：") for start in starts]
        else:
            asked = [word.strip(".,:;«»\"") for word in source.split()]
            asked = [word for word in asked if len(word) > (1 if language == "ko" else 3)] or asked
            asked = rng.sample(asked, min(len(asked), rng.choice((1, 2, 3))))
        asked = [word for word in asked if word]
        documents = []
        for text in texts:
            joined = " ".join(text)
            hit = all(word in joined for word in asked)
            marked = [(part, hit and any(word in part for word in asked)) for part in text]
            documents.append(Document(marked, "positive" if hit else "unrelated", language))
        rng.shuffle(documents)
        return Group(self.instruction(), " ".join(asked), documents, language, "keywords")


class Story:
    """The things around one question (the thing it asks about, others of its kind) and their facts."""

    def __init__(self, maker: Maker, asked: Question, facts: list[Fact], language: str):
        self.maker, self.asked, self.facts, self.language = maker, asked, facts, language
        self.rng, self.fact = maker.rng, asked.fact
        self.siblings = [name(self.fact.entity.kind, self.rng, maker.settings.held_out_names) for _ in range(3)]

    def extras(self, entity: Name | None) -> list[str]:
        """Up to two sentences to go around the core: about the entity or about nothing in particular."""
        texts = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            tell = entity is not None and self.rng.random() < 0.6
            texts.append(self.maker.about(entity, self.fact.relation, self.language) if tell else self.maker.filler(self.language))
        return texts

    def sibling_fact(self) -> Fact:
        """A fact of the question's relation, about another thing, that does not answer the question."""
        for _ in range(20):
            sibling = self.rng.choice(self.siblings)
            fact = self.rng.choice(facts_of(sibling, self.fact.relation, self.rng, self.maker.settings.held_out_names))
            if self.fact.start:  # the same years, so that only the name tells them apart
                fact = Fact(fact.relation, fact.entity, fact.value, self.fact.start, self.fact.end)
            if not self.asked.answered_by(fact):
                return fact
        raise AssertionError(f"no other value for {self.fact.relation}")

    def positive(self) -> Document:
        """A document that answers. If others held the same office, it may also name some of them."""
        core = [(self.maker.state(self.fact, self.language), True)]
        others = [fact for fact in self.facts if not self.asked.answered_by(fact)]
        if others and self.rng.random() < 0.25:
            core.insert(self.rng.randrange(2), (self.maker.state(self.rng.choice(others), self.language), False))
        return self.maker.document(core, "positive", self.language, self.extras(self.fact.entity))

    def negative(self, kind: str, positive: Document) -> Document:
        """A document of the given kind; it does not answer."""
        maker, entity, relation = self.maker, self.fact.entity, self.fact.relation
        others = [fact for fact in self.facts if not self.asked.answered_by(fact)]
        extras = self.extras(entity)
        if kind == "other years" and others:
            core = [maker.state(self.rng.choice(others), self.language)]
        elif kind == "other entity":
            fact = self.sibling_fact()
            core, extras = [maker.state(fact, self.language)], self.extras(fact.entity)
        elif kind == "near duplicate" and positive.language == self.language:
            swap = self.rng.choice(others) if others and self.rng.random() < 0.5 else self.sibling_fact()
            core = [maker.state(swap, self.language) if answers else text for text, answers in positive.sentences]
            extras = []
        elif kind == "mixed facts":
            core = [maker.about(entity, relation, self.language), maker.state(self.sibling_fact(), self.language)]
            self.rng.shuffle(core)
        elif kind == "question repeated":
            core = [fill(self.rng.choice(relations(self.language)["_mention"].statements), {"q": self.asked.text}, self.language)]
        elif kind == "topic neighbour":
            sibling = self.rng.choice(self.siblings)
            core, extras = [maker.about(sibling, relation, self.language)], self.extras(sibling)
        elif kind == "same value" and RELATIONS[relation][1] == "person":
            holder = Name("person", "person:value", self.fact.value, self.fact.value)
            core, extras = [maker.about(holder, relation, self.language)], self.extras(None)
        elif kind == "unrelated":
            core, extras = maker.unrelated(self.language), []
        else:
            kind, core = "same entity, other relation", [maker.about(entity, relation, self.language)]
        return maker.document([(text, False) for text in core], kind, self.language, extras)

