"""Token sequences: their domain, and datasets of texts."""
