"""Helpers around torch for the training core and the attacks alike; they import nothing of privkit."""
