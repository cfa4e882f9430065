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
    """Run `stage` and return its result. If it fails on a saved state, remove the state and run it once more.

    `stage` is a training or an attack: it creates new networks and continues from the file `saved`, if it exists. An
    intact state may still not fit the networks, because of another architecture, missing keys or wrong shapes.

    >>> or_anew(lambda: "result", Path("/none"), print)
    'result'
    """
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
