"""Attacks by a malicious server that trains the clients for its own purpose, and their detection by the clients."""
