"""Attacks that recover images from a release, with or without knowledge of the lower segment."""
