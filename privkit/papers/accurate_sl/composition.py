"""Advanced composition as accurate split learning publishes it (Theorem A.7), without overflow and with a check."""

from __future__ import annotations

from math import expm1, inf, isfinite, log, sqrt, tanh
from typing import Literal, get_args

from privkit.accountants import validate
from privkit.papers import paper
from privkit.papers.contract import ONE_RELEASE_ASSUMPTION
from privkit.shared.certificate import Certificate

_Drift = Literal["published", "kairouz_oh_viswanath"]
LowerModel = Literal["frozen", "trained", "averaged", "dp_trained"]
_TAKEN = {
    "dp_trained": ("updates of the lower model are private themselves, and charged",),
    "trained": ("clients' lower models are never averaged",),
}
"""Training of the lower segment -> the assumptions of the composition about it."""


def theorem_a7_epsilon(epsilon: float, rounds: int, slack: float, *, drift: _Drift = "published") -> float:
    """The ε′ of T = `rounds` ≥ 1 rounds with ε ≥ 0 each, by advanced composition: ε√(2T·ln(1/δ′)) + T·ε·d(ε).

    It is infinite if it exceeds the largest float; `log10_theorem_a7_epsilon` stays finite.

    Args:
        slack: δ′ in (0, 1); the paper writes "for all δ′ > 0", but a probability must be below 1.
        drift: which d(ε) to use: e^ε − 1 ("published"), or the smaller (e^ε − 1)/(e^ε + 1) ("kairouz_oh_viswanath").

    Source: the accurate split learning paper, Theorem A.7 (Dwork, Rothblum and Vadhan 2010, Theorem III.3); the smaller
    drift: Kairouz, Oh and Viswanath 2015, Theorem 3.4.
    """
    e, t, spread = _a7(epsilon, rounds, slack)
    if drift not in get_args(_Drift):
        raise ValueError(f"drift must be one of {', '.join(get_args(_Drift))}, got {drift!r}")
    if drift == "kairouz_oh_viswanath":
        return spread + t * e * tanh(e / 2)
    return spread + t * e * expm1(e) if e < 700 else inf


def log10_theorem_a7_epsilon(epsilon: float, rounds: int, slack: float) -> float:
    """log10 of `theorem_a7_epsilon` as published, for ε > 0; finite even if ε′ exceeds the largest float."""
    e, t, spread = _a7(epsilon, rounds, slack)
    if e == 0:
        raise ValueError("epsilon must be a finite number > 0, got 0: the composed ε is 0 and has no logarithm")
    if e < 700:
        return log(spread + t * e * expm1(e)) / log(10)
    return (log(t) + log(e) + e) / log(10)  # e^−700 and less are left out


def theorem_a7(per_round: Certificate, *, rounds: int, slack: float, lower_model: LowerModel) -> Certificate:
    """The claim of Theorem A.7 (advanced composition) for T = `rounds` adaptive rounds, as a certificate.

    Its ε is infinite if the total δ is 1 or more, or if ε′ exceeds the largest float.

    Args:
        per_round: certificate of one round with finite ε; if it is unsound, the result is unsound, too.
        slack: δ′ in (0, 1), which is added to the rounds' δ.
        lower_model: how the lower segment is trained: "frozen", "trained" (on raw data), "averaged" (on raw data, and
            averaged over clients) or "dp_trained".

    Source: the accurate split learning paper, Theorem A.7.
    """
    if lower_model not in get_args(LowerModel):
        raise ValueError(f"lower_model must be one of {', '.join(get_args(LowerModel))}, got {lower_model!r}")
    if per_round.delta is None or not isfinite(per_round.epsilon):
        raise ValueError("per_round must be a certificate with finite epsilon and delta: there is nothing to compose")
    epsilon = theorem_a7_epsilon(per_round.epsilon, rounds, slack)
    total = rounds * per_round.delta + slack
    why = ""
    if total >= 1:
        epsilon, why = inf, f"; nothing is proven, because the δ of {rounds} rounds add up to {total:.6g}"
    elif not isfinite(epsilon):
        why = f"; it exceeds any floating-point number, while plain sums give {rounds * per_round.epsilon:.6g}"
    objections = [per_round.objection] if per_round.objection else []
    if lower_model == "averaged" or (lower_model == "trained" and per_round.unit == "record"):
        objections.append(
            "the theorem composes the rounds as if each round used the data of one record only, but a lower model "
            "trained on raw data carries a record into every later release of other records"
        )
    quantities = {"rounds": float(rounds), "sum_of_epsilons": rounds * per_round.epsilon}
    if per_round.epsilon > 0:
        quantities["log10_published_epsilon"] = log10_theorem_a7_epsilon(per_round.epsilon, rounds, slack)
    return Certificate(
        kind="differential_privacy",
        statement=f"Theorem A.7 over {rounds} rounds: ε = {epsilon:.6g}{why}",
        epsilon=epsilon,
        delta=total if isfinite(epsilon) else None,
        method="advanced composition, drift published",
        relation=per_round.relation,
        unit=per_round.unit,
        sound=not objections,
        objection="; ".join(objections),
        quantities=quantities,
        assumptions=(
            *(sentence for sentence in per_round.assumptions if sentence != ONE_RELEASE_ASSUMPTION),
            "every round's bound holds whatever the earlier rounds have shown",
            *_TAKEN.get(lower_model, ()),
        ),
        source=f"{paper('accurate_sl').citation}, Theorem A.7",
    )


def _a7(epsilon: float, rounds: int, slack: float) -> tuple[float, int, float]:
    e, t = validate.real("epsilon", epsilon, least=0), validate.whole("rounds", rounds)
    return e, t, e * sqrt(-2 * t * log(validate.delta(slack, "slack")))
