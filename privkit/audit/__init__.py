"""An audit: its plan, its cells (one defense, one attack, one seed each), and the checks of an attack's numbers."""
