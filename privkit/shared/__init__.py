"""Small types that all packages of privkit share; they import nothing else of privkit."""
