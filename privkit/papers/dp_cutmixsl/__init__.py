"""DP-CutMixSL (Oh et al.): noisy smashed data of several clients, mixed by Mixup or CutMix."""
