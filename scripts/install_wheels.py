#!/usr/bin/env python3
"""Makes the tests' virtual environment: `scripts/install_wheels.py .venv integration_tests/requirements.txt`.

Packages that cannot be installed are named in `.venv/missing` with the reason, and the tests that import them
are skipped by name; the next call tries again. Without the packages that every test needs, it ends with one
sentence. `.venv/installed` exists once all are there. Needs only Python 3.11.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

# Seconds for everything, and for a package index that says nothing.
FETCH_LIMIT = float(os.environ.get("FETCH_LIMIT", 1800))
QUIET_LIMIT = 60
# Nothing can be tested without these. They are installed first, so that an index which does not answer is
# asked once.
NEEDED = {"pytest", "pytest-xdist", "execnet", "codespell"}


class Failed(Exception):
    """The reason in one sentence."""


def name(requirement: str) -> str:
    return requirement.split("==")[0].lower().replace("_", "-")


def pip(folder: Path, requirements: list[str], deadline: float) -> None:
    """Installs packages without their dependencies: all or, with an error, none."""
    flags = ("--quiet", "--disable-pip-version-check", "--no-deps", f"--timeout={QUIET_LIMIT}", "--retries=2")
    command = [str(folder / "bin/python"), "-m", "pip", "install", *flags, *requirements]
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=max(1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Failed(f"pip did not end within {FETCH_LIMIT:g} s") from None
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR: ")]
        raise Failed((lines or ended.stderr.splitlines() or ["pip failed"])[-1].removeprefix("ERROR: "))


def install(folder: Path, requirements: list[str], deadline: float) -> dict[str, str]:
    """Installs as many packages as possible. Returns the others, each with its reason."""
    if not requirements:
        return {}
    try:
        pip(folder, requirements, deadline)
    except Failed as error:
        if len(requirements) == 1 or time.monotonic() > deadline:
            return dict.fromkeys(requirements, str(error))
        middle = len(requirements) // 2
        return install(folder, requirements[:middle], deadline) | install(folder, requirements[middle:], deadline)
    return {}


def make(folder: Path, file: Path) -> None:
    if sys.version_info < (3, 11):
        raise Failed(f"the tests need Python 3.11, and {sys.executable} is {sys.version.split()[0]}: set PYTHON")
    print(f"Installing the tests' Python packages into {folder}", file=sys.stderr, flush=True)
    ended = subprocess.run([sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True)
    if ended.returncode:
        raise Failed(f"`{sys.executable} -m venv` failed: install Python's venv and pip (Debian: apt-get install python3-venv)")
    lines = [line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    requirements = [line for line in lines if line]
    deadline = time.monotonic() + FETCH_LIMIT
    try:
        pip(folder, [line for line in requirements if name(line) in NEEDED], deadline)
    except Failed as error:
        raise Failed(f"the tests need Python packages that cannot be installed: {error}") from None
    missing = install(folder, [line for line in requirements if name(line) not in NEEDED], deadline)
    for requirement, reason in missing.items():
        print(f"Tests with {requirement} are skipped: {reason}", file=sys.stderr, flush=True)
    tests = file.resolve().parent
    ended = subprocess.run([folder.resolve() / "bin/python", "-c", "import conftest"], cwd=tests, capture_output=True, text=True)
    if ended.returncode:
        raise Failed(f"every test needs a package that is missing: {ended.stderr.splitlines()[-1]}")
    (folder / "missing").write_text("".join(f"{requirement}: {reason}\n" for requirement, reason in missing.items()))
    if not missing:
        (folder / "installed").touch()


def main() -> int:
    try:
        make(Path(sys.argv[1]), Path(sys.argv[2]))
    except Failed as error:
        print(f"install_wheels.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
