"""Whether clients send the same in training as afterwards, where attacks look."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Generator, Tensor

from privkit.audit.contained import is_own_part
from privkit.defenses.base import is_own
from privkit.defenses.chain import stages_of
from privkit.domains.base import Batch
from privkit.errors import Misbehaved
from privkit.settings.config import AuditConfig
from privkit.torch_utils.seeded import seeded
from privkit.training import Clients

_ROUNDED = 1e-4
"""Difference, relative to the size of a release, that other ways to compute the same explain."""
_LIKE_TWO_DRAWS = 10
"""Times the distance of two releases without gradients, for a stage that draws from more than its generator."""


def must_send_alike(config: AuditConfig, edge: Clients, records: Batch) -> None:
    """Refuse a user's own stage, or network, that sends other data with gradients, as in training, than without.

    Attacks read what is sent after training, so what they find would say nothing of what was sent in it. One round of
    the same records is sent with the same draws. privkit's own parts are not measured here.

    Args:
        config: of the run.
        edge: the clients, in evaluation mode.
        records: of the dataset, at least one round.

    Raises:
        Misbehaved: if both releases differ.
    """
    names = [stage.name for stage in stages_of(edge.defense) if is_own(stage)]
    if is_own_part(config.model.spec):
        names.append(config.model.name)
    if not names:
        return
    count = edge.lowers.copies * config.training.batch_size
    x, y = (side[:count].unflatten(0, (edge.lowers.copies, -1)) for side in (records.x, records.y))

    def sent(gradients: AbstractContextManager[object]) -> Tensor:
        with gradients, seeded(x.device, 0):
            draws = Generator(x.device).manual_seed(0)
            return edge.release(x.clone(), y.clone(), draws).arrived.smashed.detach().double()

    training, after, again = sent(torch.enable_grad()), sent(torch.no_grad()), sent(torch.no_grad())
    if not bool(after.isfinite().all()):
        return  # no attack reads it, and its row says so
    apart = float("inf") if training.shape != after.shape else (training - after).norm().item()
    size = max(training.norm().item(), after.norm().item())
    if not apart <= _ROUNDED * size + _LIKE_TWO_DRAWS * (after - again).norm().item():
        raise Misbehaved(
            f"{' or '.join(names)} sends other data in training than afterwards: one round of the same records with "
            f"the same draws differs by {apart / max(size, 1e-30):.2g} of its size with and without gradients, so that "
            "attacks on what is sent after training tell nothing of training; let it do the same in both"
        )
