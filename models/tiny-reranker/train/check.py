"""Compares the training code's scores with transformers' scores on the saved folder.

Usage: python check.py FOLDER. It prints the largest difference of raw scores over pairs in five languages,
from chat template to logits, and fails if the difference is above 1e-4.
"""

import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groups import Maker, Settings
from scoring import Scorer

TOLERANCE = 1e-4


@torch.no_grad()
def main(folder: Path) -> None:
    """Prints the result."""
    torch.set_num_threads(1)
    maker = Maker(random.Random(99), Settings(held_out_names=True, long=0.2))
    groups = [maker.relation_group() for _ in range(20)] + [maker.everyday_group() for _ in range(10)]
    scorer = Scorer.load(folder)
    ours = scorer.scores(groups)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    worst, scores = 0.0, []
    for group, values in zip(groups, ours, strict=True):
        for document, score in zip(group.documents, values, strict=True):
            messages = [
                {"role": "system", "content": group.instruction},
                {"role": "query", "content": group.query},
                {"role": "document", "content": document.text()},
            ]
            ids = tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False), add_special_tokens=False)
            assert ids == scorer.encoder.body(group.instruction, group.query) + scorer.encoder.document(document.text())
            logits = model(torch.tensor([ids])).logits[0, -1]
            scores.append(float(logits[yes] - logits[no]))
            worst = max(worst, abs(scores[-1] - score))
    print(f"{len(scores)} pairs, raw scores from {min(scores):.2f} to {max(scores):.2f}, largest difference {worst:.1e}")
    assert worst < TOLERANCE, worst


if __name__ == "__main__":
    main(Path(sys.argv[1]))
