"""Patch shuffling (Yao et al.): patches of a batch are permuted before they leave the client."""
