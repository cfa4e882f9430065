"""Files and a user's modules: limits on reading, atomic writing, checksums, and which files user code reads."""
