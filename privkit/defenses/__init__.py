"""The defenses, one per file. Each changes what clients send, how they train, or what they get back."""

from privkit.defenses.base import Defense, Receipt, Release
from privkit.defenses.batch_shuffle import BatchShuffle
from privkit.defenses.none import NoDefense
from privkit.defenses.patch_shuffle import PatchShuffle

DEFENSES: dict[str, str] = {
    "adv": "privkit.defenses.adversarial:Adversarial",
    "batch_shuffle": "privkit.defenses.batch_shuffle:BatchShuffle",
    "blur": "privkit.defenses.blur:Blur",
    "bounded": "privkit.defenses.clip:Bounded",
    "clip": "privkit.defenses.clip:Clip",
    "confusional_labels": "privkit.defenses.confusional_labels:ConfusionalLabels",
    "cutsmashed": "privkit.defenses.cutout:CutSmashed",
    "disco": "privkit.defenses.adversarial:Disco",
    "dp_cutmixsl": "privkit.defenses.dp_cutmixsl:DpCutMixSl",
    "dp_mixsl": "privkit.defenses.dp_cutmixsl:DpMixSl",
    "dp_sl": "privkit.defenses.dp_cutmixsl:DpSl",
    "fedpass": "privkit.defenses.fedpass:FedPass",
    "gaussian_noise": "privkit.defenses.noise:GaussianNoise",
    "grad_perturb": "privkit.defenses.grad_perturb:GradPerturb",
    "information_bottleneck": "privkit.defenses.information_bottleneck:InformationBottleneck",
    "label_decorrelation": "privkit.defenses.nopeek:LabelDecorrelation",
    "laplace_noise": "privkit.defenses.noise:LaplaceNoise",
    "masking": "privkit.defenses.denoising:Masking",
    "max_norm": "privkit.defenses.max_norm:MaxNorm",
    "mixup": "privkit.defenses.cutmix:Mixup",
    "none": "privkit.defenses.none:NoDefense",
    "nopeek": "privkit.defenses.nopeek:NoPeek",
    "orthogonal_map": "privkit.defenses.orthogonal:OrthogonalMap",
    "patch_shuffle": "privkit.defenses.patch_shuffle:PatchShuffle",
    "random_cutmix": "privkit.defenses.cutmix:RandomCutMix",
    "random_cutout": "privkit.defenses.cutout:RandomCutout",
    "scaling": "privkit.defenses.denoising:Scaling",
    "shuffled_cutmix": "privkit.defenses.cutmix:ShuffledCutMix",
    "spectral_shuffle": "privkit.defenses.spectral_shuffle:SpectralShuffle",
    "split_parts": "privkit.defenses.split_parts:SplitParts",
    "token_dropping": "privkit.defenses.fewer_tokens:TokenDropping",
    "token_merging": "privkit.defenses.fewer_tokens:TokenMerging",
    "vanilla_cutmix": "privkit.defenses.cutmix:VanillaCutMix",
    "vanilla_cutout": "privkit.defenses.cutout:VanillaCutout",
}
"""Name -> "module:object" of every defense."""

__all__ = ["DEFENSES", "BatchShuffle", "Defense", "NoDefense", "PatchShuffle", "Receipt", "Release"]
