"""Dockerfile, Dockerfile-cuda and docker-bake.hcl, as far as they can be checked without building an image.

`make image-check` builds the images. What must hold: hadolint finds nothing; each target of the bake file has
a Dockerfile, arguments and a stage that exist; variables of the images are flags of the server; versions
agree. The bake file is read by python-hcl2, and by docker-buildx where that is installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import hcl2
import pytest
import tomllib
from server import ROOT, run

WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]
DOCKERFILES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "Dockerfile-cuda")}
# Variables of other programs: the dynamic linker, CUDA, and NVIDIA's container toolkit.
FOREIGN_VARIABLES = {
    "CUDA_CACHE_PATH",
    "LD_LIBRARY_PATH",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_VISIBLE_DEVICES",
}


def read_by_hcl2(given: dict[str, str]) -> dict[str, dict]:
    """The targets of the bake file by name, with inherited values and with the variables' values."""
    text = (ROOT / "docker-bake.hcl").read_text(encoding="utf-8")
    # Strings come with their quotes, which tells them from names of variables.
    parsed = hcl2.loads(text)
    values = {json.loads(name): json.loads(variable["default"]) for block in parsed["variable"] for name, variable in block.items()}
    values |= given
    blocks = {json.loads(name): target for block in parsed["target"] for name, target in block.items()}

    def value(expression):
        if isinstance(expression, list):
            return [value(element) for element in expression]
        if isinstance(expression, dict):
            return {name: value(element) for name, element in expression.items()}
        if not expression.startswith('"'):
            return values[expression]
        return re.sub(r"\$\{(\w+)\}", lambda match: values[match[1]], json.loads(expression))

    def resolve(name: str) -> dict:
        own = {key: value(expression) for key, expression in blocks[name].items() if key != "__is_block__"}
        resolved: dict = {}
        for parent in own.pop("inherits", ()):
            resolved |= resolve(parent)
        arguments = resolved.get("args", {}) | own.get("args", {})
        return resolved | own | ({"args": arguments} if arguments else {})

    return {name: resolve(name) for name in blocks}


def read_by_buildx(given: dict[str, str]) -> dict[str, dict]:
    plugins = os.pathsep.join(("/usr/libexec/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins", str(Path.home() / ".docker/cli-plugins")))
    buildx = shutil.which("docker-buildx") or shutil.which("docker-buildx", path=plugins)
    if not buildx:
        pytest.skip("docker-buildx is not installed: Debian 13 and later have it as a package")
    ended = subprocess.run(
        [buildx, "bake", "--print", "cpu", "cuda", "sbom"], cwd=ROOT, env={"PATH": os.environ["PATH"], **given}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["target"]


@pytest.mark.parametrize("read", [read_by_hcl2, read_by_buildx])
def test_the_targets_of_the_bake_file(read):
    targets = read({"REGISTRY": "registry.example/", "VERSION": "9.8.7", "REVISION": "abc", "CUDA_COMPUTE_CAP": "90"})
    common = {"VERSION": "9.8.7", "REVISION": "abc"}
    name = "registry.example/text-embeddings-router:9.8.7"
    found = {target: [targets[target].get(key) for key in ("dockerfile", "target", "args", "platforms", "tags")] for target in ("cpu", "cuda", "sbom")}
    assert found == {
        "cpu": ["Dockerfile", None, common, ["linux/amd64", "linux/arm64"], [name]],
        "cuda": ["Dockerfile-cuda", None, common | {"CUDA_COMPUTE_CAP": "90"}, ["linux/amd64"], [f"{name}-cuda"]],
        "sbom": ["Dockerfile", "sbom", None, None, None],
    }
    for target in found:
        text = DOCKERFILES[targets[target]["dockerfile"]]
        # Docker takes unknown arguments with a mere warning.
        assert set(targets[target].get("args", {})) <= set(re.findall(r"^ARG (\w+)", text, re.MULTILINE)), target
        stage = targets[target].get("target")
        assert stage is None or re.search(rf"^FROM .* AS {stage}$", text, re.MULTILINE), target


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name):
    ended = subprocess.run([Path(sys.executable).parent / "hadolint", name], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout == "", ended.stdout + ended.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_image_has_what_the_server_knows(name):
    last = DOCKERFILES[name].partition(" AS runtime\n")[2].replace("\\\n", " ")
    (variables,) = re.findall(r"^ENV (.*)$", last, re.MULTILINE)
    flags = set(re.findall(r"\[env: (\w+)", run("--help").stdout))
    assert {variable.partition("=")[0] for variable in variables.split()} - FOREIGN_VARIABLES <= flags
    health = json.loads(re.search(r"^HEALTHCHECK .* CMD (.*)$", last, re.MULTILINE)[1])
    command = json.loads(re.search(r"^CMD (.*)$", last, re.MULTILINE)[1])
    for arguments in (health[1:], command):
        assert run(*arguments, "--help").returncode == 0, arguments
    # For health checks that call curl; relative, because the folder becomes the image's root.
    assert "ln -s ../local/bin/text-embeddings-router /image/usr/bin/curl" in DOCKERFILES[name]
    # The first line of the log and `/info` name the commit, which is not in the build context.
    assert re.search(r"^RUN .*GIT_SHA=\"\$\{REVISION\}\" cargo build", DOCKERFILES[name].replace("\\\n", " "), re.MULTILINE)


def test_versions_agree():
    ended = subprocess.run([sys.executable, ROOT / "scripts/version.py"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    for name, text in DOCKERFILES.items():
        assert re.search(r"^ARG RUST_IMAGE=.*rust:([\d.]+)-", text, re.MULTILINE)[1] == WORKSPACE["rust-version"], name
