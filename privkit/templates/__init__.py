"""Templates, one for each kind of part: `privkit new` writes a copy with another name."""
