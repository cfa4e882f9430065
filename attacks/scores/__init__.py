"""Measures of a guess: images, orders, and scores that separate two kinds of examples. Imports no attack."""
