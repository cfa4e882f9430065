"""Attacks that tell members from non-members: from losses, and from planted canaries."""
