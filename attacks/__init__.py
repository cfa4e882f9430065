"""Attacks on split learning: views in, reconstructions out, on any pair of torch modules.

This library knows neither the training core nor the accountants. `ATTACKS` is the table of what it offers.
"""

if __name__ != "privkit.attacks":
    raise ImportError("import privkit.attacks, not attacks: this folder is a part of the privkit package")

ATTACKS: dict[str, str] = {
    "adaptive": "privkit.attacks.inversion.adaptive:Adaptive",
    "black_box": "privkit.attacks.inversion.black_box:BlackBox",
    "canaries": "privkit.attacks.membership.canaries:Canaries",
    "fsha": "privkit.attacks.hijack.fsha:FSHA",
    "gradient_matching": "privkit.attacks.labels.gradient_matching:GradientMatching",
    "jigsaw": "privkit.attacks.order.jigsaw:Jigsaw",
    "jigsaw_white_box": "privkit.attacks.inversion.jigsaw_white_box:JigsawWhiteBox",
    "label_leak": "privkit.attacks.labels.label_leak:LabelLeak",
    "mean_image": "privkit.attacks.inversion.floors:MeanImage",
    "member_inference": "privkit.attacks.membership.member_inference:MemberInference",
    "mid_grey": "privkit.attacks.inversion.floors:MidGrey",
    "sdar": "privkit.attacks.inversion.sdar:SDAR",
    "unsplit": "privkit.attacks.inversion.unsplit:UnSplit",
    "white_box": "privkit.attacks.inversion.white_box:WhiteBox",
}
"""Name -> "module:object" of every attack; `privkit.registry` looks names up here and in entry points."""
