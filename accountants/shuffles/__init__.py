"""What shuffling patches and batches proves, and what it does not."""
