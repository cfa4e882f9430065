"""Table rows: their domain, and datasets of tables."""
