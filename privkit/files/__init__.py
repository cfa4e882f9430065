"""Files and users' modules: limits on reading, atomic writing, checksums, and observation of files that user code
reads.
"""
