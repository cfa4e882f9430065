"""The command that runs one cell of a run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from privkit.reports.schema import Row
from privkit.settings.table import FLAGS

_OF_THE_RUN = {
    **{setting.flag: setting.kind is bool for setting in FLAGS if not setting.of_cell},
    **{"--vary": False, "--junit": False, "--annotations": False, "--json": True, "--quiet": True},
}
"""Flags that a cell has of its own, or that say how the whole run is done and shown -> whether it has no value."""


def cell_command(argv: Sequence[str], row: Row) -> str:
    """A command that runs one cell alone, beside the undefended baseline; empty if the run was started from Python.

    >>> from privkit.reports.schema import Row
    >>> shared = dict(status="done", dataset="d", model="m", protocol="sl", partition="iid", auxiliary="disjoint")
    >>> row = Row(cell="c", defense="mixup", attack="sdar", seed=1, attacked="private", batch_size=5, **shared)
    >>> cell_command(["bin/privkit", "audit", "--seed", "0", "--seed=1", "--budget", "smoke", "--quiet"], row)
    'privkit audit --budget smoke --defense mixup --attack sdar --seed 1'
    >>> cell_command(["privkit", "audit", "--grid=grid.toml", "--workers", "2"], row)
    'privkit audit --dataset d --model m --config=grid.toml --defense mixup --attack sdar --seed 1'
    >>> cell_command(["privkit", "audit", "--recorded", "their", "--attack", "all"], row)
    'privkit audit --recorded their --attack sdar --seed 1'
    """
    if len(argv) < 2 or argv[1] not in ("audit", "frontier") or Path(argv[0]).name not in ("privkit", "__main__.py"):
        return ""
    kept, words = [], iter(argv[2:])
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("--grid"):  # whose dataset and model may be lists
            kept += ["--dataset", row.dataset, "--model", row.model, word.replace("--grid", "--config", 1)]
        elif name not in _OF_THE_RUN:
            kept.append(word)
        elif not _OF_THE_RUN[name] and not equals:
            next(words, None)
    recorded = any(word.partition("=")[0] == "--recorded" for word in argv)  # which brings its defense
    defense = () if recorded else ("--defense", row.defense)
    return shlex.join(["privkit", "audit", *kept, *defense, "--attack", row.attack, "--seed", str(row.seed)])
