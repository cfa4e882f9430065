"""The audit: it plans and runs cells (one defense, one attack and one seed each), and checks the attacks' numbers."""
