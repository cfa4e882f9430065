"""Table 11 of accurate split learning: printed bounds beside what their formulas give and what is true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from privkit.accountants.base import Certificate
from privkit.accountants.bounds import gaussian
from privkit.papers.accurate_sl.claims import laplace_epsilon, theorem_3_5_epsilon, theorem_3_5_limit
from privkit.papers.tables import ACCURATE_SL, NAMES_BATCH, ONE_RELEASE, TABLE_11, PrintedBound


@dataclass(frozen=True, kw_only=True)
class Table11Row:
    """One printed bound beside what its formula gives and what is true.

    Attributes:
        printed: the table's own numbers.
        formula: the nearest variant of its number before the factor 2: c√n/σ, or √n/b for Laplace noise.
        exact: the true ε of one release of n numbers in [−1, 1] at the same δ.
        certificate: the printed ε, sound exactly where it is at least `exact`.
    """

    printed: PrintedBound
    formula: float
    exact: float
    certificate: Certificate


def table_11() -> Iterator[Table11Row]:
    """The 24 bounds of Table 11, checked.

    Source: the accurate split learning paper, Table 11; layer sizes from its Table 1.

    >>> [(row.printed.name, row.printed.scale) for row in table_11() if row.certificate.sound]
    [('MLP on IMDB', 0.7)]
    """
    return (_checked(printed) for printed in TABLE_11)


def _checked(printed: PrintedBound) -> Table11Row:
    """The printed bound against the exact one."""
    n, scale, claim = printed.dimensions, printed.scale, printed.epsilon
    if printed.noise == "laplace":
        formula, exact = laplace_epsilon(n, scale, norm="l2") / 2, laplace_epsilon(n, scale, norm="l1")
        why = f"Laplace noise needs the L1 diameter 2n = {2 * n}, not the L2 diameter 2√n = {2 * sqrt(n):g}"
    else:
        formula = theorem_3_5_epsilon(sqrt(n), scale, printed.delta)
        exact = gaussian.epsilon(printed.delta, 2 * sqrt(n) / scale)
        limit = theorem_3_5_limit(printed.delta)[0]
        why = f"Theorem 3.5 is proven for ε < 1 and at this δ no bound above {limit:.4g}"
        if "Names" in printed.name:
            why += f", and dividing the bound of {n} numbers by √{NAMES_BATCH}, the batch size, has no proof"
        elif abs(printed.half / formula - 1) > 0.1:
            why += ", and no variant of its formula gives the printed number"
    objection = "" if claim >= exact else f"the exact ε is {exact:.6g}: {why}"
    certificate = Certificate(
        kind="differential_privacy",
        statement=f"Table 11, {printed.name}, {printed.noise} noise {scale:g}: ε = {claim:g} at δ = {printed.delta:g}",
        epsilon=claim,
        delta=printed.delta,
        lower=exact,
        method="number as printed",
        relation="replace_one",
        unit="record",
        sound=not objection,
        objection=objection,
        quantities={"exact_epsilon": exact, "formula": 2 * formula},
        assumptions=(f"{n} released numbers, each in [−1, 1] (tanh)", ONE_RELEASE),
        source=f"{ACCURATE_SL}, Table 11",
    )
    return Table11Row(printed=printed, formula=formula, exact=exact, certificate=certificate)
