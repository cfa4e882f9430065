"""Attacks by a malicious server that trains its clients for itself, and how clients detect them."""
