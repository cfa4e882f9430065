"""Parts (defenses, attacks, datasets, …) by name: from tables, entry points and import paths."""
