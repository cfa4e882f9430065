"""Defenses: one file each; each turns smashed data into a release and a receipt of what really happened."""

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.none import NoDefense
from privkit.defenses.patch_shuffle import PatchShuffle

DEFENSES: dict[str, str] = {
    "adv": "privkit.defenses.adversarial:Adversarial",
    "batch_shuffle": "privkit.defenses.batch_shuffle:BatchShuffle",
    "blur": "privkit.defenses.blur:Blur",
    "bounded": "privkit.defenses.bounded:Bounded",
    "clip": "privkit.defenses.clip:Clip",
    "cutsmashed": "privkit.defenses.cutsmashed:CutSmashed",
    "disco": "privkit.defenses.disco:Disco",
    "dp_cutmixsl": "privkit.defenses.dp_cutmixsl:DpCutMixSl",
    "dp_mixsl": "privkit.defenses.dp_mixsl:DpMixSl",
    "dp_sl": "privkit.defenses.dp_sl:DpSl",
    "gaussian_noise": "privkit.defenses.gaussian_noise:GaussianNoise",
    "grad_perturb": "privkit.defenses.grad_perturb:GradPerturb",
    "laplace_noise": "privkit.defenses.laplace_noise:LaplaceNoise",
    "masking": "privkit.defenses.masking:Masking",
    "mixup": "privkit.defenses.mixup:Mixup",
    "none": "privkit.defenses.none:NoDefense",
    "nopeek": "privkit.defenses.nopeek:NoPeek",
    "patch_shuffle": "privkit.defenses.patch_shuffle:PatchShuffle",
    "random_cutmix": "privkit.defenses.random_cutmix:RandomCutMix",
    "random_cutout": "privkit.defenses.random_cutout:RandomCutout",
    "scaling": "privkit.defenses.scaling:Scaling",
    "shuffled_cutmix": "privkit.defenses.shuffled_cutmix:ShuffledCutMix",
    "spectral_shuffle": "privkit.defenses.spectral_shuffle:SpectralShuffle",
    "split_parts": "privkit.defenses.split_parts:SplitParts",
    "token_dropping": "privkit.defenses.token_dropping:TokenDropping",
    "token_merging": "privkit.defenses.token_merging:TokenMerging",
    "vanilla_cutmix": "privkit.defenses.vanilla_cutmix:VanillaCutMix",
    "vanilla_cutout": "privkit.defenses.vanilla_cutout:VanillaCutout",
}
"""Name -> "module:object" of every defense."""

__all__ = ["DEFENSES", "BatchShuffle", "Defense", "NoDefense", "PatchShuffle", "Receipt", "Release"]
