"""Tests a claimed ε with canaries: coins choose between two extreme records, and a test guesses coins from releases."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import torch
from torch import Generator, Tensor

from privkit.audit.claims import audit_one_run, claimed_family
from privkit.shared.certificate import Certificate
from privkit.shared.empirical_bound import EmpiricalBound

_COORDINATES, _FAR = 16, 1e3


def against_canaries(
    mechanism: Callable[[Tensor, Generator], Tensor],
    certificate: Certificate,
    *,
    neighbors: tuple[Tensor, Tensor] | None = None,
    canaries: int = 2_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> EmpiricalBound:
    """Compute a lower bound on the ε of `mechanism` from canary records, to be compared with the claimed ε.

    Args:
        mechanism: a function of records [R, ...] and a generator that returns one release per record, [R, ...].
        certificate: the claim. ValueError if it has no ε, or if it is add-or-remove and `neighbors` is None.
        neighbors: the two records between which a coin chooses; by default ±1000 in 16 coordinates.
        canaries: number of coin flips, at least 2. The test is first fitted on this number of releases of each record.
        confidence: probability in (0, 1) that the bound is valid.
        seed: the seed of the coin flips and of the mechanism's noise.
    """
    if certificate.epsilon == inf:
        raise ValueError("the certificate claims no ε, so there is nothing to test; give one that does")
    if certificate.relation == "add_or_remove_one" and neighbors is None:
        raise ValueError(
            "the claim is about adding or removing a record, and the default neighbors replace one; give neighbors: a "
            "record, and the one that your mechanism takes for none, such as zeros"
        )
    if canaries < 2:
        raise ValueError(f"canaries must be at least 2, got {canaries}; take thousands, since few can refute nothing")
    generator = torch.Generator().manual_seed(seed)
    far = torch.full((_COORDINATES,), _FAR)
    present, absent = neighbors if neighbors is not None else (far, -far)
    if not bool(present.isfinite().all() and absent.isfinite().all()):
        raise ValueError("neighbors must be finite, got NaN or infinity")

    def released(coins: Tensor) -> Tensor:
        where = coins.view(-1, *[1] * present.dim())
        rows = mechanism(torch.where(where, present, absent), generator)
        if not isinstance(rows, Tensor):
            raise ValueError(f"the mechanism must return a torch tensor of releases, got {type(rows).__name__}")
        if rows.shape[:1] != coins.shape or not bool(rows.isfinite().all()):
            raise ValueError(
                f"the mechanism must release one finite row for each of {len(coins)} records, got shape "
                f"{list(rows.shape)}{'' if bool(rows.isfinite().all()) else ' with NaN or infinity'}"
            )
        return rows.flatten(1).double()

    own = torch.arange(2 * canaries) % 2 == 0
    rows = released(own)
    sides = rows[own], rows[~own]
    (mean, other), spread = [side.mean(0) for side in sides], sum(side.var(0) for side in sides) / 2
    direction = (mean - other) / (spread + 1e-12 * (1 + rows.var(0)))
    coins = torch.rand(canaries, generator=generator) < 0.5
    scores = (released(coins) - (mean + other) / 2) @ direction
    return audit_one_run(
        scores.numpy(),
        coins.numpy(),
        certificate,
        confidence=confidence,
        family=claimed_family(certificate, None),
        independent=True,
    )
