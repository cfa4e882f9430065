"""DP-SGD for the lower segments: each client clips every record's gradient and adds noise to the sum of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, sqrt

import torch
from torch import Generator, Tensor, nn

from privkit.accountants.bounds import gaussian
from privkit.accountants.spec.parts import PrivateUpdates
from privkit.defenses.base import ReleaseCount
from privkit.defenses.noise import BELOW, unit_of
from privkit.domains.partition import ClientPartition
from privkit.errors import UsageError
from privkit.shared.certificate import Certificate
from privkit.training.clients import Clients
from privkit.training.spec import TrainingSpec

_NOT_ALONE = (
    "the updates of the lower segments are noisy, but the smashed data are not: the server's gradients carry them "
    "into the updates of other records, so noisy updates alone prove nothing"
)
_CHOSEN = (
    "networks trained on the protected data determined the choice of the best epoch, and no noise covers that choice; "
    "use keep=last"
)

_NOT_COUNTED = (
    "only the rounds that are counted here are charged: other images that pass the trained lower segments, in queries "
    "or when the task is measured, may reveal more about these segments"
)


def check_private(clients: Clients, spec: TrainingSpec, world: int = 1) -> None:
    """Raise `UsageError` if DP-SGD is not possible: in several processes, with several messages of a record in one
    round, or if the segment uses batch statistics."""
    if not spec.private:
        return
    if clients.protocol.updates == "message" and clients.defense.group > 1:
        raise UsageError("private training needs one message of each record in a round; use updates=round")
    for name, layer in clients.lowers.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            raise UsageError(
                f"private training needs a lower segment without batch statistics, but {name} is a "
                f"{type(layer).__name__}; use layer or group normalization"
            )
    if world > 1:
        raise UsageError("private training is not derived for several processes; run it in one")


@contextmanager
def private_gradients(clients: Clients, spec: TrainingSpec, draws: Generator) -> Iterator[None]:
    """Context manager for one training round; at its end, `.grad` of the lower segments is the gradient of DP-SGD.

    For each client it is (Σ_b g_b·min(1, C/‖g_b‖) + N(0, (noise·C)²)) / B, where g_b is the gradient of record b's own
    loss over all weights of the segment, B the batch size, and C = `spec.clip`. If `spec.private` is False, gradients
    do not change.

    Source: Abadi et al. 2016, Algorithm 1, at each client.
    """
    if not spec.private:
        yield
        return
    assert spec.clip is not None
    assert spec.noise is not None
    with clients.lowers.records() as weights:
        yield
    if not weights:
        return
    parameters = dict(clients.lowers.module.named_parameters())
    for name, gradient in clipped_sums({n: _own(w) for n, w in weights.items()}, spec.clip).items():
        noise = torch.randn(gradient.shape, generator=draws, device=gradient.device, dtype=gradient.dtype)
        parameters[name].grad = (gradient + spec.noise * spec.clip * noise) / weights[name].shape[1]


def _own(weight: Tensor) -> Tensor:
    """Multiply per-record gradients [n, B, ...] by B, because a message's loss is the mean over its B records."""
    if weight.grad is None:
        return torch.zeros_like(weight)
    return weight.grad * weight.shape[1]


def clipped_sums(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Clip each record's gradient to norm `clip`, and sum over the B records of each of n clients: name -> [n, ...].
    `gradients` holds [n, B, ...] for each name; the norm is taken over all names together.
    """
    unit = unit_of(clip)
    squared = torch.stack([(value * unit).flatten(2).square().sum(2) for value in gradients.values()]).sum(0)
    scale = (clip * unit * BELOW / squared.sqrt()).clamp(max=1.0)
    return {name: torch.einsum("nb,nb...->n...", scale, value) for name, value in gradients.items()}


def copies_in_a_batch(spec: TrainingSpec, shares: ClientPartition) -> int:
    """The largest number of copies of one record in a batch; a client with few records repeats them."""
    return ceil(spec.batch_size / int(shares.sizes.min()))


def private_updates(spec: TrainingSpec, steps: int, copies: int) -> PrivateUpdates:
    """The privacy cost of the lower segments' noisy updates, for one record that takes part in `steps` steps.

    Replacing a record changes a step's sum by at most 2C, C = `spec.clip`, for each of the record's `copies` in the
    batch. The server sees each batch's smashed data, so there is no amplification by subsampling.
    """
    assert spec.noise is not None
    return PrivateUpdates(noise_multiplier=spec.noise / (2 * copies), steps=steps)


def run_certificate(certificate: Certificate, release_count: ReleaseCount, spec: TrainingSpec) -> Certificate:
    """Extend the privacy certificate of the released data to the whole run, in which training can also cost privacy.

    Noisy updates add the quantity `updates_epsilon`: the replace-one ε of the updates alone for one record, at the same
    δ, given everything that the server sees. Privacy of the whole run is claimed only if the smashed data also have a
    privacy bound. Nothing is proven if the best epoch is chosen among networks that learned from raw data (labels, or
    clients' images without noise).
    """
    updates = release_count.lower_model
    private = certificate.kind == "differential_privacy"
    proven = private and certificate.covers == "release"
    if private and spec.keep != "last" and (updates == "trained" or not proven):
        return Certificate(kind="nothing", statement=f"nothing is proven: {_CHOSEN}", source="by definition")
    if proven and updates == "trained":
        return replace(certificate, assumptions=(*certificate.assumptions, _NOT_COUNTED))
    if not isinstance(updates, PrivateUpdates):
        return certificate
    alone = gaussian.epsilon(release_count.delta, sqrt(updates.steps) / updates.noise_multiplier)
    numbers = {"updates_epsilon": float(alone), "updates_of_one_record": float(updates.steps)}
    return replace(
        certificate,
        lower=None,  # the updates' privacy cost is not shown to be tight
        quantities={**certificate.quantities, **numbers},
        assumptions=certificate.assumptions if proven else (*certificate.assumptions, _NOT_ALONE),
    )
