"""Parts by name: from tables, entry points and import paths."""
