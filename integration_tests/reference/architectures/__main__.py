"""Makes the fixtures: `python -m architectures [NAME…]` in the folder above. Without names, all of them."""

import argparse
import importlib

import torch
from transformers.utils import logging

from .fixture import FOLDER, folder_bytes, write

# Modules with a table FIXTURES.
MODULES = ("bert", "encoders", "t5_albert", "decoders", "qwen3_5", "lfm2", "embedding_gemma2", "gte_new", "nomic", "jina_bert", "jina_flash", "minicpm", "pplx")


def main() -> None:
    """Makes the named fixtures and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="fixtures, or modules of this package (default: all)")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    tables = {module: importlib.import_module(f".{module}", __package__).FIXTURES for module in MODULES}
    fixtures = {name: make for table in tables.values() for name, make in table.items()}
    wanted = [
        name
        for module, table in tables.items()
        for name in table
        if not names or name in names or module in names
    ]
    unknown = set(names) - set(fixtures) - set(tables)
    assert not unknown, f"no fixture or module is called {', '.join(sorted(unknown))}"
    failed = []
    for name in wanted:
        try:
            print(write(name, fixtures[name]()), flush=True)
        except AssertionError as error:
            failed.append(name)
            print(f"{name:32} FAILED: {error}", flush=True)
    print(f"{len(list(FOLDER.iterdir()))} folders, {folder_bytes(FOLDER) / 1e6:.2f} MB in all")
    if failed:
        raise SystemExit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
