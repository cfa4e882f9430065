"""Privacy accountants: they prove guarantees from a mechanism's parameters and state every assumption in words.

The package imports neither torch, nor the training code, nor the attacks. `ACCOUNTANTS` maps names to functions
that return a certificate. Every function raises `ValueError` for an argument outside the range that its docstring
gives, and the message names the allowed range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if __name__ != "privkit.accountants":
    raise ImportError("import privkit.accountants, not accountants: this folder is a part of the privkit package")

if TYPE_CHECKING:
    from privkit.accountants.answer import RenyiCurve, delta, epsilon, epsilons, no_protection, rdp, trade_off
    from privkit.accountants.calibration import Calibrated, calibrate
    from privkit.accountants.compile import curve
    from privkit.accountants.ledger import BudgetSpent, Charge, Ledger, PrivacyBudget
    from privkit.accountants.ledger_file import LedgerError, LedgerFile
    from privkit.accountants.region import Region
    from privkit.accountants.table import mechanism_of
    from privkit.accountants.van_trees import ErrorFloor, GaussianPrior, error_floor
    from privkit.shared.certificate import Certificate

__all__ = [
    "ACCOUNTANTS",
    "BudgetSpent",
    "Calibrated",
    "Certificate",
    "Charge",
    "ErrorFloor",
    "GaussianPrior",
    "Ledger",
    "LedgerError",
    "LedgerFile",
    "PrivacyBudget",
    "Region",
    "RenyiCurve",
    "calibrate",
    "curve",
    "delta",
    "epsilon",
    "epsilons",
    "error_floor",
    "mechanism_of",
    "no_protection",
    "rdp",
    "trade_off",
]

ACCOUNTANTS: dict[str, str] = {
    "batch_shuffle": "privkit.accountants.shuffles.certificates:batch_shuffle",
    "entropy_after_attack": "privkit.accountants.shuffles.entropy:entropy_after_attack",
    "epsilon": "privkit.accountants.answer:epsilon",
    "no_protection": "privkit.accountants.answer:no_protection",
    "patch_shuffle": "privkit.accountants.shuffles.certificates:patch_shuffle",
}
"""Name -> "module:function"; each function returns a `Certificate`."""
__getattr__ = lazy(__name__)
