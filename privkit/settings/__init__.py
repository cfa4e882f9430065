"""What a user named: read from flags, files and calls, checked, and made into one configuration."""
