"""Accurate split learning on noisy signals (Xu et al.): noise on smashed data, then masking or scaling it."""
