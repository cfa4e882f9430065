"""Images: datasets of pictures and their checks."""
