"""Patch SplitNN (Mabuchi and Ishikawa): an upper model a patch, so that no machine sees a whole image."""
