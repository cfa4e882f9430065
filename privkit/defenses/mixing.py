"""Mixing the smashed data of a group: random ratios, exclusive masks, and the weighted sum."""

from __future__ import annotations

from math import inf, isinf
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Generator, Tensor

from privkit.defenses.masks import uniform_permutations

Concentration = Annotated[float, Ge(1e-6), Le(inf), "inf gives equal ratios"]
"""α_M of a Dirichlet law. Below 1e-6, one client would fill every message, and logarithms of ratios overflow."""


def dirichlet_ratios(present: Tensor, concentration: float, generator: Generator) -> Tensor:
    """Draw mixing ratios λ ~ Dirichlet(α_M, …, α_M) for G groups of clients: float64 [G, k], with sum 1 in each group.

    `present`, bool [G, k], says which places of a group hold a client, at least one; empty places get 0. An infinite
    α_M gives equal ratios.

    Source: DP-CutMixSL §3.C; Gamma variates are computed as Γ(α) = Γ(α+1)·U^(1/α) in logarithms, so that a small α does
    not underflow.
    """
    if isinf(concentration):
        return present.double() / present.sum(1, keepdim=True)
    shape = torch.full_like(present, concentration + 1, dtype=torch.float64)
    uniform = torch.rand(present.shape, generator=generator, device=present.device, dtype=torch.float64)
    log_gamma = torch._standard_gamma(shape, generator=generator).log() + torch.log1p(-uniform) / concentration
    return log_gamma.masked_fill(~present, float("-inf")).softmax(1)


def dirichlet_counts(present: Tensor, positions: int, concentration: float, generator: Generator) -> Tensor:
    """Draw how many of N = `positions` each client of a group fills: int64 [G, k], with sum N in each group.

    The law is Dirichlet-multinomial(N, α_M); empty places (see `dirichlet_ratios`) get 0. An infinite α_M gives counts
    as equal as possible, and positions left over go to random clients.

    Source: CutMixSL §3.2. DP-CutMixSL's counts ⌈λ_i·N⌉ sum to more than N, so masks with these counts would overlap.
    """
    if isinf(concentration):
        taken = present.sum(1, keepdim=True)
        keys = torch.rand(present.shape, generator=generator, device=present.device, dtype=torch.float64)
        rank = keys.masked_fill(~present, 2.0).argsort(1).argsort(1)
        return torch.where(present, positions // taken + (rank < positions % taken), 0)
    # Inverse of the cdf: a client of probability 0 is never drawn, since its interval of the cdf is empty.
    limits = dirichlet_ratios(present, concentration, generator).cumsum(1)
    limits = limits / limits[:, -1:]
    draws = torch.rand(len(present), positions, generator=generator, device=present.device, dtype=torch.float64)
    seat = torch.searchsorted(limits, draws, right=True)
    return torch.zeros_like(present, dtype=torch.int64).scatter_add_(1, seat, torch.ones_like(seat))


def exclusive_masks(counts: Tensor, generator: Generator, *, positions: int) -> Tensor:
    """Draw masks, bool [G, k, T], that give each of T = `positions` to exactly one client.

    They are uniform among all masks with the given counts, int64 [G, k], which sum to T in each group.

    Source: CutMixSL §3.2 (paired pseudo-random sequences), DP-CutMixSL §3.C (MECE masks).
    """
    groups, members = counts.shape
    return owner_masks(
        torch.searchsorted(counts.cumsum(1), uniform_permutations(groups, positions, generator), right=True), members
    )


def owner_masks(owner: Tensor, members: int) -> Tensor:
    """Masks, bool [G, k, T], of each group's k clients; `owner`, int64 [G, T], is the client of each position."""
    return owner.unsqueeze(1) == torch.arange(members, device=owner.device).view(1, -1, 1)


def ratio_coins(drawn: str, generator: Generator, kept: Generator | None) -> Generator:
    """The generator of the mixing ratios: `generator` if they are drawn in every round, otherwise `kept`.

    `kept` has the same state in every round; None means a generator with seed 0.
    """
    if drawn == "every_round":
        return generator
    return Generator(generator.device).manual_seed(0) if kept is None else kept


def mix(smashed: Tensor, weight: Tensor) -> Tensor:
    """Mix the smashed data s_i [G, k, B, ...] of the k clients i in each of G groups: Σ_i w_i ⊙ s_i, float [G, B, ...].

    The weights come from `masks.spread`: bool if each coordinate is taken from one client; otherwise float. Data of
    weight 0 are not read and may be NaN. A gather (for bool masks) and a batched product (for one weight per client)
    take about half the time of multiplying and adding.
    """
    if weight.dtype == torch.bool:
        return _patchwork(smashed, weight)
    if smashed.device.type != "cpu" or weight[0, 0].numel() != 1:
        return torch.where(weight == 0, 0, smashed * weight).sum(1).to(smashed.dtype)
    if torch.compiler.is_compiling() or (weight == 0).any():  # a compiled step cannot branch on values
        smashed = smashed.masked_fill(weight == 0, 0)
    groups, members = smashed.shape[:2]
    with torch.autocast("cpu", enabled=False):  # autocast would round the weights that the receipt states
        mixed = torch.bmm(weight.reshape(groups, 1, members), smashed.reshape(groups, members, -1))
    return mixed.view(groups, *smashed.shape[2:])


def pick_rows(tokens: Tensor, owner: Tensor, order: Tensor | None = None) -> Tensor:
    """Mixed images [G, B, T, D] from tokens [G, k, B, T, D]; `owner`, int64 [G, T], is the client of each position.

    With `order`, a permutation of each image's tokens, int64 [G, B, T], token t of the result is token order[..., t].
    """
    groups, members, batch, length, dim = tokens.shape
    group, image, place = (torch.arange(n, device=owner.device) for n in (groups, batch, length))
    seat = owner.unsqueeze(1)
    if order is not None:
        seat, place = seat.expand(order.shape).gather(2, order), order
    rows = ((group.view(-1, 1, 1) * members + seat) * batch + image.view(-1, 1)) * length + place
    return tokens.reshape(-1, dim).gather(0, rows.view(-1, 1).expand(-1, dim)).view(groups, batch, length, dim)


def mix_labels(labels: Tensor, ratios: Tensor) -> Tensor:
    """Mix the soft labels y_i of k clients, float [G, k, B, L], by ratios λ [G, k]: Σ_i λ_i·y_i, float [G, B, L].

    Raises a ValueError for class numbers, which cannot be mixed.
    """
    if labels.ndim != 4 or not labels.is_floating_point():
        raise ValueError(
            f"mixing needs one-hot labels, float [G, k, B, L], got {labels.dtype} {list(labels.shape)}; use "
            "torch.nn.functional.one_hot"
        )
    weight = ratios.to(labels.dtype)[:, :, None, None]
    return torch.where(weight == 0, 0, labels * weight).sum(1).to(labels.dtype)


def check_group(name: str, smashed: Tensor, labels: Tensor, group: int, present: Tensor | None) -> tuple[Tensor, ...]:
    """Check and return the input of a defense that mixes groups of k = `group` clients.

    Returns smashed data [G, k, B, ...], labels [G, k, B, L] and `present`, bool [G, k]. For k = 1, smashed data and
    labels come without the axis k, which is added. If `present` is None, all places hold a client. Raises a ValueError,
    which names the defense, if a shape or type does not fit.
    """
    if group == 1:
        smashed, labels = smashed.unsqueeze(1), labels.unsqueeze(1)
    if smashed.ndim < 4 or smashed.shape[1] != group or labels.shape[:3] != smashed.shape[:3]:
        raise ValueError(
            f"{name} mixes groups of {group} and needs smashed [G, {group}, B, ...] and labels [G, {group}, B, L], got "
            f"{list(smashed.shape)} and {list(labels.shape)}"
        )
    if present is None:
        return smashed, labels, torch.ones(smashed.shape[:2], dtype=torch.bool, device=smashed.device)
    if present.dtype != torch.bool or present.shape != smashed.shape[:2]:
        raise ValueError(
            f"present must be bool {list(smashed.shape[:2])}, a flag a seat, got {present.dtype} {list(present.shape)}"
        )
    return smashed, labels, present


def _patchwork(smashed: Tensor, mask: Tensor) -> Tensor:
    """Take every coordinate from its client by one gather: of whole tokens, or along the axis k for other data."""
    owner = mask.int().argmax(1)
    if smashed.ndim == 5:
        return pick_rows(smashed, owner.reshape(len(owner), -1).expand(-1, smashed.shape[3]))
    return smashed.gather(1, owner.unsqueeze(1).expand(-1, 1, *smashed.shape[2:])).squeeze(1)
