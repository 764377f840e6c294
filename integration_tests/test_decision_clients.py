"""Clients of decisions by others: `typesafe-sdk`, `openai`, LangChain, LiteLLM, and the suite `jevbench`."""

import asyncio
import json

import jevbench
import litellm
import openai
import pytest
import typesafe_sdk
from busy_stub import Stub
from langchain_openai.decisions import Choice as LangChainChoice
from langchain_openai.decisions import OpenAIDecisions, Predicate
from server import MODELS, Server
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient

FOLDER = MODELS.parent / "deciders"
MODEL = "qwen3-instruct"
STATE = {"subject": "Duplicate charge", "n": 3, "x": None, "l": [1, 2.5, True]}
# The request that decisions.md of TypeSafe's package shows, as objects of the package.
QUESTIONS = {
    "billing": Noul(instructions="Is this about billing?", criteria={"true": "money", "false": None}),
    "tone": Choice(instructions="What is the tone?", criteria={"calm": None, "angry": "An upset message"}),
    "urgency": Score(criteria=["Can wait", "This week", "Today"]),
}
EXPECTED = json.loads((FOLDER / f"{MODEL}.expected.json").read_text())["rows"][0]["answers"]
# jevbench's relations of questions to their company. Other relations measure the model.
ISOLATION = ["batch_solo", "batch_order", "batch_content", "batch_size_sweep", "duplicate_question"]
OPENAI_QUESTIONS = [
    {"type": "predicate", "name": "billing", "instructions": "The message is about billing."},
    {"type": "choice", "name": "tone", "instructions": "What is the tone?", "choices": [{"value": "calm"}, {"value": "angry", "description": "An upset message"}]},
    {"type": "choice", "instructions": "Is it late?", "choices": [{"value": True}, {"value": False}, {"value": "true"}]},
    {"type": "score", "instructions": "How urgent?", "levels": [{"label": "Can wait"}, {"label": "This week"}, {"label": "Today", "description": "d"}]},
]


@pytest.fixture(scope="module")
def server(served) -> Server:
    return served(FOLDER / MODEL, "--model-type", "decider", "--dtype", "float32")


def typesafe(server: Server | Stub, **options: object) -> TypeSafeClient:
    return TypeSafeClient(api_key="any", base_url=server.url, **options)


def check_typesafe(response: object) -> None:
    """The captured request has transformers' answers."""
    billing, tone, urgency = (response.answers[key] for key in QUESTIONS)
    assert billing.noul == pytest.approx(EXPECTED["billing"]["probabilities"][0], abs=1e-4)
    assert list(tone.probabilities.values()) == pytest.approx(EXPECTED["tone"]["probabilities"], abs=1e-4)
    assert tone.choice in tone.probabilities and 0 <= tone.confidence <= 1
    assert [urgency.legend[key] for key in sorted(urgency.legend)] == ["Can wait", "This week", "Today"]
    assert list(urgency.probabilities.values()) == pytest.approx(EXPECTED["urgency"]["probabilities"], abs=1e-4)
    assert response.model == MODEL and response.usage.output_tokens == 0 < response.usage.input_tokens
    assert len(response.request_id) == 32


def test_typesafes_package_asks_sync_and_async(server):
    with typesafe(server) as client:
        check_typesafe(client.system_one(state=STATE, questions=QUESTIONS))
        assert [model.name for model in client.models.list().models] == [MODEL]
        many = {"many": Choice(criteria={f"option {index}": None for index in range(255)})}
        assert len(client.system_one(state="", questions=many).answers["many"].probabilities) == 255
        levels = {"scale": Score(criteria=[{"level": index} for index in range(10)])}
        assert client.system_one(state=[], questions=levels).answers["scale"].legend[9] == {"level": 9}

    async def ask() -> object:
        async with AsyncTypeSafeClient(api_key="any", base_url=server.url) as client:
            return await client.system_one(state=STATE, questions=QUESTIONS)

    check_typesafe(asyncio.run(ask()))


def test_typesafes_package_shows_errors_and_repeats_only_what_may_succeed(server, served):
    with typesafe(server) as client, pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError) as invalid:
        client.system_one(state="s", questions={"q": Score(criteria=["level"] * 11)})
    assert "`questions.q.criteria` has 11 levels: give 1 to 10" in str(invalid.value)
    embedder = served("embedding-last")
    with Stub(embedder, []) as stub, typesafe(stub) as client, pytest.raises(typesafe_sdk.TypeSafeAPIError) as other:
        client.system_one(state="s", questions=QUESTIONS)
    assert "model is not a decider; it is an embedding model" in str(other.value) and len(stub.requests) == 1
    with Stub(server, [(429, {"Retry-After": "0"})]) as stub, typesafe(stub) as client:
        answer = client.system_one(state=STATE, questions=QUESTIONS)
        assert answer.answers["billing"].noul and len(stub.requests) == 2


def test_openais_package_asks_sync_and_async(server):
    def check(decision: object) -> None:
        billing, tone, late, urgency = decision.answers
        assert (billing.type, billing.name, late.name, urgency.name) == ("predicate", "billing", None, None)
        assert 0 < billing.probability < 1
        assert [item.value for item in tone.probabilities] == ["calm", "angry"] and tone.choice in ("calm", "angry")
        assert [item.value for item in late.probabilities] == [True, False, "true"]
        assert [item.label for item in urgency.probabilities] == ["Can wait", "This week", "Today"]
        assert urgency.score == pytest.approx(sum(item.value * item.probability for item in urgency.probabilities))
        assert decision.usage.total_tokens == decision.usage.input_tokens > 0
        assert decision.model == MODEL

    request = {"model": "gpt-6-luna", "input": "I was charged twice.", "questions": OPENAI_QUESTIONS}
    client = openai.OpenAI(api_key="any", base_url=f"{server.url}/v1")
    decision = client.decisions.create(**request)
    check(decision)
    assert len(decision._request_id) == 32
    messages = [{"role": "developer", "content": "Be strict."}, {"role": "user", "content": [{"type": "input_text", "text": "Late!"}]}]
    check(client.decisions.create(**{**request, "input": messages}))
    check(asyncio.run(openai.AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1").decisions.create(**request)))
    with pytest.raises(openai.UnprocessableEntityError) as invalid:
        client.decisions.create(**{**request, "questions": OPENAI_QUESTIONS[:1] * 401})
    assert "has 401 questions: at most 400 are answered" in invalid.value.message
    with Stub(server, [(429, {"Retry-After": "0"})]) as stub:
        check(openai.OpenAI(api_key="any", base_url=f"{stub.url}/v1").decisions.create(**request))
        assert len(stub.requests) == 2


def test_langchain_asks(server):
    decisions = OpenAIDecisions(model="m", api_key="any", base_url=f"{server.url}/v1")
    questions = {
        "department": LangChainChoice(instructions="Which team?", choices={"billing": "Payment", "technical": "Bugs"}),
        "urgent": Predicate(instructions="Is this request urgent?"),
    }
    response = decisions.invoke({"input": "Help ASAP.", "questions": questions})
    assert response.choices["department"].choice in ("billing", "technical")
    assert 0 < response.predicates["urgent"].probability < 1


def test_litellm_asks(server):
    questions = {"urgent": {"type": "noul", "instructions": "Is this request urgent?"}}
    response = litellm.systemone(model="hosted_vllm/m", state="Help ASAP.", questions=questions, api_base=server.url, api_key="any")
    expected = server.post("/v1/systemone", {"state": "Help ASAP.", "questions": questions}).json()["answers"]["urgent"]["noul"]
    answer = response.answers["urgent"]
    assert (answer["noul"] if isinstance(answer, dict) else answer.noul) == expected


def test_jevbench_finds_no_difference_between_a_question_alone_and_in_a_batch(server):
    model = jevbench.systemone(f"{server.url}/v1/systemone", MODEL)
    assert sum(jevbench.check(model)["questions"].values()) >= 3
    report = jevbench.evaluate(model, suite="examples", relations=ISOLATION, cache=":memory:", bootstrap=10)
    rows = [row for row in report.result["outcomes"] if row["relation"] in ISOLATION]
    assert {row["relation"] for row in rows} == set(ISOLATION)
    # Not within its tolerance of 0.05, but exactly.
    assert all(row["deviation"] == 0 for row in rows), rows
