"""Lower bounds on ε from the scores of an attack."""
