"""Attacks that reconstruct private records from the smashed data that clients release."""
