"""The arithmetic that `--dtype` chooses, against the reference, which is computed in float32.

The fixtures' weights are random and their raw scores reach 7: low precision shows more than in trained models.
"""

import platform
from pathlib import Path

import pytest
from reference_data import CASES, EXPECTED, fields
from server import Server

MODEL = "tied-bf16"
# By how much a raw score may be off. Measured: 0.15 and 0.6.
TOLERANCES = {"bfloat16": 0.25, "int8": 1.0}


def cpu_multiplies_bfloat16() -> bool:
    info = Path("/proc/cpuinfo")
    return platform.machine() == "x86_64" and info.exists() and "avx512_bf16" in info.read_text()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_low_precision_is_near_the_reference(served, dtype):
    server: Server = served(MODEL, "--dtype", dtype)
    assert server.get("/info").json()["model_dtype"] == dtype
    errors = []
    for name in list(EXPECTED[MODEL])[:30]:
        case = CASES[name]
        body = {"query": case["query"], "texts": [case["document"]], "raw_scores": True, **fields(case)}
        answer = server.post("/rerank", body)
        assert answer.status_code == 200, answer.text
        errors.append(abs(answer.json()[0]["score"] - EXPECTED[MODEL][name]["raw"]))
    # The second: it is not float32 under another name.
    assert max(errors) <= TOLERANCES[dtype] and max(errors) > 1e-3, errors


@pytest.mark.parametrize(("model", "stored"), [(MODEL, "bfloat16"), ("tied-f32-bare", "float32"), ("untied-f16", "float16")])
def test_the_default_is_what_the_checkpoint_is_stored_in_if_the_cpu_multiplies_that(model, stored):
    expected = "bfloat16" if stored == "bfloat16" and cpu_multiplies_bfloat16() else "float32"
    with Server(model, environment={"DTYPE": None}) as server:
        assert server.get("/info").json()["model_dtype"] == expected
