"""Attacks on split learning: views in, reconstructions out, on any pair of torch modules.

This library knows neither the training core nor the accountants. `ATTACKS` is the table of what it offers.
"""

if __name__ != "privkit.attacks":
    raise ImportError("import privkit.attacks, not attacks: this folder is a part of the privkit package")

ATTACKS: dict[str, str] = {
    "black_box": "privkit.attacks.black_box:BlackBox",
    "jigsaw": "privkit.attacks.jigsaw:Jigsaw",
    "mean_image": "privkit.attacks.floors:MeanImage",
    "mid_grey": "privkit.attacks.floors:MidGrey",
    "unsplit": "privkit.attacks.unsplit:UnSplit",
    "white_box": "privkit.attacks.white_box:WhiteBox",
}
"""Name -> "module:object" of every attack; `privkit.registry` looks names up here and in entry points."""
