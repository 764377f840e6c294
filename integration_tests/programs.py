"""Programs that tests start: those that scripts/install_tools.py put into target/tools, else the system's.

A test whose program is missing is skipped, with the reason that the script wrote down.
"""

import os
import shutil

import pytest
from server import ROOT

TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
TOOLS = TARGET / "tools"
# Commands of documents and of the page find them by name. Debian has servers in /usr/sbin.
os.environ["PATH"] = f"{TOOLS}:{os.environ.get('PATH', os.defpath)}:/usr/sbin"


def find(*names: str) -> str | None:
    """The path of the first of these programs that is there."""
    return next(filter(None, map(shutil.which, names)), None)


def missing(name: str) -> str:
    """Why a program is not there."""
    reason = TOOLS / f"{name}.missing"
    told = reason.read_text().strip() if reason.exists() else f"`scripts/install_tools.py {name}` fetches it"
    return f"{name} is missing: {told}"


def require(name: str) -> str:
    """The path of a program, or a skip of the test that calls this."""
    return find(name) or pytest.skip(missing(name))
