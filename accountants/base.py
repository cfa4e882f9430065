"""The Rényi curve of a run, and the certificate of a release without protection."""

from __future__ import annotations

from dataclasses import dataclass

from privkit.shared.certificate import Certificate, Relation, Unit


@dataclass(frozen=True, kw_only=True)
class RenyiCurve:
    """Rényi differential privacy of a whole run at A orders: `values[i]` is an upper bound, in nats, on the Rényi
    divergence of order `orders[i]` > 1."""

    orders: tuple[float, ...]
    values: tuple[float, ...]
    method: str  # the bound that was used, in words
    relation: Relation
    unit: Unit  # what neighbors differ in: a record or a client
    assumptions: tuple[str, ...]  # one sentence for each assumption
    source: str  # papers and theorems
    versions: dict[str, str]  # versions of the libraries that took part


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
