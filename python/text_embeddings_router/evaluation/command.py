"""The console scripts. They say how to install the extra `eval` if it is missing."""

from __future__ import annotations

import argparse
import importlib
import sys

from .._errors import TextEmbeddingsError

ABOUT = {
    "eval": ("evaluate", "Measure with judged questions whether servers rank better than the order that came in."),
    "compare": ("compare", "Send the same requests to two servers or settings, and compare scores, orders and times."),
    "calibrate": ("calibrate", "Find probabilities and thresholds for a server's scores from judged questions."),
}


def run(name: str, given: list[str] | None = None) -> None:
    module, about = ABOUT[name]
    parser = argparse.ArgumentParser(prog=f"text-embeddings-router-{name}", description=about)
    try:
        command = importlib.import_module(f".{module}", __package__)
    except ModuleNotFoundError as error:
        sys.exit(f"Error: {error.name} is not installed: pip install 'text-embeddings-router[eval]'")
    try:
        command.main(parser, sys.argv[1:] if given is None else given)
    except TextEmbeddingsError as error:
        sys.exit(f"Error: {error}")


def evaluate() -> None:
    run("eval")


def compare() -> None:
    run("compare")


def calibrate() -> None:
    run("calibrate")
