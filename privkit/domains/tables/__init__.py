"""Table rows: their domain, and tables of real records."""
