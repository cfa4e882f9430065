"""Attacks that recover labels from the gradients that come back across the cut, or from the released data."""
