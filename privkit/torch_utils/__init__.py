"""What torch leaves open, for the training core and the attacks alike; imports nothing of privkit."""
