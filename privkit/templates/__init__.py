"""Files to start from, one a kind of part: `privkit new` writes a copy with another name."""
