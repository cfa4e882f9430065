"""Upper bounds on privacy loss: one theorem a file."""

BOUNDS: dict[str, str] = {
    "gaussian": "privkit.accountants.bounds.gaussian_bound:gaussian_bound",
    "renyi": "privkit.accountants.bounds.renyi_composition:renyi_bound",
    "pure": "privkit.accountants.bounds.pure:pure_bound",
    "numerical_composition": "privkit.accountants.bounds.numerical_composition:composed_bound",
}
"""Name -> "module:function" of every theorem: `Steps` in, a `Bound` out, or None if it does not hold for them."""
