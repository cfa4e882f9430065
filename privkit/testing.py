"""Assertions for a user's tests: a privacy claim survives canaries, an audit passes, a part keeps the required laws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from privkit.audit.run import AuditRun
    from privkit.shared.certificate import Certificate
    from privkit.shared.empirical_bound import EmpiricalBound


def assert_claim_stands(
    mechanism: Callable[[Tensor, Generator], Tensor],
    certificate: Certificate,
    *,
    neighbors: tuple[Tensor, Tensor] | None = None,
    canaries: int = 2_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> EmpiricalBound:
    """Fail if canaries show that a mechanism has a larger ε than its certificate claims.

    A canary is one of two neighboring records, chosen by a fair coin. A linear classifier, fitted on other releases,
    guesses which of the two records was released. A claim that passes is not proven: a stronger test may refute it.

    Args:
        mechanism: function from records [N, ...] and a generator to releases [N, ...]. Release n must depend only on
            record n and its own noise, and must contain everything that is released about the record in all rounds.
        certificate: the claimed guarantee for one record.
        neighbors: two records [...] that are neighbors under the claim, as far apart as it allows. None takes two
            vectors of 16 coordinates that differ strongly in each coordinate; this suits a replace-one claim of a
            mechanism that clips or clamps. For an add-or-remove-one claim, give a record and the input that stands for
            its absence.
        canaries: number of released records, ≥ 2; more records give a tighter bound.
        confidence: confidence of the lower bound on ε, in [1/2, 1): a true claim fails with probability at most 1 −
            confidence.
        seed: the seed of coins and noise.

    Returns:
        The lower bound on ε that the canaries show.

    Raises:
        AssertionError: if the bound exceeds the claimed ε, or if this number of canaries could never refute the claim.
        ValueError: if the certificate claims nothing; if an add-or-remove-one claim comes without neighbors; if there
            are fewer than two canaries; or if releases are not finite or not one per record.

    >>> import torch
    >>> from privkit.shared.certificate import Certificate
    >>> def noisy(records, generator):
    ...     return records.clamp(0, 1)[:, :1] + 5 * torch.randn(len(records), 1, generator=generator)
    >>> claim = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)
    >>> assert_claim_stands(noisy, claim).refuted
    False
    """
    __tracebackhide__ = True
    from privkit.laws.canaries import against_canaries

    bound = against_canaries(
        mechanism, certificate, neighbors=neighbors, canaries=canaries, confidence=confidence, seed=seed
    )
    if bound.refuted:
        raise AssertionError(bound.statement)
    if bound.idle:
        raise AssertionError(f"{bound.statement}; a test that cannot fail tells nothing: take more canaries")
    return bound


def assert_audit(out: Path | str | None = None, **settings: Any) -> AuditRun:
    """Run an audit, and fail unless every attack has a result, every check of the results holds, and every gate (a
    pass/fail condition that you set) is met.

    Args:
        out: the run folder, as in `privkit.run_audit`.
        **settings: settings of the audit, such as `defense="batch_shuffle"` and `gate=["ssim<=0.4"]`.

    Returns:
        The finished audit.

    Raises:
        AssertionError: if the verdict is not clean; the message has a sentence for each failure.
        PrivkitError: for settings that are not allowed.
    """
    __tracebackhide__ = True
    from privkit.audit.run import run_audit

    run = run_audit(out=out, **settings)
    if run.exit_code:
        raise AssertionError("\n".join([run.verdict.sentence, *run.failures, f"report: {run.report}"]))
    return run


def assert_laws(part: str, *, kind: str | None = None, dataset: str | None = None) -> None:
    """Fail unless a part keeps the laws (required properties) of its kind, as tested by `privkit check`.

    Args:
        part: the part as on the command line, such as "mine:Squash:bound=2".
        kind: "defenses", "attacks", "datasets", "models" or "metrics"; None to infer it from the part.
        dataset: the dataset whose records a model reads; None for images of usual sizes.

    Raises:
        AssertionError: if a law is broken; the message names each broken law.
        PrivkitError: if there is no such part.

    >>> assert_laws("privkit.defenses.denoising:Masking:keep=.2")
    """
    __tracebackhide__ = True
    from privkit.laws.parts import kind_of, laws

    if broken := [f"{law}: {how}" for law, how in laws(part, kind or kind_of(part), dataset) if how]:
        raise AssertionError("\n".join(broken))
