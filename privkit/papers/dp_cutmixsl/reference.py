"""Values of DP-CutMixSL's formulas that were recomputed from its text, and the true minimizers of Corollary 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

from privkit.accountants.bounds import gaussian
from privkit.accountants.bounds.subsampling import without_replacement_epsilon
from privkit.accountants.golden.case import Case
from privkit.papers.dp_cutmixsl.claims import assumed_shift, corollary_1_epsilon, rdp
from privkit.papers.dp_cutmixsl.group_size import best_group, exact_group_size, published_group_size
from privkit.papers.dp_cutmixsl.setting import Mechanism, table_1

_SOURCE = "Oh et al., DP-CutMixSL, Corollary 1, with the parameters of Table 1"


def _size(of: Callable[..., float], mechanism: Mechanism, sigma: float, delta: float = 0.5) -> Callable[[], float]:
    """A group size at order 2, searched among 1000 clients."""
    return lambda: of(replace(table_1(mechanism, group=1, sigma=sigma), clients=1000), 2, delta)


def _rdp(mechanism: Mechanism, group: int) -> Callable[[], float]:
    """Theorem 1 at order 2 and σ = 16/255."""
    return lambda: rdp(table_1(mechanism, group=group, sigma=16 / 255), 2)


def _dp(mechanism: Mechanism, group: int, sigma: float) -> Callable[[], float]:
    """Corollary 1 at order 2 and δ = 0.5."""
    return lambda: corollary_1_epsilon(table_1(mechanism, group=group, sigma=sigma), 2, 0.5)


def _case(
    name: str, what: str, compute: Callable[[], float], expected: float, rel: float, source: str = _SOURCE
) -> Case:
    """A case with a relative tolerance (0: equal)."""
    return Case(id=name, what=what, compute=compute, expected=expected, rel=rel, source=source)


def _assumed(group: int, *, rounds: int = 1, sampled: bool = False) -> Callable[[], float]:
    """Exact ε at δ = 1e-5, σ = 16/255, if the kept patches held the published share of DP-CutMixSL's coordinates."""

    def compute() -> float:
        mu = assumed_shift(table_1("dp_cutmixsl", group=group, sigma=16 / 255)) * sqrt(rounds)
        rate = group / 10 if sampled else 1.0
        return without_replacement_epsilon(1e-5, rate, lambda delta: gaussian.epsilon(delta, mu))

    return compute


_SL: Mechanism = "dp_sl"
_MIX: Mechanism = "dp_mixsl"
_CUT: Mechanism = "dp_cutmixsl"
_ASSUMED = "derived; the published share is an assumption, which no layout of 10 coordinates on 64 patches meets"

CASES: tuple[Case, ...] = (
    _case("A01", "k₂* as published, σ = 16/255", _size(published_group_size, _MIX, 16 / 255), 28.554362913696618, 1e-9),
    _case("A02", "k₃* as published, σ = 16/255", _size(published_group_size, _CUT, 16 / 255), 27.07213238418061, 1e-9),
    _case(
        "A03",
        "k₂* if 16/255 were a variance",
        _size(published_group_size, _MIX, sqrt(16 / 255)),
        7.152574269207099,
        1e-9,
    ),
    _case("A04", "k₂* as published, σ = 8/255", _size(published_group_size, _MIX, 8 / 255), 57.108725827393236, 1e-9),
    _case("A05", "k₃* as published, σ = 32/255", _size(published_group_size, _CUT, 32 / 255), 13.536066192090304, 1e-9),
    _case("A06", "Theorem 1, ε₁(2)", _rdp(_SL, 1), 565.15869140625, 1e-10),
    _case("A07", "Theorem 1, ε₂(2), k = 2", _rdp(_MIX, 2), 141.2896728515625, 1e-10),
    _case("A08", "Theorem 1, ε₃(2), k = 2", _rdp(_CUT, 2), 155.577392578125, 1e-10),
    _case("A09", "Theorem 1, ε₃(2), k = 3", _rdp(_CUT, 3), 75.49560546875, 1e-10),
    _case("A10", "Corollary 1, DP-SL, k = 1, 16/255", _dp(_SL, 1, 16 / 255), 563.5492534938159, 1e-10),
    _case("A11", "Corollary 1, DP-SL, k = 10, 16/255", _dp(_SL, 10, 16 / 255), 565.8518385868099, 1e-10),
    _case("A12", "Corollary 1, DP-MixSL, k = 2, 16/255", _dp(_MIX, 2, 16 / 255), 140.37338211968836, 1e-10),
    _case("A13", "Corollary 1, DP-MixSL, k = 5, 16/255", _dp(_MIX, 5, 16 / 255), 22.606347656326065, 1e-10),
    _case("A14", "Corollary 1, DP-MixSL, k = 10, 16/255", _dp(_MIX, 10, 16 / 255), 6.344734094622447, 1e-10),
    _case("A15", "Corollary 1, DP-CutMixSL, k = 2, 16/255", _dp(_CUT, 2, 16 / 255), 154.66110184625086, 1e-10),
    _case("A16", "Corollary 1, DP-CutMixSL, k = 5, 16/255", _dp(_CUT, 5, 16 / 255), 31.75048828125001, 1e-10),
    _case("A17", "Corollary 1, DP-CutMixSL, k = 10, 16/255", _dp(_CUT, 10, 16 / 255), 11.488313196184945, 1e-10),
    _case("A18", "Corollary 1, DP-SL, k = 2, 8/255", _dp(_SL, 2, 8 / 255), 2259.718474893126, 1e-10),
    _case("A19", "Corollary 1, DP-CutMixSL, k = 5, 8/255", _dp(_CUT, 5, 8 / 255), 127.001953125, 1e-10),
    _case("A20", "Corollary 1, DP-MixSL, k = 2, 32/255", _dp(_MIX, 2, 32 / 255), 34.40612748101647, 1e-10),
    _case("A21", "Corollary 1, DP-MixSL, k = 10, 32/255", _dp(_MIX, 10, 32 / 255), 2.1060439090755705, 1e-10),
    _case("A22", "Corollary 1, DP-CutMixSL, k = 10, 32/255", _dp(_CUT, 10, 32 / 255), 3.3919386844661954, 1e-10),
    _case("A30", "real minimizer of Eq. 23", _size(exact_group_size, _MIX, 16 / 255), 42.14914564774005, 1e-5),
    _case("A31", "real minimizer of Eq. 24", _size(exact_group_size, _CUT, 16 / 255), 91.22227980276115, 1e-5),
    _case("A32", "Eq. 23, δ = 1e-5", _size(exact_group_size, _MIX, 16 / 255, 1e-5), 33.62029504029304, 1e-5),
    _case("A33", "Eq. 24, δ = 1e-5", _size(exact_group_size, _CUT, 16 / 255, 1e-5), 71.38422448926687, 1e-5),
    _case("A34", "whole minimizer of Eq. 23, n = 1000", _size(best_group, _MIX, 16 / 255), 42, 0.0),
    _case("A35", "whole minimizer of Eq. 24, n = 1000", _size(best_group, _CUT, 16 / 255), 91, 0.0),
    _case("B07", "DP-CutMixSL at its share, 3 of 10", _assumed(3, sampled=True), 70.805830735935, 1e-8, _ASSUMED),
    _case("B08", "DP-CutMixSL at its share, 10 of 10", _assumed(10, sampled=True), 19.3786259362126, 1e-8, _ASSUMED),
    _case("B09", "DP-CutMixSL at its share, round-robin pairs", _assumed(2), 130.12578534187287, 1e-9, _ASSUMED),
    _case("B13", "the same, 23,400 rounds", _assumed(2, rounds=23_400), 1828391.958428264, 1e-8, _ASSUMED),
)
