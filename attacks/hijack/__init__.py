"""Attacks by a malicious server that trains its clients for its own purpose, and their detection by clients."""
