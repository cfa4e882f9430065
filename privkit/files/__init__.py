"""Files and users' modules: limits on reading, atomic writing, checksums, and the files that user code reads."""
