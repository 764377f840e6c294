"""Real vocabularies in GGUF files give the tokens that `transformers` gives for them.

Input: LLAMA_VOCABULARIES, the folder `models` of llama.cpp's source (`make llama-test`). It has the
vocabularies of well-known models as GGUF files without tensors, texts (`.inp`), and the ids that the models'
own tokenizers give for these texts (`.out`).
"""

import os
import re
from pathlib import Path

import gguf
import models
import pytest
from gguf_files import Recipe, write
from gguf_models import SERVED, set_rows
from llama import PYTHON, ask
from server import MODELS, Server, refusal

FOLDER = Path(os.environ.get("LLAMA_VOCABULARIES") or "missing")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="LLAMA_VOCABULARIES names no folder with llama.cpp's vocabularies (`make llama-test`)"
)

SEPARATOR = "\n__ggml_vocab_test__\n"
# Each vocabulary with a model that gets it.
VOCABULARIES = {
    "llama-spm": MODELS / "tied-f32-bare",
    "llama-bpe": MODELS / "tied-f32-bare",
    "qwen2": MODELS / "tied-f32-bare",
    "gpt-2": MODELS / "tied-f32-bare",
    "phi-3": MODELS / "tied-f32-bare",
    "bert-bge": SERVED / "bert-embedding-mean",
    **dict.fromkeys(
        ("command-r", "deepseek-coder", "deepseek-llm", "falcon", "mpt", "qwen35", "refact", "starcoder"),
        MODELS / "tied-f32-bare",
    ),
}
# Names of `tokenizer.ggml.pre` in llama.cpp's source that are refused here. Their models have architectures
# that are not served, their rules need more than regular expressions, or no ids were at hand to compare with.
REFUSED = """
    a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe dbrx deepseek-v3
    default exaone exaone-moe exaone4 falcon-h1 falcon3 gemma4 gigachat glm4 glm5 gpt-4o gpt3-finnish
    granite-docling granite-embed-multi-311m granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais
    jais-2 joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama4 megrez mellum mellum2 midm-2.0
    minerva-7b minicpm5 minimax-m2 olmo phi-2 pixtral poro-chat sarvam-moe seed-coder smaug-bpe solar-open
    spark2_5 stablelm2 superbpe talkie tekken tiny_aya trillion ufakzeka viking whitespace youtu
""".split()
# For the normalisation of characters, which XLM-RoBERTa's vocabulary contains as a table.
TEXTS = [
    "Ｆｕｌｌ width ① ﬁ ligature",
    "naïve  cafe\u0301 Ångström",
    "日本語のテキスト、半角ｶﾅ",
    "línea\u00a0nbsp\u200bzwsp",
    "a\tb\n\nc",
    "   lead and trail   ",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "🙂🙃 emoji 👨\u200d👩\u200d👧",
    "½ ™ … № ㎏ x²+y²=z²",
]


def with_vocabulary(base: Path, vocabulary: Path, folder: Path, **changed: str) -> Path:
    """A random model with the tokenizer of `vocabulary`. `changed` has the endings of other metadata."""
    fields = gguf.GGUFReader(vocabulary).fields
    metadata = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    metadata |= {f"tokenizer.ggml.{name}": value for name, value in changed.items()}
    model = models.copy(base, folder)
    set_rows(model, len(metadata["tokenizer.ggml.tokens"]))
    head = [f"{name}.{part}" for name in ("cls", "cls.output") for part in ("weight", "bias")]
    recipe = Recipe(pooling=gguf.PoolingType.MEAN, metadata=metadata, without=tuple(head))
    return write(model, folder / "file.gguf", recipe)


def ids_of(server: Server, text: str) -> list[int]:
    answer = server.post("/tokenize", {"inputs": text, "add_special_tokens": False})
    return [token["id"] for token in answer.json()[0]]


def texts_of(vocabulary: Path) -> list[str]:
    return vocabulary.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_vocabulary_gives_the_ids_of_its_model(name, tmp_path):
    vocabulary = FOLDER / f"ggml-vocab-{name}.gguf"
    texts = texts_of(vocabulary)
    expected = [[int(id) for id in line.split()] for line in vocabulary.with_suffix(".gguf.out").read_text().splitlines()]
    file = with_vocabulary(VOCABULARIES[name], vocabulary, tmp_path)
    wrong = []
    with Server(file, "--dtype", "float32", "--pooling", "mean") as server:
        for text, ids in zip(texts, expected):
            if not text:
                continue
            found = ids_of(server, text)
            if found != ids:
                wrong.append((text, found, ids))
    assert len(texts) > 30 and not wrong, wrong


@pytest.mark.skipif(not PYTHON, reason="LLAMA_PYTHON names no interpreter with llama-cpp-python (`make llama-test`)")
def test_xlm_robertas_vocabulary_gives_the_ids_of_llama_cpp(tmp_path):
    """Its file comes without expected ids."""
    vocabulary = FOLDER / "ggml-vocab-nomic-bert-moe.gguf"
    texts = [text for text in texts_of(FOLDER / "ggml-vocab-bert-bge.gguf") + TEXTS if text]
    file = with_vocabulary(SERVED / "xlm-roberta-reranker", vocabulary, tmp_path)
    with Server(file, "--dtype", "float32") as server:
        found = [ids_of(server, text) for text in texts]
    [expected] = ask(tokenize=[{"file": str(vocabulary), "texts": texts}])
    wrong = [row for row in zip(texts, found, expected) if row[1] != row[2]]
    assert len(texts) > 50 and not wrong, wrong


@pytest.mark.skipif(not PYTHON, reason="LLAMA_PYTHON names no interpreter with llama-cpp-python (`make llama-test`)")
def test_each_rule_for_words_gives_the_ids_of_llama_cpp(tmp_path):
    """GPT-2's vocabulary with every name that llama.cpp knows. The texts have no marks on letters, because
    llama.cpp does not compose them and approximates the classes of letters with them."""
    source = (FOLDER / "llama-vocab.cpp").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r'tokenizer_pre == "([^"]+)"', source)))
    texts = [text for text in texts_of(FOLDER / "ggml-vocab-gpt-2.gguf") if text and text.isascii()]
    texts += ["Mars is 12345 km², isn't it? I'LL see.", "ВЕНЕРА и Марс", "火星是红色的行星。It's RED", "한국어 문장 3개"]
    files, ours = {}, {}
    for name in names:
        (tmp_path / name).mkdir()
        files[name] = with_vocabulary(MODELS / "tied-f32-bare", FOLDER / "ggml-vocab-gpt-2.gguf", tmp_path / name, pre=name)
        if name in REFUSED:
            assert f'(`tokenizer.ggml.pre`) is "{name}", which is not supported' in refusal(files[name])
            continue
        with Server(files[name], "--dtype", "float32", "--pooling", "mean") as server:
            ours[name] = [ids_of(server, text) for text in texts]
    theirs = ask(tokenize=[{"file": str(files[name]), "texts": texts} for name in ours])
    wrong = [
        (name, text, own, other)
        for (name, rows), others in zip(ours.items(), theirs)
        for text, own, other in zip(texts, rows, others)
        if own != other
    ]
    assert len(ours) > 30 and len(texts) > 10 and not wrong, wrong
