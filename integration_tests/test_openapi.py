"""schemathesis reads the server's description of its routes and sends thousands of requests. No answer may be
a fault of the server, or have a status or body that the description lacks; no method that the description
lacks may work."""

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
            # schemathesis writes a folder into the current one.
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(CONFIGURATION.parent)},
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        metrics = server.metrics()
    assert int(re.search(r"(\d+) generated", ended.stdout)[1]) > 1000, ended.stdout
    # A good part of the requests succeeded, and a good part failed.
    succeeded = sum(value for name, value in metrics.items() if name.startswith("te_request_success"))
    failed = sum(value for name, value in metrics.items() if name.startswith("te_request_failure"))
    assert succeeded > 100 and failed > 100, ended.stdout
    selected, tested = re.search(r"Selected: \d+/(\d+)\s+Tested: (\d+)", ended.stdout).groups()
    assert selected == tested, ended.stdout
