"""Makes groups whose instruction changes which documents count as relevant.

Input: a `Maker`. Output: `Group`s of four families: only passages in one language, every passage about a
name, passages that support a claim, passages that contradict a claim. What must hold: with another
instruction, the same documents would be judged differently.
"""

from groups import DEFAULT_INSTRUCTION, Document, Group, Maker, Story
from languages import LANGUAGES
from names import name
from world import RELATIONS, TIMED, TRAINED_RELATIONS, Fact, facts_of, question, statement

ENGLISH_NAMES = {"en": "English", "ko": "Korean", "zh": "Chinese", "ru": "Russian", "es": "Spanish"}
IN_LANGUAGE = ["Retrieve passages written in {l} that answer the query", "Given a question, find passages in {l} that answer it"]
ABOUT = ["Given a name, retrieve all passages about it", "Retrieve every passage that mentions the name in the query"]
SUPPORT = ["Given a claim, retrieve passages that support it", "Find passages that confirm the claim"]
CONTRADICT = ["Given a claim, retrieve passages that contradict it", "Find passages that refute the claim"]
CLAIMS = [relation for relation in TRAINED_RELATIONS if relation not in TIMED and relation != "member"]


def story(maker: Maker, language: str, claims: bool = False) -> Story:
    """A new question and the things around it."""
    choices = [relation for relation in (CLAIMS if claims else maker.settings.relations) if relation in maker.settings.relations]
    relation = maker.rng.choice(choices)
    entity = name(RELATIONS[relation][0], maker.rng, maker.settings.held_out_names)
    facts = facts_of(entity, relation, maker.rng, maker.settings.held_out_names)
    while True:
        asked = question(maker.rng.choice(facts), language, maker.rng, maker.settings.held_out_forms)
        if "e" in asked.mentions:
            return Story(maker, asked, facts, language)


def in_language(maker: Maker, instructed: bool = True) -> Group:
    """The answer in several languages; only answers in the language that the instruction names are relevant.

    With `instructed` false, the instruction is the default one and all answers are relevant.
    """
    rng = maker.rng
    wanted = rng.choice(LANGUAGES)
    told = story(maker, wanted if rng.random() < 0.5 else "en")
    query, documents = told.asked.text, []
    languages = [wanted] + rng.sample([language for language in LANGUAGES if language != wanted], 3)
    for language in languages + [wanted] * (maker.settings.documents - 6) + languages[1:3]:
        told.language = language
        if len(documents) < 4:
            document = told.positive()
            if instructed and language != wanted:
                document = Document([(text, False) for text, _ in document.sentences], "other language", language)
        else:
            document = told.negative(rng.choice(("same entity, other relation", "other entity", "unrelated")), documents[0])
        documents.append(document)
    rng.shuffle(documents)
    instruction = rng.choice(IN_LANGUAGE).format(l=ENGLISH_NAMES[wanted]) if instructed else DEFAULT_INSTRUCTION
    return Group(instruction, query, documents, wanted, "in language", wanted)


def about(maker: Maker) -> Group:
    """The query is a bare name; every sentence about it is relevant, whatever the sentence says."""
    rng = maker.rng
    language = rng.choice(LANGUAGES)
    told = story(maker, language)
    entity = told.fact.entity
    documents = []
    for _ in range(rng.choice((2, 3))):
        documents.append(maker.document([(maker.about(entity, "", language), True)], "positive", language, []))
    while len(documents) < maker.settings.documents:
        kind = rng.choice(("other entity", "topic neighbour", "unrelated"))
        documents.append(told.negative(kind, documents[0]))
    rng.shuffle(documents)
    return Group(rng.choice(ABOUT), entity.text(language), documents, language, "about")


def claim(maker: Maker, contradict: bool) -> Group:
    """The query is a claim; sentences that say the same are relevant.

    With `contradict`, sentences that say something else about the same thing are relevant instead.
    """
    rng = maker.rng
    language = rng.choice(LANGUAGES)
    told = story(maker, language, claims=True)
    fact = told.fact
    query = statement(fact, language, rng, maker.settings.held_out_forms)
    documents = []
    for index in range(maker.settings.documents):
        if index < 2:
            documents.append(verdict(maker, fact, language, "positive" if not contradict else "same claim"))
        elif index < 4:
            other = rng.choice(facts_of(fact.entity, fact.relation, rng, maker.settings.held_out_names))
            kind = "other value" if other.value != fact.value else "same claim"
            documents.append(verdict(maker, other, language, "positive" if contradict == (kind == "other value") else kind))
        else:
            documents.append(told.negative(rng.choice(("same entity, other relation", "other entity", "unrelated")), documents[0]))
    rng.shuffle(documents)
    family = "contradict" if contradict else "support"
    return Group(rng.choice(CONTRADICT if contradict else SUPPORT), query, documents, language, family)


def verdict(maker: Maker, fact: Fact, language: str, kind: str) -> Document:
    """A document with one statement of the fact."""
    extra = [maker.filler(language)] if maker.rng.random() < 0.3 else []
    return maker.document([(maker.state(fact, language), kind == "positive")], kind, language, extra)


def instructed_group(maker: Maker) -> Group:
    """A group of one of the four families."""
    draw = maker.rng.random()
    if draw < 0.45:
        return in_language(maker)
    if draw < 0.6:
        return about(maker)
    return claim(maker, draw < 0.8)
