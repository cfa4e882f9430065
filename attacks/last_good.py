"""What is left of a training that diverged: its last good state, in the session and not only in memory."""

from __future__ import annotations

from typing import Any

from privkit.attacks.base import Session


def keep(session: Session, state: dict[str, Any]) -> None:
    """Save for certain: a session may let some saves pass, as long as it has a `keep` that lets none.

    Args:
        session: of a training that ends here.
        state: its last good one, which nothing has changed since.

    >>> from privkit.attacks.base import NoSession
    >>> keep(NoSession(), {})
    """
    getattr(session, "keep", session.save)(state)
