"""Images: datasets of pictures, and what can be checked of them."""
