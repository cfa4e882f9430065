"""Finds parts (defenses, attacks, datasets, …) by name: in tables, entry points and import paths."""
