"""Accountants: what a mechanism's parameters prove, with every assumption in words. Imports no torch.

This library knows neither the training core nor the attacks. `ACCOUNTANTS` is the table of what it offers.
"""

if __name__ != "privkit.accountants":
    raise ImportError("import privkit.accountants, not accountants: this folder is a part of the privkit package")

ACCOUNTANTS: dict[str, str] = {
    "batch_shuffle": "privkit.accountants.shuffles.certificates:batch_shuffle",
    "entropy_after_attack": "privkit.accountants.shuffles.entropy:entropy_after_attack",
    "epsilon": "privkit.accountants.answer:epsilon",
    "no_protection": "privkit.accountants.base:no_protection",
    "patch_shuffle": "privkit.accountants.shuffles.certificates:patch_shuffle",
}
"""Name -> "module:function"; each returns a `Certificate`."""
