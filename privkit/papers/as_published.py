"""The papers' own formulas: the ε that a paper would claim for a mechanism, and whether it is a valid bound."""

from __future__ import annotations

from typing import Literal

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import DirichletCounts, DirichletRatio, FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, EveryRound, Mixup, NoMixing, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, has_secrets
from privkit.accountants.spec.sensitivity import BoxLabels, Clamp, OneHot
from privkit.papers.accurate_sl.claims import laplace_epsilon, theorem_3_5
from privkit.papers.contract import claimed
from privkit.papers.dp_cutmixsl.claims import best_order, corollary_1, theorem_1
from privkit.papers.dp_cutmixsl.setting import GroupRelease, Mechanism
from privkit.shared.certificate import Certificate

PaperWithFormula = Literal["dp_cutmixsl", "accurate_sl"]
_MECHANISMS: dict[type, Mechanism] = {NoMixing: "dp_sl", Mixup: "dp_mixsl", CutMix: "dp_cutmixsl"}
TABLE_1_ORDER = 2.0  # the Rényi order in DP-CutMixSL's Table 1, which also fixes δ = .5


def as_published(
    mechanism: SplitMechanism, delta: float, *, paper: PaperWithFormula | None = None, order: float | None = None
) -> Certificate:
    """The privacy claim (ε, δ) that a paper's formula makes about a mechanism, whether or not it is a valid bound.

    Args:
        mechanism: what is released, with which noise and mixing; it must be a single release.
        delta: δ in (0, 1).
        paper: "dp_cutmixsl" (Corollary 1 if k of n clients are sampled, otherwise Theorem 1) or "accurate_sl" (Theorem
            3.5; the formula of Table 11 for Laplace noise). None takes "accurate_sl" for Laplace noise and for releases
            without labels, mixing and sampling; otherwise "dp_cutmixsl".
        order: Rényi order of DP-CutMixSL's formulas, > 1; None takes the order with the smallest ε at `delta`.

    Returns:
        A certificate. If the formula is not a valid bound for this mechanism, `sound` is False and `objection` says
        why.

    Raises:
        ValueError: if the paper has no formula for the mechanism.

    Source: DP-CutMixSL, Theorem 1 and Corollary 1; accurate split learning, Theorem 3.5 and Table 11.

    >>> from privkit.accountants.spec.parts import Noise
    >>> one = SplitMechanism(
    ...     smashed=Clamp(low=0, high=2, dimensions=4), noise=Noise(smashed=1), lower_model="frozen"
    ... )
    >>> as_published(one, 1e-5).sound
    False
    """
    if mechanism.relation != "replace_one" or mechanism.unit != "record":
        raise ValueError("the papers' formulas are for replacing one record")
    if has_secrets(mechanism):
        raise ValueError("the papers have no formula for random allocation, hidden masks or randomized response")
    if mechanism.rounds > 1:
        raise ValueError(
            "the papers' formulas are for one release: compare at rounds = 1; the only theorem on several rounds is "
            "A.7 of accurate split learning (privkit.papers.accurate_sl.composition)"
        )
    if mechanism.lower_model != "frozen":
        raise ValueError(
            "the papers' formulas cover releases alone and leave out noisy updates of the lower model: use the sound "
            "accounting, or lower_model='frozen' for the releases"
        )
    if getattr(mechanism.mixing, "colluding", False):
        raise ValueError("the papers' formulas leave out clients that collude: use the sound accounting")
    if paper is None:
        alone = mechanism.labels is None and isinstance(mechanism.mixing, NoMixing)
        alone = alone and isinstance(mechanism.participation, EveryRound)
        paper = "accurate_sl" if alone or mechanism.noise.law == "laplace" else "dp_cutmixsl"
    if paper == "accurate_sl":
        return _accurate_sl(mechanism, delta)
    if mechanism.noise.law != "gaussian":
        raise ValueError("DP-CutMixSL has Gaussian noise only")
    setting = _setting(mechanism)
    sampled = isinstance(mechanism.participation, WithoutReplacement)
    order = best_order(setting, delta) if order is None else order
    return (corollary_1 if sampled else theorem_1)(setting, order=order, delta=delta)


def _setting(mechanism: SplitMechanism) -> GroupRelease:
    clip, labels, mixing, part = mechanism.smashed, mechanism.labels, mechanism.mixing, mechanism.participation
    assert not isinstance(mixing, HiddenMask)  # refused before
    if not isinstance(clip, Clamp):
        raise ValueError("DP-CutMixSL bounds every coordinate: give dimensions and clip_high")
    if not isinstance(part, EveryRound | WithoutReplacement):
        raise ValueError("DP-CutMixSL samples k of n clients: use without_replacement")
    if not isinstance(labels, OneHot | BoxLabels | None):
        raise ValueError("DP-CutMixSL's labels are one-hot or lie in [0, 1]^L")
    group = part.chosen if isinstance(part, WithoutReplacement) else mixing.group
    ratio, concentration = None, None
    if not isinstance(mixing, NoMixing):
        if isinstance(mixing.ratio, FixedRatio):
            ratio = max(mixing.ratio.ratios)
        elif isinstance(mixing.ratio, FixedCounts):
            ratio = max(mixing.ratio.counts) / sum(mixing.ratio.counts)
        elif isinstance(mixing.ratio, DirichletRatio | DirichletCounts):
            concentration = mixing.ratio.concentration  # Fig. 7 then puts 1/k for the ratio
        else:
            raise ValueError("DP-CutMixSL has no formula for realized ratios")
    return GroupRelease(
        mechanism=_MECHANISMS[type(mixing)],
        sigma=mechanism.noise.smashed,
        sigma_labels=mechanism.noise.labels,
        dimensions=clip.dimensions,
        clip=clip.high - clip.low,
        label_dimensions=labels.classes if isinstance(labels, BoxLabels) else 2,
        labels="none" if labels is None else "one_hot" if isinstance(labels, OneHot) else "unit_box",
        classes=None if not isinstance(labels, OneHot) else 10,
        group=group,
        clients=part.clients if isinstance(part, WithoutReplacement) else group,
        mixing_ratio=ratio,
        concentration=concentration,
        patches=mixing.patches if isinstance(mixing, CutMix) else None,
        noise_site=mechanism.noise.site,
        sampling="without_replacement" if isinstance(part, WithoutReplacement) else "partition",
    )


def _accurate_sl(mechanism: SplitMechanism, delta: float) -> Certificate:
    if mechanism.labels is not None or not isinstance(mechanism.mixing, NoMixing):
        raise ValueError("accurate split learning releases smashed data without labels and without mixing")
    if not isinstance(mechanism.participation, EveryRound):
        raise ValueError("accurate split learning samples nobody")
    clip, scale = mechanism.smashed, mechanism.noise.smashed
    if mechanism.noise.law == "laplace":
        if not isinstance(clip, Clamp):
            raise ValueError("Table 11's Laplace rows are for outputs of tanh: give dimensions, clip_low and clip_high")
        claim = laplace_epsilon(clip.dimensions, scale, norm="l2") * (clip.high - clip.low) / 2
        truth = laplace_epsilon(clip.dimensions, scale, norm="l1") * (clip.high - clip.low) / 2
        return claimed(
            f"Laplace mechanism as published: ε = {claim:.6g} for one release",
            claim,
            delta,
            lower=truth if clip.dimensions == 1 else None,
            method="L2 diameter over the scale, as published",
            objection="" if clip.dimensions == 1 else f"Laplace noise needs the L1 diameter: pure ε is {truth:.6g}",
            source="accurate split learning, Table 11",
        )
    return theorem_3_5(sensitivity=clip.sensitivity("replace_one", "l2"), sigma=scale, delta=delta)
