"""The wheel as a user gets it: built here, installed into an empty virtual environment, and run.

Input: WHEEL, the path of a wheel (`make wheel`); without it, the test builds one with the development
profile and the features of `make integration`. Invariants: serving and sending requests need only the wheel
and its dependencies.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from programs import TARGET
from server import ROOT, wait_until

BUILD_LIMIT, INSTALL_LIMIT, RUN_LIMIT = 1200, 300, 120
NAME = "text-embeddings-router"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    if given := os.environ.get("WHEEL"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "maturin", "build", "--profile", "dev", "--features", "ort", "--locked", "--out", folder]
    # The crates that `make integration` compiled, but a folder of its own for the binary: other tests run the
    # binary in the target folder meanwhile.
    environment = os.environ | {"CARGO_BUILD_BUILD_DIR": str(TARGET), "CARGO_TARGET_DIR": str(folder / "target")}
    ended = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_LIMIT, env=environment)
    assert ended.returncode == 0, ended.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Iterator[Path]:
    """The `bin` folder of a virtual environment with the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    run([sys.executable, "-m", "venv", folder], INSTALL_LIMIT)
    run([folder / "bin/python", "-m", "pip", "install", "--quiet", wheel], INSTALL_LIMIT)
    yield folder / "bin"
    shutil.rmtree(folder)


def run(command: list, limit: float = RUN_LIMIT) -> str:
    """The output of a command, in an environment without variables that name another binary or module."""
    left_out = ("TEXT_EMBEDDINGS_ROUTER", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment, cwd="/")
    assert ended.returncode == 0, f"{command}:\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_contents_of_the_wheel(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("text_embeddings_router/__init__.py", "text_embeddings_router/py.typed", "licenses/LICENSE", f"scripts/{NAME}"):
        assert [name for name in names if name.endswith(wanted)], wanted
    # One wheel per platform, for all Python versions.
    assert "-py3-none-" in wheel.name, wheel.name


def test_the_example_of_the_readme(installed):
    readme = (ROOT / "python/README.md").read_text(encoding="utf-8")
    example = readme.split("```python\n")[1].split("```")[0]
    lines = run([installed / "python", "-c", example]).splitlines()
    assert [line.split()[0] for line in lines] == ["1", "0"]
    scores = [float(line.split()[1]) for line in lines]
    assert scores[0] > 0.2 > 0.01 > scores[1]


def test_the_command_line(installed):
    command = ["rerank", "--model-id", "demo", "--query", "red planet", "Bread is baked.", "Mars is red.", "--output", "jsonl"]
    outputs = [run([installed / NAME, *command]), run([installed / "python", "-m", "text_embeddings_router", *command])]
    assert outputs[0] == outputs[1] and '"index":1' in outputs[0].splitlines()[0]


def test_the_binary_is_found_where_it_was_installed(installed, wheel, tmp_path):
    code = "import text_embeddings_router as t; print(t.find_binary())"
    assert run([installed / "python", "-c", code]).strip() == str(installed / NAME)
    # Installed into a folder instead of an environment.
    run([installed / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path, wheel], INSTALL_LIMIT)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    run([installed / "python", "-m", "pip", "uninstall", "--quiet", "--yes", NAME], INSTALL_LIMIT)
    try:
        assert run([installed / "python", "-c", code]).strip() == str(tmp_path / "bin" / NAME)
    finally:
        run([installed / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel], INSTALL_LIMIT)


def test_it_runs_without_being_installed(wheel):
    """`uvx text-embeddings-router --model-id demo`, with the wheel from a file instead of PyPI."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if not uv:
        pytest.skip("uv is not installed: `pip install uv`")
    # The system's certificates, because a company's proxy may have one of its own there.
    environment = {**os.environ, "UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    command = [uv, "tool", "run", "--from", str(wheel), NAME]
    tried = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=RUN_LIMIT, env=environment)
    if "Failed to fetch" in tried.stderr:
        pytest.skip(f"uv does not reach PyPI: {tried.stderr.splitlines()[0]}")
    assert tried.returncode == 0, tried.stderr
    (line,) = re.findall(r"^uvx --from dist/\*\.whl text-embeddings-router (rerank .*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    ranked = subprocess.run([*command, *shlex.split(line)], capture_output=True, text=True, timeout=RUN_LIMIT, env=environment)
    assert "Mars is red." in ranked.stdout.splitlines()[1], ranked.stdout + ranked.stderr
    flags = ["--model-id", "demo", "--hostname", "127.0.0.1", "--port", "0", "--prometheus-port", "0"]
    server = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True, env=environment)
    seen: list[str] = []
    try:
        wait_until(lambda: "Ready: listening" in (seen.append(server.stdout.readline()) or seen[-1]), RUN_LIMIT, f"it is not ready: {seen}")
    finally:
        server.terminate()
        server.wait(RUN_LIMIT)


def test_type_checkers_see_the_types(installed, tmp_path):
    code = textwrap.dedent("""
        import text_embeddings_router as t
        with t.serve("demo") as client:
            score: float = client.rerank("q", ["a"])[0].score
            wrong: str = client.rerank("q", ["a"])[0].score
    """)
    command = [sys.executable, "-m", "mypy", "--python-executable", installed / "python", "-c", code]
    # In an empty folder: a file `mypy.py` next to others in /tmp would be run in place of the type checker.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_LIMIT, cwd=tmp_path)
    assert ended.stdout.count("error:") == 1 and 'variable has type "str"' in ended.stdout, ended.stdout
