"""Bridges to other libraries: mechanisms as dp_accounting events and back, and privkit as an opacus accountant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.accountants.interop.events import from_dp_event, to_dp_event
    from privkit.accountants.interop.opacus_accountant import PrivkitAccountant, register

__all__ = ["PrivkitAccountant", "from_dp_event", "register", "to_dp_event"]

__getattr__ = lazy(__name__)
