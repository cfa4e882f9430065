"""Attacks that recover images: from a release, with or without the lower segment that made it."""
