"""DP-CutMixSL (Oh et al.): noisy smashed data of a group of clients, mixed by Mixup or CutMix."""
