"""Doors to other accounting libraries: events of dp_accounting, and privkit as an accountant of opacus."""
