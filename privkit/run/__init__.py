"""A run on disk: its folder, its records, the provenance of its numbers, and its progress for the user."""
