"""Helpers around torch for the training core and the attacks; they import nothing else of privkit."""
