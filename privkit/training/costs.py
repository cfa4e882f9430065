"""Measures the costs of one client in one round: bytes, multiply-accumulates and peak memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, nn

from privkit.domains.base import Batch
from privkit.metrics.cost import FLOAT, costs_of, sent_share
from privkit.shared.costs import Costs
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training.clients import Clients
from privkit.training.loop import learns
from privkit.training.spec import TrainingSpec
from privkit.training.u_shape import UShaped

_SEED_BYTES = 8


def client_costs(
    clients: Clients,
    private: Batch,
    spec: TrainingSpec,
    *,
    rounds_an_epoch: int,
    seed: int,
    upper: nn.Module | None = None,
) -> Costs:
    """Count the bytes, multiply-accumulates and peak memory of one client; for the bytes, one round of images is sent.

    `upper` is the segment above the cut. In a U-shape (clients also hold the last layers), features and their gradient
    cross the second cut even if the lower segment is frozen. If weights are averaged once per epoch, each round counts
    1/`rounds_an_epoch` of the averaging's cost. `seed` determines the random masks of the counted round.
    """
    protocol, device = clients.protocol, private.x.device
    rows = torch.arange(protocol.active * spec.batch_size, device=device).view(protocol.active, -1) % len(private)
    clients.eval()
    with torch.no_grad(), seeded(device, derive(seed, "costs")):
        sent = clients.release(
            private.x[rows], private.y[rows], Generator(device).manual_seed(derive(seed, "costs"))
        ).seen()
    weights = sent.release.weights
    kept = sent.receipt.payload_share  # from the receipt, since weights do not show masks that are shuffled
    if kept is None:
        kept = sent_share(weights, sent.groups >= 0)
    trained = not spec.freeze_lower and learns(clients)
    every = {"never": None, "round": 1, "epoch": max(1, rounds_an_epoch)}[protocol.average]
    cost = costs_of(
        clients.client(0),
        private.x[:1],
        trained=trained,
        batch_size=spec.batch_size,
        kept=kept,
        gradient=protocol.gradient,
        label_bytes=clients.classes * FLOAT
        if sent.release.labels.is_floating_point() and protocol.labels == "sent"
        else 0,
        seed_bytes=_SEED_BYTES if weights is not None else 0,
        averaged_every=every,
        companion=None if clients.companion is None else clients.companion.copy(0),
    )
    if isinstance(upper, UShaped):
        with torch.no_grad(), seeded(device, derive(seed, "costs")):
            features = upper.eval().middle(sent.release.smashed.flatten(0, 1)[:1])
        cost = _with_tail(
            cost,
            costs_of(
                upper.tails.copy(0), features.detach(), trained=True, batch_size=spec.batch_size, averaged_every=every
            ),
            FLOAT * features.numel(),
        )
    if not (trained and spec.private):
        return cost
    gradients = spec.batch_size * FLOAT * sum(weight[0].numel() for weight in clients.lowers.parameters())
    # DP-SGD holds one gradient for each record, until it clips and adds them
    return replace(cost, peak_memory=cost.peak_memory + gradients)


def _with_tail(lower: Costs, tail: Costs, features: int) -> Costs:
    """Costs of a client's two segments in a U-shape; `features`: bytes per image and direction at the second cut."""
    ends = {name: getattr(lower, name) + getattr(tail, name) for name in Costs.__dataclass_fields__}
    return Costs(**ends | {"bytes_up": lower.bytes_up + features, "bytes_down": lower.bytes_down + features})
