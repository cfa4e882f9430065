"""An audit: the plan, one cell of it, and the checks of an attack's numbers."""
