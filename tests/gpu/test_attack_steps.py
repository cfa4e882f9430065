"""A training step of an attack never waits for the host: seen on the CPU, where waiting is free and goes unnoticed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from privkit.audit.run import run_audit
from privkit.parts.registry import parse, part_table
from tests.gpu.exceptions import exceptions

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_report", "no_controls")]

LOOKS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
"""What makes the host wait for a number of a tensor."""
CALLED = {
    "adaptive": "adaptive:passes=2",
    "fsha": "fsha:epochs=1",
    "jigsaw": "jigsaw:kicks=1,epochs=1",
    "jigsaw_white_box": "jigsaw_white_box:kicks=1,epochs=1",
    "sara": "sara:predictor_epochs=2,epochs=2",
    "union": "union:passes=2",
    "unmix": "unmix:passes=2",
    "white_box": "white_box:epochs=1",
}
"""How an attack is called that has more passes or epochs than it needs here."""
LOOKING = exceptions("waits for the host")
"""Attacks that do look once per step; never more than a few times."""
NO_STEPS = {
    "drag_reorder",
    "token_decoder",
    "token_search",
    "vocabulary",
}  # no optimizer; of texts, whose audit is longer
TRAIN = [
    name
    for name in sorted(part_table("attacks"))
    if "epochs" in parse("attacks", name).spec.__dataclass_fields__ and name not in NO_STEPS
]


@contextmanager
def gaps() -> Iterator[list[int]]:
    """Looks at a number since the step before, for each step of any optimizer; those of the optimizer itself aside."""
    found: list[int] = []
    looks = 0
    within = False

    def before(*_: Any) -> None:
        nonlocal within, looks
        found.append(looks)
        within, looks = True, 0

    def after(*_: Any) -> None:
        nonlocal within
        within = False

    def counted(look: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*given: Any, **named: Any) -> Any:
            nonlocal looks
            looks += not within
            return look(*given, **named)

        return counting

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    with pytest.MonkeyPatch.context() as patch:
        for name in LOOKS:
            patch.setattr(Tensor, name, counted(getattr(Tensor, name)))
        yield found
    for handle in handles:
        handle.remove()


def test_a_look_is_noticed() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    with gaps() as found:
        for _ in range(3):
            weight.grad = torch.ones(3)
            if weight.sum() > 0:
                optimizer.step()
    assert found == [1, 1, 1]


@pytest.mark.parametrize("name", TRAIN)
def test_an_attack_looks_at_numbers_once_an_epoch(name: str, tmp_path: Path) -> None:
    epochs = int(parse("attacks", name).spec.goal == "labels")  # of the model, whose rounds such attacks read
    with gaps() as found:
        run = run_audit(
            defense="patch_shuffle" if name == "jigsaw" else "none",
            attack=CALLED.get(name, name),
            dataset="tiny_digits",
            budget=f"smoke:private=40,auxiliary=400,test=20,victims=10,epochs={epochs},attack_epochs=3",
            training="batch_size=10",
            threads=1,
            out=tmp_path / "run",
        )
    assert {(row.status, row.reason) for row in run.rows} == {("done", "")}
    assert len(found) > 10
    if name in LOOKING:
        assert sorted(found)[len(found) // 2] <= 4
    else:
        assert sum(map(bool, found)) < len(found) / 3, found[:50]
