"""σ-privacy: counts, odds and entropies that enumeration or a second derivation confirmed."""

from __future__ import annotations

from privkit.accountants.golden.case import Case
from privkit.accountants.shuffles import entropy, laws, permutations, variants

BATCH, SWAPPED, CROSSED = (("a1", "a2"), ("b1", "b2")), (("b1", "b2"), ("a1", "a2")), (("a1", "b1"), ("a2", "b2"))
EQ_7, EQ_8 = "Yao et al., patch shuffling, Eq. 7", "Yao et al., patch shuffling, Eq. 8"


def _eq_7(keep: float) -> float:
    """log10 of Eq. 7 at the paper's size."""
    return permutations.log10_total_permutations(196, 50, permutations.kept_tokens(196, keep))


CASES: tuple[Case, ...] = (
    Case(
        id="F01",
        what="log10 of Eq. 7, N=196, B=50, k=.5",
        compute=lambda: _eq_7(0.5),
        expected=26542.737310745197,
        rel=1e-9,
        source=EQ_7,
    ),
    Case(
        id="F02",
        what="log10 of Eq. 7, N=196, B=50, k=.4",
        compute=lambda: _eq_7(0.4),
        expected=28239.734373121762,
        rel=1e-9,
        source=EQ_7,
    ),
    Case(
        id="F03",
        what="log10 of Eq. 7, N=196, B=50, k=.25",
        compute=lambda: _eq_7(0.25),
        expected=30700.90573798164,
        rel=1e-9,
        source=EQ_7,
    ),
    Case(
        id="F04",
        what="log10 of Eq. 7, N=196, B=50, k=.15",
        compute=lambda: _eq_7(0.15),
        expected=32398.51993712377,
        rel=1e-9,
        source=EQ_7,
    ),
    Case(
        id="F05",
        what="log10 of Eq. 8 / Eq. 7, N=196, B=50, k=.4",
        compute=lambda: permutations.log10_target_share(196, 50, permutations.kept_tokens(196, 0.4)),
        expected=-615.484214203916,
        rel=1e-9,
        source=EQ_8,
    ),
    Case(
        id="F06",
        what="outcomes of Algorithm 2 as written, N=3, B=2, K=1",
        compute=lambda: variants.distinct_outcomes(3, 2, 1, variant="algorithm_2"),
        expected=216,
        source="enumeration",
    ),
    Case(
        id="F07",
        what="outcomes of Algorithm 2 as written, N=4, B=2, K=2",
        compute=lambda: variants.distinct_outcomes(4, 2, 2, variant="algorithm_2"),
        expected=3456,
        source="enumeration",
    ),
    Case(
        id="F08",
        what="outcomes with a final shuffle inside each image, N=3, B=2, K=1",
        compute=lambda: variants.distinct_outcomes(3, 2, 1, variant="final_shuffle"),
        expected=684,
        source="enumeration",
    ),
    Case(
        id="F09",
        what="outcomes if kept patches stay in place, N=3, B=2, K=1",
        compute=lambda: variants.distinct_outcomes(3, 2, 1, variant="kept_in_place"),
        expected=133,
        source="enumeration",
    ),
    Case(
        id="F10",
        what="outcomes whose first image is in order, N=3, B=3, K=2",
        compute=lambda: permutations.target_permutations(3, 3, 2),
        expected=72,
        source="enumeration",
    ),
    Case(
        id="F11",
        what="probability of the unmoved release if the images were exchanged, N=B=2, K=1",
        compute=lambda: float(laws.release_probability(BATCH, SWAPPED, kept=1, variant="algorithm_2")),
        expected=0.0,
        source="enumeration",
    ),
    Case(
        id="F12",
        what="total variation under cross assignment, N=B=2, K=1",
        compute=lambda: float(laws.total_variation(BATCH, CROSSED, kept=1, variant="algorithm_2")),
        expected=0.75,
        rel=1e-12,
        source="enumeration",
    ),
    Case(
        id="F13",
        what="probability that two patches of one image share an output, N=196, B=50, k=.4",
        compute=lambda: laws.intersection_odds(196, 50, permutations.kept_tokens(196, 0.4)).same_image,
        expected=0.17393998982878453,
        rel=1e-9,
        source="derived; simulated",
    ),
    Case(
        id="F16",
        what="largest H(π|Z) in bits at exact success .5, N=9",
        compute=lambda: entropy.fano_bits(9, 0.5),
        expected=10.234564522071667,
        rel=1e-9,
        source="Fano's inequality",
    ),
    Case(
        id="F17",
        what="largest H(π|Z) in bits at patch accuracy .9, N=196",
        compute=lambda: entropy.patch_entropy_bits(196, 0.9),
        expected=151.3755038097213,
        rel=1e-6,
        source="derived, rencontres numbers",
    ),
    Case(
        id="F18",
        what="largest H(π|Z) in bits at patch accuracy .5, N=4",
        compute=lambda: entropy.patch_entropy_bits(4, 0.5),
        expected=4.021985873405966,
        rel=1e-6,
        source="derived; the tilted law attains it",
    ),
)
