"""A run on disk: its folder, its result rows, the provenance of its numbers, and its displayed progress."""
