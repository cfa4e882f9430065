"""A user's settings: read from flags, files and calls, checked, and combined into one configuration."""
