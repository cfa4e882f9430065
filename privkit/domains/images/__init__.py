"""Images: their domain, and datasets of pictures."""
