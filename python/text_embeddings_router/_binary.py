"""Finds the server's binary, and lists its flags."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Set
from pathlib import Path

from ._errors import BinaryNotFoundError, ServerStartError

NAME = "text-embeddings-router.exe" if os.name == "nt" else "text-embeddings-router"
# Names another binary, such as a build for a GPU.
VARIABLE = "TEXT_EMBEDDINGS_ROUTER"
HELP_LIMIT = 30
# With these, which notebooks set, the binary would colour the texts that this package reads.
COLOUR_VARIABLES = {"CLICOLOR_FORCE", "FORCE_COLOR"}


def find_binary() -> Path:
    """The binary of this installation, or the one that the variable `TEXT_EMBEDDINGS_ROUTER` names.

    A binary elsewhere on PATH is not used, because it may have another version.
    """
    if named := os.environ.get(VARIABLE):
        path = Path(named)
        if not path.is_file():
            raise BinaryNotFoundError(f"the variable {VARIABLE} names {named}, which is not a file")
        return path.resolve()
    folders = [
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
        # For `pip install --target` and `--prefix`.
        str(Path(__file__).resolve().parent.parent / "bin"),
        str(Path(sys.prefix) / "bin"),
    ]
    for folder in folders:
        path = Path(folder) / NAME
        if path.is_file():
            return path
    tried = ", ".join(dict.fromkeys(folders))
    raise BinaryNotFoundError(
        f"the binary {NAME} was not found in {tried}: install the package again, or name a binary in the variable {VARIABLE}"
    )


def environment_without(names: Set[str]) -> dict[str, str]:
    """This process's variables but for `names`."""
    return {name: value for name, value in os.environ.items() if name not in names}


@functools.cache
def known_flags(binary: Path) -> frozenset[str]:
    """The server's flags as Python names, such as `max_batch_tokens`."""
    try:
        plain = environment_without(COLOUR_VARIABLES)
        shown = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=HELP_LIMIT, check=True, env=plain).stdout
    except subprocess.CalledProcessError as error:
        # For example, a build for a GPU on a machine without the driver.
        said = error.stderr.strip().splitlines() or [f"it ended with exit code {error.returncode}"]
        raise ServerStartError(f"{binary} --help failed: {said[-1]}", error.returncode) from None
    except subprocess.TimeoutExpired:
        raise ServerStartError(f"{binary} --help did not end within {HELP_LIMIT} s", None) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ServerStartError(f"{binary} cannot be run ({error})", None) from None
    return frozenset(name.replace("-", "_") for name in re.findall(r"^\s+(?:-\w, )?--([a-z0-9-]+)", shown, re.MULTILINE))
