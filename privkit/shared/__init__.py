"""Small types that all packages of privkit share; they import no other package of privkit."""
