"""CutMixSL (Baek et al.): smashed patches of several clients, cut and mixed without noise."""
