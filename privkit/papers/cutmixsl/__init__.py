"""CutMixSL (Baek et al.): patches of several clients' smashed data, cut and mixed without noise."""
