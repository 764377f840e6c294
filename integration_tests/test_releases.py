"""Nothing that the last release had is gone: flags, variables, commands, routes, metrics (COMPATIBILITY.md);
and the steps of a release that need no network.

Input: `releases/VERSION.json`, which the release with that version wrote (`UPDATE_RELEASE=1` writes the
file of the current version); the binary, docs/openapi.json, and the table of metrics. To take a promise
back, deprecate it for a minor version, then remove it from the file in the same change as from the server.
"""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from server import ROOT, VERSION, run
from test_compatibility import NAME, named

RELEASES = ROOT / "integration_tests/releases"
# Deprecated flags, which the help does not show.
HIDDEN = {"--hf-api-token": "HF_API_TOKEN"}


@pytest.fixture(scope="module")
def current() -> dict[str, list[str]]:
    """The names that users write, sorted."""
    help_text = run("--help").stdout
    commands = re.search(r"\nCommands:\n(.*?)\n\n", help_text, re.DOTALL)[1]
    paths = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))["paths"]
    found = {
        "flags": [*re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE), *HIDDEN],
        "variables": [*re.findall(r"\[env: (\w+)", help_text), *HIDDEN.values()],
        "commands": re.findall(r"^  (\w+) ", commands, re.MULTILINE),
        "routes": [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods],
        "metrics": named("Metrics", NAME.pattern),
    }
    return {kind: sorted(set(names)) for kind, names in found.items()}


def last_release() -> Path:
    return max(RELEASES.glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")])


def test_nothing_that_a_release_had_is_gone(current):
    if "UPDATE_RELEASE" in os.environ:
        (RELEASES / f"{VERSION}.json").write_text(json.dumps(current, indent=1) + "\n", encoding="utf-8")
    promised = json.loads(last_release().read_text(encoding="utf-8"))
    assert {kind: len(names) > 5 for kind, names in current.items()} == dict.fromkeys(promised, True)
    gone = [f"{kind}: {name}" for kind, names in promised.items() for name in names if name not in current[kind]]
    assert not gone, f"{last_release().stem} had them: {gone}"


def release(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "scripts/release.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_tag_of_another_version_is_refused():
    ended = release("check", "v9.9.9")
    assert ended.returncode == 1 and ended.stderr == f"release.py: the tag is v9.9.9, and Cargo.toml has version {VERSION}\n"


def test_archives_and_the_formula_have_the_wheels_binary(tmp_path):
    platforms = ["manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "macosx_11_0_arm64"]
    for platform in platforms:
        with zipfile.ZipFile(tmp_path / f"text_embeddings_router-{VERSION}-py3-none-{platform}.whl", "w") as wheel:
            wheel.writestr(f"text_embeddings_router-{VERSION}.data/scripts/text-embeddings-router", platform)
    assert release("archive", tmp_path).returncode == 0
    sums = {}
    for platform in platforms:
        path = tmp_path / f"text-embeddings-router-{VERSION}-{platform}.tar.gz"
        with tarfile.open(path) as packed:
            binary = packed.getmember("text-embeddings-router")
            assert binary.mode == 0o755 and packed.extractfile(binary).read().decode() == platform
            assert {"LICENSE", "README.md"} < set(packed.getnames())
        sums[platform] = hashlib.sha256(path.read_bytes()).hexdigest()
    # Fails for its notes, which have no date before the release; the formula and the sums are written first.
    release("collect", tmp_path, "https://example.org/x")
    formula = (tmp_path / "text-embeddings-router.rb").read_text()
    for place, platform in (("on_macos do\n    on_arm", platforms[2]), ("on_linux do\n    on_intel", platforms[0]), ("on_linux do\n    on_arm", platforms[1])):
        part = formula.partition(place)[2][:400]
        assert f"/v{VERSION}/text-embeddings-router-{VERSION}-{platform}.tar.gz" in part.splitlines()[1] and sums[platform] in part.splitlines()[2]
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 6


def test_the_test_of_the_formula(tmp_path):
    """Its command and its pattern, with this binary instead of the installed one."""
    formula = (ROOT / "scripts/release.py").read_text(encoding="utf-8")
    (command,) = re.findall(r'shell_output\("#\{\{bin\}\}/\{name\} (.*)"\)', formula)
    (lines,) = re.findall(r'texts\.write "(.*)"', formula)
    texts = tmp_path / "texts.txt"
    texts.write_text(lines.replace("\\\\n", "\n"))
    ended = run(*shlex.split(command.replace("#{{texts}}", str(texts))))
    assert "Mars is the red planet" in ended.stdout.splitlines()[0], ended.stdout + ended.stderr
