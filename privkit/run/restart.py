"""Starts a stage (training or attack) over if it cannot continue from its saved state."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from privkit.attacks.base import AttackDiverged, NotApplicable
from privkit.attacks.outputs import BadOutput
from privkit.errors import DataError, StorageError, TrainingDiverged, UsageError, one_line
from privkit.files.storage import remove
from privkit.torch_utils.out_of_memory import ran_out

_Result = TypeVar("_Result")
_OTHER_FAULTS = (
    *(StorageError, UsageError, DataError, MemoryError, TrainingDiverged),
    *(NotApplicable, AttackDiverged, BadOutput),
)
"""Errors that a saved state does not cause."""


def or_anew(stage: Callable[[], _Result], saved: Path, tell: Callable[[str], None]) -> _Result:
    """Return the result of `stage` (a training or an attack). If it fails with a state in `saved`, remove the state and
    run it once more: an intact state may not fit the networks, for example because of missing keys or wrong shapes."""
    resumed = os.path.lexists(saved)
    try:
        return stage()
    except _OTHER_FAULTS:
        raise
    except Exception as error:
        if not resumed or ran_out(error):
            raise
        tell(f"could not go on from {saved}, so that this stage starts over ({one_line(error)})")
        remove(saved)
    return stage()
