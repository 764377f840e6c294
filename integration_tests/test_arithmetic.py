"""The arithmetic that `--dtype` and `--instruction-set` choose, against the float32 reference.

The fixtures' weights are random, with raw scores up to 7, so low precision causes larger errors than in
trained models.
"""

from pathlib import Path

import pytest
from reference_data import CASES, EXPECTED, fields
from server import Server, command, run

MODEL = "tied-bf16"
# Largest allowed error of a raw score. Measured: 0.15 and 0.24.
TOLERANCES = {"bfloat16": 0.25, "int8": 0.5}
# The CPU flags that each instruction set needs, by their names in /proc/cpuinfo.
AVX512 = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
INSTRUCTION_SETS = {
    "portable": set(),
    "avx2": {"avx2", "fma"},
    "avx2+vnni": {"avx2", "fma", "avx_vnni"},
    "avx512": AVX512,
    "avx512+vnni": AVX512 | {"avx512_vnni"},
    "avx512+vnni+bf16": AVX512 | {"avx512_vnni", "avx512_bf16"},
    "avx512+vnni+bf16+amx": AVX512 | {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
}


FASTER_IN_16_BITS = ("avx2", "avx2+vnni", "avx512+vnni", "avx512+vnni+bf16", "avx512+vnni+bf16+amx")


def cpu_flags() -> set[str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


AVAILABLE = [name for name, needed in INSTRUCTION_SETS.items() if needed <= cpu_flags()]


def errors(server: Server, count: int) -> list[float]:
    """The errors of the raw scores of the first `count` cases."""
    found = []
    for name in list(EXPECTED[MODEL])[:count]:
        case = CASES[name]
        body = {"query": case["query"], "texts": [case["document"]], "raw_scores": True, **fields(case)}
        answer = server.post("/rerank", body)
        assert answer.status_code == 200, answer.text
        found.append(abs(answer.json()[0]["score"] - EXPECTED[MODEL][name]["raw"]))
    return found


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_low_precision_is_near_the_reference(served, dtype):
    server: Server = served(MODEL, "--dtype", dtype)
    assert server.get("/info").json()["model_dtype"] == dtype
    off = errors(server, 30)
    # An error of at least 1e-3 shows that it is not float32 under another name.
    assert max(off) <= TOLERANCES[dtype] and max(off) > 1e-3, off


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_instruction_set_of_the_cpu_can_be_chosen(name):
    for dtype, tolerance in {"float32": 1e-4, **TOLERANCES}.items():
        flags = ("--dtype", dtype, "--threads", "3")
        with Server(MODEL, *flags, environment={"INSTRUCTION_SET": name}) as server:
            info = server.get("/info").json()
            assert (info["instruction_set"], info["threads"], info["model_dtype"]) == (name, 3, dtype)
            assert f"computed in {dtype} by candle" in server.log() and f"on cpu, 3 threads with {name};" in server.log()
            off = errors(server, 8)
            assert max(off) <= tolerance, off


@pytest.mark.parametrize("name", dict.fromkeys(("portable", AVAILABLE[-1])))
def test_instead_of_float16_the_cpu_computes_in_bfloat16_or_float32(name):
    expected = "bfloat16" if name in FASTER_IN_16_BITS else "float32"
    scores = {}
    for dtype in ("float16", expected):
        with Server(MODEL, "--dtype", dtype, environment={"INSTRUCTION_SET": name}) as server:
            info = server.get("/info").json()
            assert (info["model_dtype"], info["arithmetic"]) == (dtype, expected)
            assert f"computed in {expected} by candle" in server.log()
            said = [line for line in server.log().splitlines() if "--dtype float16`" in line]
            assert len(said) == (dtype == "float16") and all(expected in line for line in said), said
            scores[dtype] = errors(server, 8)
    assert scores["float16"] == scores[expected]


def test_without_the_flag_it_is_the_best_of_the_cpu(server):
    assert server.get("/info").json()["instruction_set"] == AVAILABLE[-1]


@pytest.mark.parametrize("name", [*(name for name in INSTRUCTION_SETS if name not in AVAILABLE), "AVX2", "sse9"])
def test_an_instruction_set_that_the_cpu_lacks_is_refused(name):
    ended = run(*command(MODEL, "--instruction-set", name)[1:])
    assert ended.returncode == 2, ended.stderr
    assert f"invalid value '{name}' for '--instruction-set" in ended.stderr
    assert f"this CPU has {', '.join(AVAILABLE)}" in ended.stderr


@pytest.mark.parametrize(("model", "stored"), [(MODEL, "bfloat16"), ("tied-f32-bare", "float32"), ("untied-f16", "float16")])
def test_the_default_is_bfloat16_if_it_is_stored_and_the_cpu_is_faster_in_16_bits(model, stored):
    faster = AVAILABLE[-1] in FASTER_IN_16_BITS
    expected = "bfloat16" if stored == "bfloat16" and faster else "float32"
    with Server(model, environment={"DTYPE": None}) as server:
        assert server.get("/info").json()["model_dtype"] == expected
