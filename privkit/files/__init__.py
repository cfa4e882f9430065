"""Files and users' modules: limits on reading, atomic writing, checksums, and a log of files that user code reads."""
