"""Queries of a recording whose lower segment lacks the defense are masked and mixed like the recorded rounds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privkit.attacks.base import View
from privkit.audit.run import run_audit
from privkit.recording.write import write_recording
from privkit.reports.schema import Row
from tests.recording.made import Half
from tests.small import IMAGES, digits, generator

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")
CLIENTS, BATCH = 2, 20
PRIVATE, OWN = digits(240).x.split([40, 200])
SEATS = torch.arange(CLIENTS).repeat(BATCH, 1)  # a message of every client


def released(kind: str) -> View:
    """The private images behind `Half`: mixed with public or hidden ratios, or masked."""
    draws = generator()
    if kind == "masked":
        kept = (torch.rand(40, 1, 64, generator=draws) < 0.5).float()
        return View(round=0, smashed=PRIVATE / 2 * kept.view(40, 1, 8, 8), weights=kept)
    ratio = torch.rand(BATCH, 1, 1, generator=draws)
    weights = torch.cat([ratio, 1 - ratio], 1)
    mixed = (PRIVATE.view(CLIENTS, BATCH, 1, 8, 8).transpose(0, 1) / 2 * weights[..., None, None]).sum(1)
    view = View(round=0, smashed=mixed, mixed=CLIENTS, clients=SEATS)
    return view if kind == "hidden" else View(**{**vars(view), "weights": weights})


def rows(folder: Path, kind: str, *attacks: str) -> dict[str, Row]:
    view = released(kind)
    clients = view.mixed
    members: Tensor | None = torch.arange(40).view(CLIENTS, BATCH).T.contiguous() if clients > 1 else None
    write_recording(
        folder / "r",
        [view],
        domain=IMAGES,
        files={},
        own=(OWN, None),
        truth=(PRIVATE, None),
        members=members,
        name=kind,
        batch_size=40 // clients,
        clients=clients,
        lower={"builder": f"{Half.__module__}:Half"},
    )
    given: dict[str, Any] = {"budget": "smoke:victims=40,auxiliary=200", "threads": 1, "escalate": 0}
    run = run_audit(recorded=folder / "r", trust=["tests"], attack=list(attacks), out=folder / "run", **given)
    return {row.attack: row for row in run.rows}


@pytest.mark.parametrize("kind", ["mixed", "masked"])
def test_attacks_by_queries_win_as_on_the_clients_themselves(tmp_path: Path, kind: str) -> None:
    attack = "mixture_posterior:epochs=0" if kind == "mixed" else "seen_tokens:epochs=0"
    for row in rows(tmp_path, kind, attack, "ridge:epochs=0", "black_box:epochs=1").values():
        assert (row.status, row.reason, row.doubt) == ("done", "", "")
        if not row.attack.startswith("black_box"):
            assert row.recovered["unaligned"]["mse"].value < 0.8 * row.floors["mean_image"]["unaligned"]["mse"].value


def test_answers_without_a_hidden_mixing_are_no_evidence(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, "hidden", "ridge:epochs=0").values()
    assert row.status == "done"
    assert row.doubt.startswith(
        "the release is mixed by weights that were not recorded, and the recorded lower segment"
    )
