"""A run on disk: its folder, its records, what its numbers are made of, and what a user hears on the way."""
