"""The commands in documents for operators work: those of docs/migrating.md are run against real servers."""

import re
import subprocess

import pytest
from server import ROOT, run

PAGE = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")


def test_the_comparison_of_two_servers(served):
    (script,) = [block for block in re.findall(r"^ +```\n(.*?)^ +```", PAGE, re.DOTALL | re.MULTILINE) if "ask()" in block]
    script = re.sub(r"^   ", "", script, flags=re.MULTILINE)
    one, other = served("embedding-last"), served("embedding-mean-dense")
    for second, is_equal in ((one, True), (other, False)):
        filled = script.replace("http://tei:8080", one.url).replace("http://new:8080", second.url)
        ended = subprocess.run(["bash", "-c", filled], capture_output=True, text=True, timeout=120)
        cosines = [float(line.split()[1]) for line in ended.stdout.splitlines()]
        assert len(cosines) == 2, ended.stdout + ended.stderr
        assert (cosines == pytest.approx([1, 1], abs=1e-5)) == is_equal, cosines


def test_the_load_of_the_comparison(served):
    server = served("demo")
    command = next(line for line in PAGE.splitlines() if "bench --url http://new:8080" in line)
    arguments = command.split()[1:]
    changed = {"http://new:8080": server.url, "60": "1", "200": "5"}
    ended = run(*[changed.get(argument, argument) for argument in arguments])
    assert ended.returncode == 0 and re.search(r"errors +none", ended.stdout), ended.stdout + ended.stderr
