#!/usr/bin/env python3
"""Steps of a release, for .github/workflows/release.yml and by hand. Needs only Python 3.11.

    scripts/release.py check v0.2.0            the tag, Cargo.toml, CHANGELOG.md and all files agree
    scripts/release.py archive dist            dist/*.whl -> a .tar.gz with its binary, for each wheel
    scripts/release.py collect dist HOMEPAGE   NOTES.md, SHA256SUMS and a Homebrew formula, from the archives
"""

import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "text-embeddings-router"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
# Parts of a wheel's name, and the system that Homebrew calls so.
SYSTEMS = {("macosx", "arm64"): "on_macos/on_arm", ("linux", "x86_64"): "on_linux/on_intel", ("linux", "aarch64"): "on_linux/on_arm"}
FORMULA = """class TextEmbeddingsRouter < Formula
  desc "Server for re-ranking, embedding and classification models"
  homepage "{homepage}"
  version "{version}"
  license "Apache-2.0"
{systems}
  def install
    bin.install "{name}"
  end

  test do
    texts = testpath/"texts.txt"
    texts.write "Venus is hot.\\nMars is the red planet.\\n"
    found = shell_output("#{{bin}}/{name} rerank --model-id demo --dtype float32 --query 'Which planet is red?' --output jsonl --documents #{{texts}}")
    assert_match(/\\A[^\\n]*Mars is the red planet/, found)
  end
end
"""


class Failed(Exception):
    """The reason in one sentence."""


def notes() -> str:
    """The section of this version in CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(VERSION)} \((.*)\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found or not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        raise Failed(f"CHANGELOG.md has no section `## {VERSION} (YEAR-MONTH-DAY)`")
    return found[2].strip() + "\n"


def check(tag: str) -> None:
    if tag != f"v{VERSION}":
        raise Failed(f"the tag is {tag}, and Cargo.toml has version {VERSION}")
    if not (ROOT / f"integration_tests/releases/{VERSION}.json").exists():
        raise Failed(f"integration_tests/releases/{VERSION}.json is missing: UPDATE_RELEASE=1 writes it")
    if subprocess.run([sys.executable, ROOT / "scripts/version.py"]).returncode:
        raise Failed("files differ in their version")
    notes()


def archive(folder: Path) -> None:
    """The wheel holds the binary that was built for the widest range of systems."""
    for wheel in folder.glob("*.whl"):
        platform = wheel.stem.rsplit("-", 1)[1]
        with zipfile.ZipFile(wheel) as files:
            (member,) = [name for name in files.namelist() if name.endswith(f".data/scripts/{NAME}")]
            contents = {NAME: files.read(member)}
        contents |= {name: (ROOT / name).read_bytes() for name in ("LICENSE", "README.md", "CHANGELOG.md")}
        with tarfile.open(folder / f"{NAME}-{VERSION}-{platform}.tar.gz", "w:gz") as packed:
            for name, content in contents.items():
                member_info = tarfile.TarInfo(name)
                member_info.size, member_info.mode = len(content), 0o755 if name == NAME else 0o644
                packed.addfile(member_info, io.BytesIO(content))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def formula(archives: list[Path], homepage: str) -> str:
    parts = []
    for words, place in SYSTEMS.items():
        found = [path for path in archives if all(word in path.name for word in words)]
        if len(found) != 1:
            raise Failed(f"there must be one archive for {' '.join(words)}, not {len(found)}")
        system, processor = place.split("/")
        url = f"{homepage}/releases/download/v{VERSION}/{found[0].name}"
        parts.append(f'\n  {system} do\n    {processor} do\n      url "{url}"\n      sha256 "{sha256(found[0])}"\n    end\n  end\n')
    return FORMULA.format(homepage=homepage, version=VERSION, name=NAME, systems="".join(parts))


def collect(folder: Path, homepage: str) -> None:
    files = sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])
    text = formula([path for path in files if path.suffix == ".gz"], homepage)
    (folder / f"{NAME}.rb").write_text(text, encoding="utf-8")
    (folder / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    (folder / "NOTES.md").write_text(notes(), encoding="utf-8")


def run(arguments: list[str]) -> None:
    match arguments:
        case ["check", tag]:
            check(tag)
        case ["archive", folder]:
            archive(Path(folder))
        case ["collect", folder, homepage]:
            collect(Path(folder), homepage)
        case _:
            raise Failed("give a step: check TAG, archive FOLDER, or collect FOLDER HOMEPAGE")


def main() -> int:
    try:
        run(sys.argv[1:])
    except Failed as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
