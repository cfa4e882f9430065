"""Small types that every library shares; they import nothing of privkit."""
