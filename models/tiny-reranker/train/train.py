"""Makes the tiny re-ranker from nothing: generates texts, trains tokenizer and model, writes the folder.

Usage: python train.py --out DIR. Two workers of one thread each share the work. While it trains, it prints
how well the model ranks held-out groups, and it writes the folder as it goes. `--resume STEP` starts with the
stage that begins at STEP.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as workers
import torch.multiprocessing
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import tokenizer as tokenizers_of_this_model
from batches import Encoded, Encoder, batch
from folder import write_folder
from mixture import packed, stream, watched
from model import Batch, Reranker, Shape, fuse, load
from optimiser import Optimiser, rate

SEED, WORKERS, TYPICAL_GROUPS = 4, 2, 9
# The rate falls to zero by the end of each stage; each stage begins with a new optimiser.
STAGES = (3600, 4600)
WATCH_EVERY, WATCHED, WORDS_UNTIL = 250, 60, 2700


def losses(model: Reranker, batch: Batch, step: int, factor: float) -> tuple[Tensor, Tensor]:
    """The sum to minimise, and its parts for the log.

    The parts: ranking, yes or no, overlap of words, answering sentence.
    """
    scores, overlap, answer = model(batch)
    groups = int(batch.owner.max()) + 1
    ranking = scores.new_zeros(())
    for group in range(groups):
        own = batch.owner == group
        relevant, values = batch.relevant[own] > 0, scores[own]
        if relevant.any() and not relevant.all():
            rest = values[~relevant].logsumexp(0)
            ranking = ranking + F.softplus(rest - values[relevant]).mean() / groups
    answers = F.binary_cross_entropy_with_logits(scores, batch.relevant)
    words = F.binary_cross_entropy_with_logits(overlap, batch.overlap)
    sentences = F.binary_cross_entropy_with_logits(answer, batch.end_answers)
    # A batch of long documents has one group or two: its steps must not count as much as the steps of a batch
    # with a dozen.
    total = ranking + answers + 0.5 * max(0.0, 1 - step / WORDS_UNTIL) * words + factor * sentences
    return total * groups / TYPICAL_GROUPS, torch.stack((ranking, answers, words, sentences)).detach()


@torch.no_grad()
def first_places(model: Reranker, groups: list[Encoded]) -> float:
    """Share of groups in which a relevant document has the highest score; the workers share the groups."""
    hits = torch.zeros(1)
    for part in packed(groups[workers.get_rank() :: WORKERS]):
        values = batch(part)
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(values)[0]
        for group in range(len(part)):
            own = values.owner == group
            hits += values.relevant[own][scores[own].argmax()]
    workers.all_reduce(hits)
    return hits.item() / len(groups)


def work(rank: int, out: Path, steps: int, seed: int, start: int, meeting: str) -> None:
    """One worker's part of the stage from `start` to `steps`.

    Every stage except the first starts with the weights in the folder.
    """
    torch.set_num_threads(1)
    workers.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORKERS)
    words = Tokenizer.from_file(str(out / "tokenizer.json"))
    encoder, shape = Encoder(words), Shape(vocabulary=words.get_vocab_size())
    sets = {name: [encoder.encode(group) for group in groups] for name, groups in watched(seed + 1000, WATCHED).items()}
    model = Reranker(shape, words, seed)
    say(f"model: {sum(value.numel() for value in model.checkpoint().values()):,} parameters")
    if start:
        load(model, out)
    fuse()
    optimiser, batches = Optimiser(model), stream(encoder, f"{seed}-{rank}", start)
    sums, tokens, began, step = torch.zeros(4), 0, time.time(), start
    while step < steps:
        values = batch(next(batches))
        with torch.autocast("cpu", torch.bfloat16):
            total, parts = losses(model, values, step, rate(step, steps))
        total.backward()
        optimiser.step(step, steps)
        step += 1
        sums = sums * 0.98 + parts * 0.02
        tokens += len(values.documents.ids) + len(values.prefixes.ids)
        if step % 50 == 0:
            shown = " ".join(f"{part / (1 - 0.98 ** (step - start)):.3f}" for part in sums.tolist())
            seconds = time.time() - began
            say(f"step {step} of {steps}, loss {shown}, {WORKERS * tokens / seconds:.0f} tokens/s, {seconds:.0f} s")
        if step % WATCH_EVERY == 0 or step == steps:
            say("  first places: " + " ".join(f"{name} {first_places(model, groups):.2f}" for name, groups in sets.items()))
            if rank == 0:
                write_folder(out, shape, words, model.checkpoint())
    workers.destroy_process_group()


def say(text: str) -> None:
    """Prints progress, from one worker only."""
    if workers.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; made if it is not there")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--resume", type=int, default=0, choices=STAGES[:-1], help="go on from this step with the weights in the folder")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.resume:
        words = tokenizers_of_this_model.train(arguments.seed)
        tokenizers_of_this_model.save(words, arguments.out)
        print(f"tokenizer: {words.get_vocab_size()} tokens", flush=True)
    for start, end in zip((0, *STAGES), STAGES):
        if start >= arguments.resume:
            with tempfile.TemporaryDirectory() as folder:
                task = arguments.out, end, arguments.seed, start, f"{folder}/meeting"
                torch.multiprocessing.spawn(work, task, WORKERS)


if __name__ == "__main__":
    main()
