"""Accurate split learning on noisy signals (Xu et al.): noise on smashed data, followed by masking or scaling."""
