"""The audit: it plans and computes cells (one defense, attack and seed each), and checks the attacks' numbers."""
