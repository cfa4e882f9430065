"""Helpers for torch, used by training and attacks; they import nothing else of privkit."""
