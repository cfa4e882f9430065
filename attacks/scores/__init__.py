"""Measures of guesses at images and orders, and of scores that separate two kinds of examples. Imports no attack."""
