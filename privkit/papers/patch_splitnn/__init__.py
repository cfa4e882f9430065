"""Patch SplitNN (Mabuchi and Ishikawa): one upper model for each patch, so that no machine sees a whole image."""
