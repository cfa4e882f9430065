"""Parts by name: tables, entry points and import paths."""
