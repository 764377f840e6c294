"""schemathesis reads the server's own description of its routes and asks thousands of things of them: no answer is a
fault of the server, has a status or a body that the description does not, or accepts a method that is not there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from server import Server

PROGRAM = Path(sys.executable).with_name("st")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
LIMIT = 300


@pytest.mark.parametrize("model", ["tied-bf16", "embedding-last"])
def test_no_answer_breaks_the_description(model, tmp_path):
    with Server(model) as server:
        url = f"{server.url}/api-doc/openapi.json"
        ended = subprocess.run(
            [str(PROGRAM), "--config-file", str(CONFIGURATION), "run", url, "--no-color"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT,
            # It writes a folder of its own to where it runs.
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(CONFIGURATION.parent)},
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        metrics = server.metrics()
    assert int(re.search(r"(\d+) generated", ended.stdout)[1]) > 1000, ended.stdout
    # Some of it was worth an answer, and not all.
    succeeded = sum(value for name, value in metrics.items() if name.startswith("te_request_success"))
    failed = sum(value for name, value in metrics.items() if name.startswith("te_request_failure"))
    assert succeeded > 100 and failed > 100, ended.stdout
    selected, tested = re.search(r"Selected: \d+/(\d+)\s+Tested: (\d+)", ended.stdout).groups()
    assert selected == tested, ended.stdout
