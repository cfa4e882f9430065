"""privkit: what a split-learning defense proves, what attacks recover from it, and what it costs.

Everything is imported on first use, so that each library costs only itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privkit.audit.run import AuditRun, run_audit
    from privkit.config import AuditConfig

__version__ = "0.1.0"
__all__ = ["AuditConfig", "AuditRun", "__version__", "run_audit"]

_HOME = {"AuditConfig": "privkit.config", "AuditRun": "privkit.audit.run", "run_audit": "privkit.audit.run"}


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'privkit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
