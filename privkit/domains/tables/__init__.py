"""Table rows: what one is, and tables of real records."""
