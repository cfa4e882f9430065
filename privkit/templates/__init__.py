"""Templates, one for each kind of part (defense, attack, …); `privkit new` writes a copy with another name."""
