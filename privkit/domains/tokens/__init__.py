"""Token sequences: what one is, and text that is read as such."""
