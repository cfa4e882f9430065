"""Patch SplitNN (Mabuchi and Ishikawa): one client network for each patch, so that no machine sees a whole image."""
