"""`python -m text_embeddings_router`: the command line of the binary."""

import os
import sys

from . import TextEmbeddingsError, find_binary

try:
    binary = find_binary()
except TextEmbeddingsError as error:
    sys.exit(f"Error: {error}")
os.execv(binary, [str(binary), *sys.argv[1:]])
