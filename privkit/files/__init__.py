"""Files and a user's modules: read within limits, written whole, sealed with a digest, watched."""
