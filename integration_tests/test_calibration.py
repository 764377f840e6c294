"""`--calibration`: fitted numbers are applied to the model, prompt and arithmetic that they were made for."""

import json
import math

import pytest
from server import MODELS, Server, refusal

DECIDER = MODELS.parent / "deciders/qwen3-instruct"
LAYA = MODELS.parent / "laya/small"
FLAGS = {DECIDER: ("--model-type", "decider"), LAYA: (), MODELS / "tied-bf16": ()}
QUESTIONS = {
    "choice": {"type": "choice", "instructions": "Which?", "criteria": {"red": None, "blue": "like the sea", "green": None}},
    "score": {"type": "score", "criteria": ["low", "middle", "high"]},
    "noul": {"type": "noul", "instructions": "It is red."},
}
TEMPERATURES = {"choice": 3.0, "score": 0.5, "noul": 7.0}


def made_for(server: Server) -> dict:
    """The fields by which a server knows its model again."""
    info = server.get("/info").json()
    return {name: info.get(name) for name in ("model_id", "model_sha", "arithmetic", "prompt_hash")} | {
        "instruction": info["default_instruction"],
        "data": {"name": "tickets"},
    }


def probabilities(answer: dict) -> list[float]:
    return [answer["noul"], 1 - answer["noul"]] if "noul" in answer else list(answer["probabilities"].values())


@pytest.mark.parametrize("folder", FLAGS, ids=lambda folder: folder.name)
def test_answers_are_divided_by_the_temperatures(served, tmp_path, folder):
    plain = served(folder, *FLAGS[folder], "--dtype", "float32")
    file = tmp_path / "calibration.json"
    # Scales have no temperature in the file.
    fits = {kind: {"temperature": TEMPERATURES[kind]} for kind in ("choice", "noul")}
    file.write_text(json.dumps(made_for(plain) | {"decisions": fits}))
    body = {"state": "The sea is calm.", "questions": QUESTIONS}
    before = plain.post("/v1/systemone", body).json()["answers"]
    assert "calibration" not in plain.get("/info").json()
    with Server(folder, *FLAGS[folder], "--dtype", "float32", "--calibration", str(file)) as server:
        after = server.post("/v1/systemone", body).json()["answers"]
        assert server.get("/info").json()["calibration"] == {
            "file": str(file), "data": "tickets", "score": None, "decisions": {"choice": 3.0, "noul": 7.0, "score": 1.0},
        }
    assert after["score"] == before["score"]
    for kind in ("choice", "noul"):
        powers = [value ** (1 / TEMPERATURES[kind]) for value in probabilities(before[kind])]
        assert probabilities(after[kind]) == pytest.approx([power / sum(powers) for power in powers], abs=1e-9)


def test_scores_are_calibrated_and_raw_scores_stay(served, tmp_path):
    model, texts = MODELS / "tied-bf16", ["Mars is red.", "Bread is baked.", ""]
    plain = served(model, "--dtype", "float32")
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(made_for(plain) | {"temperature": 2.5, "offset": -0.75}))
    raw = plain.scores("red planet", texts)
    models = tmp_path / "models.toml"
    models.write_text(f'[models.fitted]\nmodel-id = "{model}"\ncalibration = "{file}"\n[models.plain]\nmodel-id = "{model}"\n')
    with Server(models, "--dtype", "float32") as server:
        assert server.scores("red planet", texts, model="fitted") == raw
        for name, expected in (("fitted", [value / 2.5 - 0.75 for value in raw]), ("plain", raw)):
            ranks = server.post("/rerank", {"model": name, "query": "red planet", "texts": texts}).json()
            found = [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])]
            assert found == pytest.approx([1 / (1 + math.exp(-value)) for value in expected], abs=1e-6)
    other = file.with_name("other.json")

    def refused(flags: tuple = (), folder=model, **changes: object) -> str:
        other.write_text(json.dumps(json.loads(file.read_text()) | changes))
        return refusal(folder, *(flags or ("--dtype", "float32")), "--calibration", str(other))

    assert "made for the arithmetic float32, and this server has int8" in refused(("--dtype", "int8"))
    assert "made for the prompt" in refused(("--dtype", "float32", "--chat-template", "zerank"))
    assert "made for the instruction" in refused(("--dtype", "float32", "--default-instruction", "x"))
    assert "made for the model /a/b, and" in refused(model_id="/a/b")
    assert "has nothing for a model of this kind" in refused((*FLAGS[DECIDER], "--dtype", "float32"), DECIDER)
    assert "`--calibration` is for re-rankers and deciders" in refused(folder="embedding-last")
    assert "the temperature 0 is not between 0.001 and 1000" in refused(temperature=0)
    assert "`--calibration /no/such`: No such file" in refusal(model, "--calibration", "/no/such")
    other.write_text("{")
    assert "give a file that `text-embeddings-router-calibrate` wrote" in refusal(model, "--calibration", str(other))
