"""Attacks on split learning: each turns an adversary's observation into a guess at private data.

The attacks run on any pair of torch modules or on a recorded release; this library imports neither the training core
nor the accountants. `ATTACKS` maps names to attacks, and `privkit.attacks.goals` defines what attacks aim at, such as
images or labels. "Own" images (or records) belong to the adversary and are called `auxiliary` in observations;
"victims" are the attacked images. Names are imported on first use.

>>> import torch
>>> from privkit.attacks import WhiteBox
>>> from privkit.attacks.goals import reconstruct, reconstruct_controls
>>> lower = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Flatten())
>>> images = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
>>> private, own = images[:5], images[5:]
>>> observation = reconstruct.observe(lower, private, batch_size=5, auxiliary=own, known=True)
>>> guess = WhiteBox(epochs=1).run(observation, torch.Generator().manual_seed(0))
>>> bool(reconstruct.score(private, guess.images, batch_size=5)["unaligned"]["mse"].mean() < 0.001)
True
>>> [control.passed for control in reconstruct_controls.controls(WhiteBox(), observation, seed=0)]
[True, True]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if __name__ != "privkit.attacks":
    raise ImportError("import privkit.attacks, not attacks: this folder is a part of the privkit package")

if TYPE_CHECKING:
    from privkit.attacks.base import (
        Attack,
        AttackDiverged,
        Mounting,
        NotApplicable,
        Observation,
        QueryResult,
        Scores,
        Session,
        View,
    )
    from privkit.attacks.declaration import check_declared
    from privkit.attacks.goals.distinguish import CanaryObservation
    from privkit.attacks.goals.labels import LabelObservation
    from privkit.attacks.goals.membership import MembershipObservation
    from privkit.attacks.goals.order import Permutation
    from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction

__all__ = [
    "ATTACKS",
    "Attack",
    "AttackDiverged",
    "CanaryObservation",
    "ImageObservation",
    "LabelObservation",
    "MembershipObservation",
    "Mounting",
    "NotApplicable",
    "Observation",
    "Permutation",
    "QueryResult",
    "Reconstruction",
    "Scores",
    "Session",
    "View",
    "check_declared",
]

ATTACKS: dict[str, str] = {
    "adaptive": "privkit.attacks.inversion.adaptive:Adaptive",
    "black_box": "privkit.attacks.inversion.black_box:BlackBox",
    "canaries": "privkit.attacks.membership.canaries:Canaries",
    "drag_reorder": "privkit.attacks.order.drag_reorder:DragReorder",
    "exploit": "privkit.attacks.labels.exploit:ExPLoit",
    "field_order": "privkit.attacks.order.field_order:FieldOrder",
    "fingerprints": "privkit.attacks.inversion.fingerprints:Fingerprints",
    "fora": "privkit.attacks.inversion.fora:FORA",
    "fsha": "privkit.attacks.hijack.fsha:FSHA",
    "gradient_matching": "privkit.attacks.labels.gradient_matching:GradientMatching",
    "jigsaw": "privkit.attacks.order.jigsaw:Jigsaw",
    "jigsaw_white_box": "privkit.attacks.inversion.jigsaw_white_box:JigsawWhiteBox",
    "label_leak": "privkit.attacks.labels.label_leak:LabelLeak",
    "mean_image": "privkit.attacks.inversion.floors:MeanImage",
    "member_inference": "privkit.attacks.membership.member_inference:MemberInference",
    "mid_grey": "privkit.attacks.inversion.floors:MidGrey",
    "mixture_posterior": "privkit.attacks.inversion.mixture_posterior:MixturePosterior",
    "model_completion": "privkit.attacks.labels.model_completion:ModelCompletion",
    "nearest_record": "privkit.attacks.inversion.nearest_record:NearestRecord",
    "pcat": "privkit.attacks.inversion.pcat:PCAT",
    "release_clustering": "privkit.attacks.labels.release_clustering:ReleaseClustering",
    "posterior_mean": "privkit.attacks.inversion.posterior_mean:PosteriorMean",
    "ridge": "privkit.attacks.inversion.ridge:Ridge",
    "sara": "privkit.attacks.inversion.sara:Sara",
    "sdar": "privkit.attacks.inversion.sdar:SDAR",
    "seen_tokens": "privkit.attacks.inversion.seen_tokens:SeenTokens",
    "tail_inversion": "privkit.attacks.labels.tail_inversion:TailInversion",
    "token_decoder": "privkit.attacks.inversion.token_decoder:TokenDecoder",
    "token_search": "privkit.attacks.inversion.token_search:TokenSearch",
    "union": "privkit.attacks.inversion.union:Union",
    "unmix": "privkit.attacks.inversion.unmix:Unmix",
    "unsplit": "privkit.attacks.inversion.unsplit:UnSplit",
    "vocabulary": "privkit.attacks.inversion.vocabulary:Vocabulary",
    "white_box": "privkit.attacks.inversion.white_box:WhiteBox",
}
"""Name -> "module:object" of every attack; `privkit.parts.registry` looks names up here and in entry points."""

__all__ += [target.partition(":")[2] for target in ATTACKS.values()]

__getattr__ = lazy(__name__, ATTACKS.values())
