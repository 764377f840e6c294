"""Writes fixtures/laya/: a small random decider of the family Laya, with the answers of its authors' package.

Run `python -m architectures.laya` in the folder above, with `laya` 0.4.15 importable (`pip install --no-deps
laya==0.4.15`, Apache-2.0). The folder has the layout of the released models. `small.expected.json` has
requests in TypeSafe's dialect (`body`), and for each question the ids of its sequence and the probabilities
of its answers, in float32 from the stored weights.

The tokenizer reads special tokens in texts as text, as the server does and the authors' package does not.
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from laya.agent import Agent
from laya.common import QTYPES, DecisionModel, build_sequence, clamp_temperature, temp_bucket
from safetensors.torch import save_file

from .deciders import stored, words
from .fixture import FOLDER as ARCHITECTURES
from .fixture import numbers, write_json
from .served_tokenizers import QWEN_SPLIT, Made, byte_level

FOLDER = ARCHITECTURES.parent / "laya"
NAME = "small"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
HOSTILE = "x [MASK]y[SEP]\n[CLS] <|im_end|>[PAD]z"
SETTINGS = {
    "encoder": "answerdotai/ModernBERT-large",
    "head_layers": 2,
    "max_len": 320,
    "head_max_len": 110,
    # A value that is not a number counts as 1, and one beyond the bounds as the bound.
    "temperature": [1.5, True, "0.1"],
    "temperature_by_options": {"choice:11+": 0.1006, "choice:2": 2.5, "score:6-10": 9.0},
    "act_costs": [0.1, 0.2],
    "amp_dtype": "bf16",
}
ENCODER = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "local_attention": 12,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
}
WORDS = "red planet bread water 감독 中国 slow quick 😀 capital north".split()


def tokenizer(folder: Path) -> int:
    """Writes the tokenizer, and returns the size of its vocabulary."""
    made = byte_level((), SPECIALS, words(QWEN_SPLIT))
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    Made(made, "PreTrainedTokenizerFast", roles, {}).write(folder, 8192, with_map=False)
    return made.get_vocab_size()


def requests() -> list[dict]:
    """The bodies: all types, 1 to 40 options, long texts, JSON, control strings."""
    lot = random.Random(7)
    text = lambda most: " ".join(lot.choices(WORDS, k=lot.randrange(1, most)))
    described = lambda count, most: {f"option {index} {text(3)}": lot.choice([None, "", text(most), {"a": [1, text(3)]}, 0, False]) for index in range(count)}
    bodies = [
        {
            "state": {"subject": "Duplicate charge, again: \"ä\"", "n": 3, "x": None, "l": [1, 2.5, True]},
            "questions": {
                "billing": {"type": "noul", "instructions": "Is this about billing?", "criteria": {"true": "money", "false": None}},
                "tone": {"type": "choice", "instructions": "What is the tone?", "criteria": {"calm": None, "angry": "An upset message"}},
                "urgency": {"type": "score", "instructions": {"k": ["How, urgent:?", 1]}, "criteria": ["Can wait", {"b": 1, "c": "d:e"}, "Today"]},
            },
        },
        {"state": "", "questions": {"empty": {"type": "noul", "instructions": "Is there a text?"}, "one": {"type": "choice", "instructions": "Which?", "criteria": {"only": None}}}},
        {"state": ["user: 감독?", {"role": "assistant"}], "questions": {"level": {"type": "score", "instructions": "", "criteria": ["one"]}}},
        {
            "state": HOSTILE,
            "questions": {
                "choice": {"type": "choice", "instructions": HOSTILE, "criteria": {HOSTILE: HOSTILE, "safe": None}},
                "score": {"type": "score", "instructions": HOSTILE, "criteria": [HOSTILE, {"level": HOSTILE}]},
                "noul": {"type": "noul", "instructions": HOSTILE, "criteria": {"true": HOSTILE, "false": [HOSTILE]}},
            },
        },
    ]
    for count in (1, 2, 3, 5, 6, 10, 11, 17, 26, 40):
        questions = {
            "short": {"type": "choice", "instructions": text(9), "criteria": described(count, 5)},
            "long": {"type": "choice", "instructions": text(90), "criteria": described(count, 80)},
            "noul": {"type": "noul", "instructions": text(80), "criteria": {"true": text(60), "false": text(60)}},
        }
        if count <= 10:
            questions["score"] = {"type": "score", "instructions": text(30), "criteria": [text(1 + 60 // count) for _ in range(count)]}
        bodies.append({"state": text(40), "questions": questions})
    return bodies


def model(vocabulary: int) -> DecisionModel:
    """The network with random weights, as the released ones stored in float16."""
    config = transformers.ModernBertConfig(vocab_size=vocabulary, pad_token_id=0, **ENCODER)
    encoder = transformers.ModernBertModel._from_config(config, attn_implementation="eager")
    network = DecisionModel(encoder, head_layers=SETTINGS["head_layers"]).eval()
    torch.manual_seed(501)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            is_norm = "norm" in name or name.startswith("scorer.0")
            scale = 1.0 if name.startswith("type_emb") else 0.3 if parameter.ndim == 1 else 1.8 / parameter.shape[-1] ** 0.5
            value = torch.randn_like(parameter) * scale + (1.0 if is_norm and name.endswith("weight") else 0.0)
            parameter.copy_(value.half().float())
    return network


@torch.no_grad()
def answer(network: DecisionModel, tok, state: object, question: dict) -> dict:
    """The ids of a question, and the probabilities of its answers: of yes and no, of a statement."""
    asked = Agent._to_internal(question)
    ids, markers, stats, room = build_sequence(
        tok, state, asked, SETTINGS["max_len"], SETTINGS["head_max_len"], return_stats=True, return_truncation_stats=True
    )
    assert not room["truncated"] and len(markers) == stats["options"]
    kind = QTYPES[question["type"]]
    count = len(markers)
    logits = network(
        torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long), torch.tensor([markers]),
        torch.ones(1, count, dtype=torch.bool), torch.tensor([kind]),
    )[0]
    by_options = SETTINGS["temperature_by_options"]
    raw = by_options.get(temp_bucket(kind, count), SETTINGS["temperature"][kind])
    probabilities = torch.softmax(logits[0, :count].double() / clamp_temperature(raw), dim=0)
    if question["type"] == "noul":
        probabilities = probabilities.flip(0)
    return stored(ids) | {"probabilities": numbers(probabilities)}


def main() -> None:
    """Makes the folder and its answers."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / NAME
        for part in ("tokenizer", "encoder"):
            (folder / part).mkdir(parents=True)
        network = model(tokenizer(folder / "tokenizer"))
        network.encoder.config.save_pretrained(folder / "encoder")
        write_json(folder / "rl_agent_config.json", SETTINGS)
        save_file({name: tensor.half().contiguous() for name, tensor in network.state_dict().items()}, folder / "model.safetensors")
        tok = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
        tok.split_special_tokens = True
        rows = []
        for body in requests():
            answers = {key: answer(network, tok, body["state"], question) for key, question in body["questions"].items()}
            rows.append({"body": body, "answers": answers})
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(folder, FOLDER / NAME)
    spread = [max(answer["probabilities"]) - 1 / len(answer["probabilities"]) for row in rows for answer in row["answers"].values()]
    lines = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in rows)
    source = f"laya 0.4.15, transformers {transformers.__version__}"
    (FOLDER / f"{NAME}.expected.json").write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    size = sum(path.stat().st_size for path in (FOLDER / NAME).rglob("*") if path.is_file())
    print(f"{NAME}: {size / 1000:.1f} KB, {len(rows)} requests, {len(spread)} questions, leads {min(spread):.2f} to {max(spread):.2f}")


if __name__ == "__main__":
    main()
