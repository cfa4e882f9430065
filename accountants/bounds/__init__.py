"""Upper bounds on privacy loss: one theorem a file."""
