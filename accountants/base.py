"""The Rényi curve of a run, and the certificate of a release without protection."""

from __future__ import annotations

from dataclasses import dataclass

from privkit.shared.certificate import Certificate, Relation, Unit


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """Rényi differential privacy of a whole run at A orders. The fields after `values` are as in `Certificate`.

    Attributes:
        orders: the A orders, each > 1.
        values: for each order, an upper bound ≥ 0, in nats, on the Rényi divergence of the run.
    """

    orders: tuple[float, ...]
    values: tuple[float, ...]
    method: str
    relation: Relation
    unit: Unit
    assumptions: tuple[str, ...]
    source: str
    versions: dict[str, str]


def no_protection() -> Certificate:
    """The certificate of an unprotected release: ε is infinite, since nothing is proven.

    Source: the definition of DP; the smashed data (the activations at the cut layer) leave the client unchanged.

    >>> no_protection().epsilon
    inf
    """
    return Certificate(
        kind="nothing",
        statement="nothing is proven: the smashed data leave the client as they are; no differential privacy",
        source="by definition",
    )
