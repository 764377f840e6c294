"""Muon for the matrices, AdamW for the rest, and the learning rate over the steps.

Input: the model, and gradients on every worker. Output: `Optimiser.step`, which averages the gradients
over the workers and leaves all workers with the same weights. What must hold: the first steps don't depend on
the number of steps.
"""

import torch
import torch.distributed as workers
from torch import Tensor

from model import Reranker

MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
WARM_UP, FULL, LATER = 80, 750, 0.5


def rate(step: int, steps: int) -> float:
    """The learning rate at a step, as a factor of the full rate.

    A short warm-up, then the full rate until the model matches words, then a linear fall from half of the
    full rate to zero at the end of the stage.
    """
    if step < FULL:
        return min(1.0, (step + 1) / WARM_UP)
    return LATER * (steps - step) / (steps - FULL)


def orthogonal(update: Tensor) -> Tensor:
    """The update, with singular values that five Newton-Schulz steps brought near one."""
    x = update.bfloat16()
    tall = update.shape[0] > update.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
    return (x.T if tall else x).float()


class Optimiser:
    """Both optimisers of a model's parameters; each worker computes the updates of its share of matrices."""

    def __init__(self, model: Reranker):
        named = list(model.named_parameters())
        self.matrices = [value for name, value in named if "proj" in name]
        self.rest = [value for name, value in named if "proj" not in name]
        self.momenta = [torch.zeros_like(matrix) for matrix in self.matrices]
        self.adam = torch.optim.AdamW(self.rest, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0, foreach=False)

    @torch.no_grad()
    def step(self, step: int, steps: int) -> None:
        """Makes one step with the gradients that the parameters hold, and clears the gradients."""
        average([parameter.grad for parameter in self.matrices + self.rest])
        factor, own, count = rate(step, steps), workers.get_rank(), workers.get_world_size()
        updates = []
        for index, (matrix, momentum) in enumerate(zip(self.matrices, self.momenta, strict=True)):
            momentum.mul_(0.95).add_(matrix.grad)
            mine = index % count == own
            updates.append(orthogonal(matrix.grad.add(momentum, alpha=0.95)) if mine else torch.zeros_like(matrix))
        average(updates)
        for matrix, update in zip(self.matrices, updates, strict=True):
            scale = count * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            matrix.mul_(1 - factor * MATRIX_RATE * 0.05).add_(update, alpha=-factor * MATRIX_RATE * scale)
            matrix.grad = None
        for group in self.adam.param_groups:
            group["lr"] = factor * OTHER_RATE
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        self.adam.step()
        self.adam.zero_grad()


def average(tensors: list[Tensor]) -> None:
    """Replaces each tensor by its mean over the workers."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    workers.all_reduce(flat)
    flat /= workers.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
