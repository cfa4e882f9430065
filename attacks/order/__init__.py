"""Attacks that recover an order: which token came from which image, and from which place in this image."""
