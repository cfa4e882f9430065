"""CutMixSL (Baek et al.): smashed patches of a group of clients, cut and mixed without noise."""
