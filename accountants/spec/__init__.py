"""Specifications of what is released, to whom and how often, from which the accountants compute privacy bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.spec.mechanism import SplitMechanism
    from privkit.accountants.spec.mixing import (
        DirichletCounts,
        DirichletRatio,
        FixedCounts,
        FixedRatio,
        Ratio,
        RealizedRatios,
    )
    from privkit.accountants.spec.parts import (
        CutMix,
        EveryRound,
        Mixup,
        Noise,
        NoMixing,
        Poisson,
        PrivateUpdates,
        WithoutReplacement,
    )
    from privkit.accountants.spec.records import from_json, to_json
    from privkit.accountants.spec.secrets import HiddenMask, RandomAllocation, ShuffledEpochs
    from privkit.accountants.spec.sensitivity import (
        Ball,
        BoxLabels,
        Categories,
        Clamp,
        ClipSet,
        Known,
        OneHot,
        PatchBall,
    )
    from privkit.accountants.spec.shift import ShiftLaw

__all__ = [
    "Ball",
    "BoxLabels",
    "Categories",
    "Clamp",
    "ClipSet",
    "CutMix",
    "DirichletCounts",
    "DirichletRatio",
    "EveryRound",
    "FixedCounts",
    "FixedRatio",
    "HiddenMask",
    "Known",
    "Mixup",
    "NoMixing",
    "Noise",
    "OneHot",
    "PatchBall",
    "Poisson",
    "PrivateUpdates",
    "RandomAllocation",
    "Ratio",
    "RealizedRatios",
    "ShiftLaw",
    "ShuffledEpochs",
    "SplitMechanism",
    "WithoutReplacement",
    "from_json",
    "to_json",
]

__getattr__ = lazy(__name__)
