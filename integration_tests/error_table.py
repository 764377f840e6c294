"""What can be wrong with a request, and what both transports say to it.

Output: `ERRORS` by name: the model, route and body, method and message, the error and words of its message. Where one
transport cannot say it, its half is None. The server has the limits of `LIMITS`.
"""

from grpc_client import messages
from reference_data import TEXTS

LIMITS = ("--max-input-length", "200", "--max-client-batch-size", "4", "--payload-limit", "20000")
# 407 tokens.
LONG = TEXTS["long-right"]["text"]
# Status, kind and code.
EMPTY = (400, "Empty", "INVALID_ARGUMENT")
VALIDATION = (422, "Validation", "INVALID_ARGUMENT")
BACKEND = (424, "Backend", "FAILED_PRECONDITION")
OVERLOADED = (429, "Overloaded", "RESOURCE_EXHAUSTED")
TOKENIZER = (422, "Tokenizer", "FAILED_PRECONDITION")

embed, embed_all, sparse = messages.EmbedRequest, messages.EmbedAllRequest, messages.EmbedSparseRequest
predict, pair, rerank = messages.PredictRequest, messages.PredictPairRequest, messages.RerankRequest
encode = messages.EncodeRequest

ERRORS = {
    "rerank of nothing": (
        "tied-bf16",
        ("/rerank", {"query": "q", "texts": []}),
        ("rerank.Rerank", rerank(query="q")),
        EMPTY,
        ["texts", "empty"],
    ),
    "rerank without a query": (
        "tied-bf16",
        ("/rerank", {"query": " ", "texts": ["a"]}),
        ("rerank.Rerank", rerank(query=" ", texts=["a"])),
        EMPTY,
        ["query", "empty"],
    ),
    "embed of nothing": ("embedding-last", ("/embed", {"inputs": []}), None, EMPTY, ["inputs", "empty"]),
    "embed of no ids": ("embedding-last", ("/embed", {"inputs": [[1], []]}), None, EMPTY, ["inputs", "empty"]),
    "all of nothing": ("embedding-last", ("/embed_all", {"inputs": []}), None, EMPTY, ["inputs", "empty"]),
    "similarity to nothing": (
        "embedding-last",
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
        None,
        EMPTY,
        ["sentences", "empty"],
    ),
    "predict of nothing": (
        "seq-cls-3",
        ("/predict", {"inputs": []}),
        ("predict.PredictPair", pair()),
        EMPTY,
        ["inputs", "empty"],
    ),
    "too long for embed": (
        "embedding-last",
        ("/embed", {"inputs": LONG, "truncate": False}),
        ("embed.Embed", embed(inputs=LONG)),
        VALIDATION,
        ["200", "407", "tokens"],
    ),
    "too long for embed_all": (
        "embedding-last",
        ("/embed_all", {"inputs": LONG, "truncate": False}),
        ("embed.EmbedAll", embed_all(inputs=LONG)),
        VALIDATION,
        ["200", "407", "tokens"],
    ),
    "too long for similarity": (
        "embedding-last",
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": [LONG]}, "parameters": {"truncate": False}}),
        None,
        VALIDATION,
        ["200", "407"],
    ),
    "too long for predict": (
        "seq-cls-3",
        ("/predict", {"inputs": LONG, "truncate": False}),
        ("predict.Predict", predict(inputs=LONG)),
        VALIDATION,
        ["200", "406", "tokens"],
    ),
    "too long a pair": (
        "seq-cls-3",
        ("/predict", {"inputs": ["a", LONG], "truncate": False}),
        ("predict.PredictPair", pair(inputs=["a", LONG])),
        VALIDATION,
        ["200", "407", "tokens"],
    ),
    "too long for rerank": (
        "tied-bf16",
        ("/rerank", {"query": "q", "texts": [LONG], "truncate": False}),
        ("rerank.Rerank", rerank(query="q", texts=[LONG])),
        VALIDATION,
        ["200", "tokens"],
    ),
    "too many texts": (
        "tied-bf16",
        ("/rerank", {"query": "q", "texts": ["a"] * 5}),
        ("rerank.Rerank", rerank(query="q", texts=["a"] * 5)),
        VALIDATION,
        ["batch size 5 > maximum allowed batch size 4"],
    ),
    "too many inputs": (
        "embedding-last",
        ("/embed", {"inputs": ["a"] * 5}),
        None,
        VALIDATION,
        ["batch size 5 > maximum allowed batch size 4"],
    ),
    "too many sentences": (
        "embedding-last",
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 5}}),
        None,
        VALIDATION,
        ["maximum allowed batch size 4"],
    ),
    "too many pairs": (
        "seq-cls-3",
        ("/predict", {"inputs": [["a", "b"]] * 5}),
        None,
        VALIDATION,
        ["batch size 5 > maximum allowed batch size 4"],
    ),
    "unknown prompt": (
        "embedding-last",
        ("/embed", {"inputs": "a", "prompt_name": "nobody"}),
        ("embed.Embed", embed(inputs="a", prompt_name="nobody")),
        VALIDATION,
        ["prompt_name", "nobody", "query"],
    ),
    "unknown prompt for all": (
        "embedding-last",
        ("/embed_all", {"inputs": "a", "prompt_name": ""}),
        ("embed.EmbedAll", embed_all(inputs="a", prompt_name="")),
        VALIDATION,
        ["prompt_name"],
    ),
    "unknown prompt for tokens": (
        "embedding-last",
        ("/tokenize", {"inputs": "a", "prompt_name": "nobody"}),
        ("tokenize.Tokenize", encode(inputs="a", prompt_name="nobody")),
        VALIDATION,
        ["prompt_name", "nobody"],
    ),
    "prompt of a model without": (
        "tied-bf16",
        ("/tokenize", {"inputs": "a", "prompt_name": "query"}),
        ("tokenize.Tokenize", encode(inputs="a", prompt_name="query")),
        VALIDATION,
        ["prompt_name"],
    ),
    "no dimensions": (
        "embedding-last",
        ("/embed", {"inputs": "a", "dimensions": 0}),
        ("embed.Embed", embed(inputs="a", dimensions=0)),
        VALIDATION,
        ["dimensions", "40", "0"],
    ),
    "a dimension too many": (
        "embedding-last",
        ("/embed", {"inputs": "a", "dimensions": 41}),
        ("embed.Embed", embed(inputs="a", dimensions=41)),
        VALIDATION,
        ["dimensions", "40", "41"],
    ),
    "absurd dimensions": (
        "embedding-last",
        ("/embed", {"inputs": "a", "dimensions": 2**32 - 1}),
        ("embed.Embed", embed(inputs="a", dimensions=2**32 - 1)),
        VALIDATION,
        ["dimensions", "4294967295"],
    ),
    "negative dimensions": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": -1}), None, VALIDATION, ["dimensions"]),
    "more dimensions than numbers": (
        "embedding-last",
        ("/embed", {"inputs": "a", "dimensions": 2**70}),
        None,
        VALIDATION,
        ["dimensions"],
    ),
    "half a dimension": ("embedding-last", ("/embed", {"inputs": "a", "dimensions": 1.5}), None, VALIDATION, ["dimensions"]),
    "an id beyond the vocabulary": ("embedding-last", ("/embed", {"inputs": [[1], [2, 1326]]}), None, VALIDATION, ["1326"]),
    "the largest id": ("embedding-last", ("/embed", {"inputs": [2**32 - 1]}), None, VALIDATION, ["4294967295"]),
    "an id of 33 bits": ("embedding-last", ("/embed", {"inputs": [2**32]}), None, VALIDATION, ["inputs"]),
    "a negative id": ("embedding-last", ("/embed", {"inputs": [1, -1]}), None, VALIDATION, ["inputs"]),
    "ids beside texts": ("embedding-last", ("/embed", {"inputs": ["a", 1]}), None, VALIDATION, ["inputs", "token ids"]),
    "a list too deep": ("embedding-last", ("/embed", {"inputs": [[["a"]]]}), None, VALIDATION, ["inputs"]),
    "inputs are an object": ("embedding-last", ("/embed", {"inputs": {"a": 1}}), None, VALIDATION, ["inputs"]),
    "inputs are missing": ("embedding-last", ("/embed", {"input": "a"}), None, VALIDATION, ["inputs"]),
    "sentences are missing": ("embedding-last", ("/similarity", {"inputs": "a"}), None, VALIDATION, ["inputs"]),
    "three in a pair over HTTP": (
        "seq-cls-3",
        ("/predict", {"inputs": ["a", "b", "c"]}),
        None,
        VALIDATION,
        ["inputs", "pair", "3"],
    ),
    "three in a pair": (
        "seq-cls-3",
        None,
        ("predict.PredictPair", pair(inputs=["a", "b", "c"])),
        VALIDATION,
        ["inputs", "pair", "3"],
    ),
    "three in a pair of a batch": (
        "seq-cls-3",
        ("/predict", {"inputs": [["a", "b"], ["a", "b", "c"]]}),
        None,
        VALIDATION,
        ["inputs"],
    ),
    "one in a pair": ("seq-cls-3", None, ("predict.PredictPair", pair(inputs=["a"])), VALIDATION, ["pair"]),
    "an empty pair in a batch": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"], []]}), None, VALIDATION, ["inputs"]),
    "a batch of texts and pairs": ("seq-cls-3", ("/predict", {"inputs": [["a", "b"], "c"]}), None, VALIDATION, ["inputs"]),
    "a text alone for a re-ranker": (
        "tied-bf16",
        ("/predict", {"inputs": "a"}),
        ("predict.Predict", predict(inputs="a")),
        VALIDATION,
        ["[query, document]"],
    ),
    "no best": (
        "tied-bf16",
        ("/rerank", {"query": "q", "texts": ["a"], "top_n": 0}),
        ("rerank.Rerank", rerank(query="q", texts=["a"], top_n=0)),
        VALIDATION,
        ["top_n"],
    ),
    "no such direction": (
        "tied-bf16",
        ("/rerank", {"query": "q", "texts": ["a"], "truncation_direction": "up"}),
        None,
        VALIDATION,
        ["truncation_direction"],
    ),
    "no such side of embed": (
        "embedding-last",
        None,
        ("embed.Embed", embed(inputs="a", truncation_direction=2)),
        VALIDATION,
        ["truncation_direction", "2"],
    ),
    "no such side of embed_all": (
        "embedding-last",
        None,
        ("embed.EmbedAll", embed_all(inputs="a", truncation_direction=-1)),
        VALIDATION,
        ["truncation_direction", "-1"],
    ),
    "no such side of embed_sparse": (
        "embedding-last",
        None,
        ("embed.EmbedSparse", sparse(inputs="a", truncation_direction=7)),
        VALIDATION,
        ["truncation_direction", "7"],
    ),
    "no such side of predict": (
        "seq-cls-3",
        None,
        ("predict.Predict", predict(inputs="a", truncation_direction=2**31 - 1)),
        VALIDATION,
        ["truncation_direction", "2147483647"],
    ),
    "no such side of a pair": (
        "seq-cls-3",
        None,
        ("predict.PredictPair", pair(inputs=["a", "b"], truncation_direction=99)),
        VALIDATION,
        ["truncation_direction", "99"],
    ),
    "no such side of rerank": (
        "tied-bf16",
        None,
        ("rerank.Rerank", rerank(query="q", texts=["a"], truncation_direction=3)),
        VALIDATION,
        ["truncation_direction", "3"],
    ),
    "embed of a re-ranker": (
        "tied-bf16",
        ("/embed", {"inputs": "a"}),
        ("embed.Embed", embed(inputs="a")),
        BACKEND,
        ["model is not an embedding model"],
    ),
    "all of a classifier": (
        "seq-cls-3",
        ("/embed_all", {"inputs": "a"}),
        ("embed.EmbedAll", embed_all(inputs="a")),
        BACKEND,
        ["model is not an embedding model"],
    ),
    "sparse of a re-ranker": (
        "tied-bf16",
        ("/embed_sparse", {"inputs": "a"}),
        ("embed.EmbedSparse", sparse(inputs="a")),
        BACKEND,
        ["model is not an embedding model"],
    ),
    "sparse of a dense model": (
        "embedding-last",
        ("/embed_sparse", {"inputs": "a"}),
        ("embed.EmbedSparse", sparse(inputs="a")),
        BACKEND,
        ["model is not a", "splade"],
    ),
    "similarity of a re-ranker": (
        "tied-bf16",
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"]}}),
        None,
        BACKEND,
        ["model is not an embedding model"],
    ),
    "rerank of an embedding model": (
        "embedding-last",
        ("/rerank", {"query": "q", "texts": ["a"]}),
        ("rerank.Rerank", rerank(query="q", texts=["a"])),
        BACKEND,
        ["model is not a re-ranker model"],
    ),
    "rerank of a classifier": (
        "seq-cls-3",
        ("/rerank", {"query": "q", "texts": ["a"]}),
        ("rerank.Rerank", rerank(query="q", texts=["a"])),
        BACKEND,
        ["model is not a re-ranker model"],
    ),
    "predict of an embedding model": (
        "embedding-last",
        ("/predict", {"inputs": "a"}),
        ("predict.Predict", predict(inputs="a")),
        BACKEND,
        ["model is not a classifier model"],
    ),
    "a pair for an embedding model": (
        "embedding-last",
        ("/predict", {"inputs": ["a", "b"]}),
        ("predict.PredictPair", pair(inputs=["a", "b"])),
        BACKEND,
        ["model is not a classifier model"],
    ),
}
