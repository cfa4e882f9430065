"""The schedule of the learning rate, for every number of steps; torch's own divides by zero at nine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.audit.run import run_audit
from privkit.torch_utils.one_cycle import one_cycle

ROOT = Path(__file__).resolve().parents[2]


def rates(make: Callable[[torch.optim.Optimizer], Any], steps: int) -> list[float]:
    """The learning rate of every step."""
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    schedule = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("warm_up", [0.1, 0.25, 0.5, 1.0])
def test_every_number_of_steps_has_a_schedule(warm_up: float) -> None:
    def plain(optimizer: torch.optim.Optimizer, total: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 1.0, total_steps=total, pct_start=warm_up, cycle_momentum=False
        )

    for steps in range(42):
        found = rates(partial(one_cycle, peak=1.0, steps=steps, warm_up=warm_up), steps)
        assert all(0 < rate <= 1 for rate in found)
        if warm_up * (steps + 1) != 1:
            assert found == rates(partial(plain, total=steps + 1), steps)


def test_there_is_no_other_schedule() -> None:
    files = [path for part in ("privkit", "attacks") for path in (ROOT / part).rglob("*.py")]
    users = {path.resolve().relative_to(ROOT) for path in files if "OneCycleLR" in path.read_text()}
    assert users == {Path("privkit/torch_utils/one_cycle.py")}


@pytest.mark.usefixtures("no_report")
def test_a_training_of_nine_steps(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"defense": "none", "dataset": "tiny_digits", "threads": 1, "out": tmp_path / "run"}
    budget = "smoke:private=10,auxiliary=40,test=10,victims=10,epochs=9"
    run = run_audit(attack="mean_image", budget=budget, training="batch_size=10", **settings)
    assert [row.status for row in run.rows] == ["done"]
    assert len(run.rows[0].training_curve) == 9
