"""Files and users' modules: limits on reading, atomic writing, checksums, and files that user code reads."""
