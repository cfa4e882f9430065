"""Split training of one client and one server, with the cut made explicit."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Generator, Tensor, nn

from privkit.data.base import Batch
from privkit.defenses.base import Receipt
from privkit.errors import TrainingDiverged, UsageError
from privkit.metrics.classification import Proportion, accuracy
from privkit.seeds import derive
from privkit.training.checkpoint import Checkpoint
from privkit.training.client import Client
from privkit.training.seeded import seeded

COMPILE_FROM_STEPS = 2_000  # below this, torch.compile costs more time than it saves


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How the task is trained; how long is the budget's.

    Attributes:
        batch_size: B, images a message, ≥ 1. A batch-level defense mixes within it.
        learning_rate: peak of the one-cycle cosine schedule, > 0.
        weight_decay: AdamW's, ≥ 0.
        freeze_lower: keep the client's segment at its initial weights, as the patch-shuffling paper does.

    Source: batch 50 of Yao et al., patch shuffling, §V-A.1; optimiser and schedule are privkit's.
    """

    batch_size: int = 50
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    freeze_lower: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be a whole number >= 1, got {self.batch_size}")
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate must be a finite number > 0, got {self.learning_rate}")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be a finite number >= 0, got {self.weight_decay}")


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A defended model.

    Attributes:
        client: lower segment and defense.
        upper: the server's segment.
        curve: mean training loss of each epoch.
    """

    client: Client
    upper: nn.Module
    curve: tuple[float, ...]


def split_step(
    client: Client, upper: nn.Module, images: Tensor, labels: Tensor, draws: Generator
) -> tuple[Tensor, Receipt]:
    """Forward and backward pass of one batch across the cut; gradients are left in `.grad` of both segments.

    The release is detached, which is what the wire does. The gradient that comes back enters the *same* graph from
    which the release left, so noise and permutations are those of the forward pass.

    Returns:
        The loss (detached) and the defense's receipt.

    Source: Gupta and Raskar 2018, Algorithm 1.
    """
    on_gpu = images.device.type == "cuda"
    with torch.autocast(images.device.type, torch.bfloat16, enabled=on_gpu):
        release, receipt = client.release(images, labels, draws)
    sent = release.smashed.detach().requires_grad_()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=on_gpu):
        loss = nn.functional.cross_entropy(upper(sent.clone()).float(), release.labels)
    loss.backward()
    if release.smashed.requires_grad:
        release.smashed.backward(sent.grad)
    return loss.detach(), receipt


def train(
    client: Client,
    upper: nn.Module,
    private: Batch,
    spec: TrainingSpec,
    *,
    epochs: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> Trained:
    """Train both segments on the private images.

    Every epoch draws a fresh order and takes whole batches only, so that each message mixes as many images as the
    receipt says. An epoch's randomness depends on the seed and its number alone: a restart continues bit for bit.

    Args:
        client: on the device of `private`.
        upper: likewise.
        private: the client's images, on the training device.
        spec: batch size and optimiser.
        epochs: ≥ 0.
        seed: of orders, defense and whatever the segments draw themselves, such as dropout.
        checkpoint: where to save after an epoch and to report progress.

    Raises:
        UsageError: if there are fewer images than a batch, or a batch is too small for the defense.
        TrainingDiverged: if the loss is not finite; names the first such step.
    """
    checkpoint = checkpoint or Checkpoint()
    batch, steps = spec.batch_size, len(private) // spec.batch_size
    if steps == 0:
        raise UsageError(f"batch_size={batch} is more than the {len(private)} private images; lower it")
    if batch < client.defense.smallest_batch:
        raise UsageError(
            f"{client.defense.name} needs batches of at least {client.defense.smallest_batch} images, got "
            f"batch_size={batch}: a smaller batch mixes nothing"
        )
    device, total = private.x.device, epochs * steps
    if spec.freeze_lower:  # never the other way round: what a user froze stays frozen
        client.lower.requires_grad_(False)
    parameters = [p for p in (*client.parameters(), *upper.parameters()) if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=spec.learning_rate, total_steps=total + 1, pct_start=0.1, cycle_momentum=False
    )
    if device.type == "cuda" and total >= COMPILE_FROM_STEPS:
        client.lower.compile()  # in place: names of parameters stay as they are
        upper.compile()

    curve: list[float] = []
    saved = checkpoint.load()
    if saved is not None:
        client.load_state_dict(saved["client"])
        upper.load_state_dict(saved["upper"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        curve = list(saved["curve"])
    for epoch in range(len(curve), epochs):
        client.train()
        upper.train()
        draws = Generator(device).manual_seed(derive(seed, "train", epoch))
        order = torch.randperm(len(private), generator=draws, device=device)[: steps * batch].view(steps, batch)
        losses = torch.empty(steps, device=device)
        with seeded(device, derive(seed, "train", epoch, "module")):  # dropout draws from the global generators
            for step, rows in enumerate(order):
                optimizer.zero_grad(set_to_none=True)
                losses[step], _ = split_step(client, upper, private.x[rows], private.y[rows], draws)
                optimizer.step()
                schedule.step()
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            first = epoch * steps + int(bad[0]) + 1
            raise TrainingDiverged(f"the loss became NaN or infinite at step {first} of {total}; lower learning_rate")
        curve.append(losses.mean().item())
        checkpoint.save(
            {
                "client": client.state_dict(),
                "upper": upper.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "curve": curve,
            }
        )
        checkpoint.report(epoch + 1, epochs, curve[-1])
    return Trained(client=client.eval(), upper=upper.eval(), curve=tuple(curve))


@torch.no_grad()
def evaluate(client: Client, upper: nn.Module, test: Batch, *, batch_size: int, seed: int) -> Proportion:
    """Test accuracy through the defended release, in whole batches, with an exact interval.

    Raises:
        UsageError: if there are fewer test images than a batch.
    """
    count = len(test) // batch_size * batch_size
    if count == 0:
        raise UsageError(f"batch_size={batch_size} is more than the {len(test)} test images; lower it")
    client.eval()
    upper.eval()
    draws = Generator(test.x.device).manual_seed(derive(seed, "test"))
    correct = torch.zeros((), dtype=torch.int64, device=test.x.device)
    with seeded(test.x.device, derive(seed, "test", "module")):
        for start in range(0, count, batch_size):
            part = slice(start, start + batch_size)
            with torch.autocast(test.x.device.type, torch.bfloat16, enabled=test.x.device.type == "cuda"):
                release, _ = client.release(test.x[part], test.y[part], draws)
                logits = upper(release.smashed)
            correct += (logits.argmax(1) == test.y[part]).sum()
    return accuracy(int(correct), count)
