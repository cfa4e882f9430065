"""What is released, to whom and how often: the specifications that the accountants charge."""
