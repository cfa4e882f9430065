"""Small ideas that every library shares; they import nothing of privkit."""
