"""Files and users' modules: limits on reading, atomic writing, checksums, and a record of the files that user code
reads.
"""
