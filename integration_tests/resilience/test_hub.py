"""A hostile or broken mirror of the Hub: the binary writes nothing outside the cache, keeps no more bytes
than a model can have, and ends with one sentence."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from fake_hub import FakeHub
from server import BINARY, MODELS, variables

ID = "Qwen/Qwen3-Reranker-tied"
MODEL = MODELS / "tied-bf16"
UP = "../" * 6 + "escaped"
LIMIT = 120

# The mirror's lie, and a part of the sentence with which the download ends (None: it succeeds).
LIES = {
    "sha that leads up": ({"commit": UP}, "40 hexadecimal digits"),
    "sha that is absolute": ({"commit": "/tmp/escaped"}, "40 hexadecimal digits"),
    "ETag that leads up": ({"headers": {"etag": f'"{UP}"'}}, "ETag"),
    "linked ETag that leads up": ({"headers": {"x-linked-etag": f'"{UP}"'}}, "ETag"),
    "linked ETag of another content": ({"headers": {"x-linked-etag": f'"{"0" * 64}"'}}, "SHA-256"),
    "commit of a file that leads up": ({"headers": {"x-repo-commit": UP}}, None),
    "module that leads up": (
        {"more": {"modules.json": json.dumps([{"type": "x.Dense", "path": UP}]).encode(), f"{UP}/config.json": b"{}"}},
        "not a folder below the model's",
    ),
    "config.json without end": ({"endless": "config.json"}, "more than 16777216 bytes"),
    "announced length of a terabyte": ({"headers": {"x-linked-size": str(1 << 40)}}, "longer than 16777216 bytes"),
}


def download(hub: FakeHub, cache: Path, **options: object) -> subprocess.CompletedProcess:
    own = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(cache), "HOME": str(cache)}
    command = [str(BINARY), "download", ID]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=variables(own), **options)


def inside(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_hostile_mirror(tmp_path, record):
    for index, (lie, (settings, part)) in enumerate(LIES.items()):
        around = tmp_path / str(index)
        cache = around / "a/b/hub"
        cache.mkdir(parents=True)
        with FakeHub(ID, MODEL, **settings) as hub:
            ended = download(hub, cache)
        assert ended.returncode == (1 if part else 0), f"{lie}: {ended.stderr}"
        if part:
            assert part in ended.stderr and ended.stderr.splitlines()[-1].startswith("Error: "), f"{lie}: {ended.stderr}"
        outside = {path for path in inside(around) if not path.startswith("a/b/hub/")}
        assert outside == {"a", "a/b", "a/b/hub"}, lie
        kept = sum(path.lstat().st_size for path in cache.rglob("*") if path.is_file() and not path.is_symlink())
        assert kept < 1 << 20 or part is None, lie
        assert not any("escaped" in path for path in inside(around)), lie
    record("hostile answers of a mirror of the Hub", len(LIES), 0, "nothing outside of the cache, exit 1 with a sentence")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run the download as another user")
def test_a_cache_of_somebody_else(record):
    """A complete model is served from another user's cache; an incomplete one ends with one sentence."""
    if not all(folder.stat().st_mode & 0o001 for folder in BINARY.parents):
        pytest.skip(f"another user cannot reach {BINARY}")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    with tempfile.TemporaryDirectory() as folder, FakeHub(ID, MODEL) as hub:
        os.chmod(folder, 0o755)
        cache = Path(folder) / "hub"
        cache.mkdir()
        empty = download(hub, cache, **nobody)
        assert empty.returncode == 1, empty.stderr
        sentence = empty.stderr.splitlines()[-1]
        assert sentence.count("Permission denied") == 1 and str(cache) in sentence, sentence
        assert download(hub, cache).returncode == 0
        full = download(hub, cache, **nobody)
    assert full.returncode == 0, full.stderr
    record("caches that belong to another user", 2, 0, "a complete one is used, an incomplete one ends with a sentence")
