"""The example attack of the how-to page runs as it is printed there, and keeps the contract."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, nn

from privkit.attacks.declaration import check_declared
from privkit.attacks.goals.labels import controls, observe
from privkit.attacks.scores.leak import pooled_auc

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-part.md"


@pytest.fixture
def attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    code = (
        PAGE.read_text("utf-8").partition("## Example: an attack on labels")[2].split("```python\n")[1].split("```")[0]
    )
    (tmp_path / "gradient_peak.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gradient_peak", raising=False)
    import gradient_peak  # type: ignore[import-not-found]

    return gradient_peak.GradientPeak()


def test_the_example_is_a_whole_attack(attack: Any) -> None:
    check_declared(attack)
    assert [control.passed for control in controls(attack, 0)] == [True, True]


def test_the_example_runs_on_any_pair_of_modules(attack: Any) -> None:
    draws = Generator().manual_seed(0)
    upper = nn.Linear(16, 2)
    with torch.no_grad():
        upper.bias.copy_(torch.tensor([2.0, -2.0]))  # a rare label has the longer gradients
    labels = (torch.rand(200, generator=draws) < 0.5).long()
    observation = observe(nn.Flatten(), upper, torch.rand(200, 1, 4, 4, generator=draws), labels, batch_size=50)
    scores = attack.run(observation, draws)
    assert pooled_auc(scores.values.numpy(), labels[scores.examples].numpy()).auc > 0.9
