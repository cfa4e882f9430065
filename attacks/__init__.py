"""Attacks on split learning: views in, reconstructions out, on any pair of torch modules.

This library knows neither the training core nor the accountants. `ATTACKS` is the table of what it offers.
"""

if __name__ != "privkit.attacks":
    raise ImportError("import privkit.attacks, not attacks: this folder is a part of the privkit package")

ATTACKS: dict[str, str] = {
    "adaptive": "privkit.attacks.adaptive:Adaptive",
    "black_box": "privkit.attacks.black_box:BlackBox",
    "canaries": "privkit.attacks.canaries:Canaries",
    "fsha": "privkit.attacks.fsha:FSHA",
    "gradient_matching": "privkit.attacks.gradient_matching:GradientMatching",
    "jigsaw": "privkit.attacks.jigsaw:Jigsaw",
    "jigsaw_white_box": "privkit.attacks.jigsaw_white_box:JigsawWhiteBox",
    "label_leak": "privkit.attacks.label_leak:LabelLeak",
    "mean_image": "privkit.attacks.floors:MeanImage",
    "member_inference": "privkit.attacks.member_inference:MemberInference",
    "mid_grey": "privkit.attacks.floors:MidGrey",
    "sdar": "privkit.attacks.sdar:SDAR",
    "unsplit": "privkit.attacks.unsplit:UnSplit",
    "white_box": "privkit.attacks.white_box:WhiteBox",
}
"""Name -> "module:object" of every attack; `privkit.registry` looks names up here and in entry points."""
