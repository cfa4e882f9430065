"""An audit: the plan, one cell of it, and what an attack's numbers are worth."""
