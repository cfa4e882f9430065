"""Measures the costs of one client in one round: bytes, multiply-accumulates and peak memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves

from privkit.defenses.base import Defense, Effect
from privkit.defenses.chain import stages_of
from privkit.defenses.compile import ChainReceipt, by_clients
from privkit.domains.base import Batch
from privkit.metrics.cost import FLOAT, costs_of, sent_share
from privkit.shared.costs import Costs
from privkit.shared.seeds import derive
from privkit.torch_utils.seeded import seeded
from privkit.training.clients import ClientForward, Clients
from privkit.training.loop import learns
from privkit.training.losses import Outputs
from privkit.training.round import turns
from privkit.training.spec import TrainingSpec
from privkit.training.stacked import Stacked
from privkit.training.u_shape import UShaped

_SEED_BYTES = 8
_MASKS: frozenset[Effect] = frozenset({"masks", "mixes"})


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
    cross the second cut even if the lower segment is frozen. A standalone client trains `upper` as well, and sends
    nothing. If weights are averaged once per epoch, each round counts 1/`rounds_an_epoch` of the averaging's cost.
    `seed` determines the random masks of the counted round.
    """
    protocol, device = clients.protocol, private.x.device
    rows = torch.arange(protocol.active * spec.batch_size, device=device).view(protocol.active, -1) % len(private)
    clients.eval()
    draws, shares, messages = Generator(device).manual_seed(derive(seed, "costs")), [], []
    with torch.no_grad(), seeded(device, derive(seed, "costs")):
        for turn in turns(clients.groups(0, draws), protocol):
            sent = clients.release(private.x[rows], private.y[rows], draws, groups=turn).seen()
            shares.append(_share(clients, sent))
            messages.append((turn >= 0).sum().item() / protocol.active)
    each = sum(messages)  # messages of a client in a round, on average
    trained = not spec.freeze_lower and learns(clients)
    every = {"never": None, "round": 1, "epoch": max(1, rounds_an_epoch)}[protocol.average]
    if protocol.lower == "handed_on" and protocol.clients > 1:
        every = 1
    masks = sent.release.weights is not None and any(map(by_clients, _weighing(clients)))
    cost = costs_of(
        clients.client(0),
        private.x[:1],
        trained=trained,
        batch_size=spec.batch_size,
        kept=sum(share * count for share, count in zip(shares, messages, strict=True)),
        kept_down=shares[0],
        gradient=protocol.gradient,
        label_bytes=each * clients.classes * FLOAT
        if sent.release.labels.is_floating_point() and protocol.labels == "sent"
        else 0,
        seed_bytes=round(each * _SEED_BYTES) if masks else 0,
        averaged_every=every,
        companion=None if clients.companion is None else clients.companion.copy(0),
    )
    if isinstance(upper, UShaped):
        with torch.no_grad(), seeded(device, derive(seed, "costs")):
            features = upper.eval().middle(sent.release.smashed.flatten(0, 1)[:1])
        cost = _with_tail(
            cost,
            costs_of(
                upper.tails.copy(0),
                features.detach().requires_grad_(),  # whose gradient the client sends up
                trained=True,
                batch_size=spec.batch_size,
                averaged_every=every,
            ),
            FLOAT * features.numel(),
        )
    if protocol.upper == "own" and isinstance(upper, Stacked):  # the client trains the whole network, and sends nothing
        arrived = sent.release.smashed[0, :1].detach().requires_grad_(trained)
        above = nn.Sequential(upper.copy(0).eval(), _Numbers())
        whole = _with_tail(cost, costs_of(above, arrived, trained=True, batch_size=spec.batch_size), 0)
        cost = replace(whole, bytes_up=0.0, bytes_down=0.0, bytes_seed=0)
    if not (trained and spec.private):
        return cost
    gradients = spec.batch_size * FLOAT * sum(weight[0].numel() for weight in clients.lowers.parameters())
    # DP-SGD holds one gradient for each record, until it clips and adds them
    return replace(cost, peak_memory=cost.peak_memory + gradients)


class _Numbers(nn.Module):
    """Joins all outputs of a segment to one vector."""

    def forward(self, outputs: Outputs) -> Tensor:
        return torch.cat([part.flatten() for part in tree_leaves(outputs)])


def _weighing(clients: Clients) -> list[Defense]:
    """The stages of a defense that mask or mix, or of which nothing is known."""
    return [stage for stage in stages_of(clients.defense) if not (stage.effects or _MASKS).isdisjoint(_MASKS)]


def _share(clients: Clients, sent: ClientForward) -> float:
    """Share of its smashed data that a client sends in one message, in [0, 1]: masks of others apply to all of them."""
    chained, stages = isinstance(sent.receipt, ChainReceipt), stages_of(clients.defense)
    if (chained or by_clients(stages[0])) and (share := sent.receipt.payload_share) is not None:
        return share  # from the receipt, since weights do not show masks that are shuffled
    if all(map(by_clients, _weighing(clients))):
        return sent_share(sent.release.weights, sent.groups >= 0)
    return 1.0


def _with_tail(lower: Costs, tail: Costs, features: int) -> Costs:
    """Costs of a client's two segments in a U-shape; `features`: bytes per image and direction at the second cut."""
    ends = {name: getattr(lower, name) + getattr(tail, name) for name in Costs.__dataclass_fields__}
    return Costs(**ends | {"bytes_up": lower.bytes_up + features, "bytes_down": lower.bytes_down + features})
