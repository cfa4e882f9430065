"""The ε of a row whose attack leads the clients through more rounds than the honest training has."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from privkit.attacks.goals.reconstruct import ImageObservation, Reconstruction
from privkit.attacks.hijack.fsha import FSHA
from privkit.audit.run import run_audit


@pytest.mark.parametrize(("led", "charged"), [(2, 4), (10, 13)])
@pytest.mark.usefixtures("no_report", "no_controls")
def test_rounds_that_a_server_leads_are_charged(tmp_path: Path, monkeypatch: Any, led: int, charged: int) -> None:
    """Three rounds are an epoch of training. The attacked images cross once more after it."""

    def leads(self: FSHA, observed: ImageObservation, generator: Generator, session: Any = None) -> Reconstruction:
        assert observed.clients is not None
        for _ in range(led):
            observed.clients.round(lambda view: torch.zeros_like(view.smashed))
        return Reconstruction(images=torch.zeros(20, *observed.image_shape))

    monkeypatch.setattr(FSHA, "run", leads)
    run = run_audit(
        out=tmp_path / "run",
        dataset="tiny_digits",
        threads=1,
        budget="smoke:private=60,auxiliary=80,test=60,victims=20,epochs=1",
        training="batch_size=20",
        defense="gaussian_noise:sigma=50",
        attack="fsha",
        escalate=0,
    )
    row = next(row for row in run.rows if "gaussian" in row.defense)
    assert row.status == "done"
    assert row.certificate is not None
    assert f"over {charged} rounds" in row.certificate.statement
