"""privkit: what a split-learning defense proves, what attacks recover from it, and what it costs.

Everything is imported on first use, so you load only the libraries that you use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privkit.lazy import lazy

if TYPE_CHECKING:
    from privkit.audit.attack import Attacked, attack
    from privkit.audit.compare import compare
    from privkit.audit.run import AuditRun, run_audit
    from privkit.recording.recorder import Recorder
    from privkit.settings.config import AuditConfig

__version__ = "0.1.0"
__all__ = ["Attacked", "AuditConfig", "AuditRun", "Recorder", "__version__", "attack", "compare", "run_audit"]

__getattr__ = lazy(__name__)


def __dir__() -> list[str]:
    """The public names, whether already imported or not."""
    return __all__
