"""Confusional labels: the loss is of soft labels, predictions are decoded, and clusters name them all the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from privkit.audit.run import run_audit
from privkit.defenses.confusional_labels import ConfusionalLabels
from privkit.training import Clients, TrainingSpec, evaluate, split_round, train
from tests.small import IMAGES, built, digits, generator


def fitted(stage: ConfusionalLabels) -> tuple[Clients, nn.Module]:
    edge, upper = built(stage)
    return edge, edge.fitted(upper, IMAGES, 0)


def test_the_loss_is_of_soft_labels_and_the_gradient_that_comes_back_is_its() -> None:
    stage = ConfusionalLabels(seed=3)
    edge, upper = fitted(stage)
    data = digits(20)
    played = split_round(edge, upper, data.x.unsqueeze(0), data.y.unsqueeze(0), generator())
    smashed = edge.lowers(data.x.unsqueeze(0))[0].detach().requires_grad_()
    loss = nn.functional.cross_entropy(upper(smashed), stage.matrix(10).float()[data.y])
    loss.backward()
    torch.testing.assert_close(played.losses[0], loss.detach())
    torch.testing.assert_close(played.cut_gradient[0], smashed.grad)


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.9])
def test_exact_predictions_of_soft_labels_are_decoded_to_labels(spread: float) -> None:
    stage = ConfusionalLabels(spread=spread)
    soft = stage.matrix(7)
    assert (soft.argmax(1) != torch.arange(7)).all()
    torch.testing.assert_close(soft.sum(1), torch.ones(7, dtype=torch.float64))
    head = stage.head()
    assert head.eval()(soft.log()).softmax(1).sub(torch.eye(7)).abs().max() < 1e-6
    assert head.train()(soft.log()).equal(soft.log())


@pytest.mark.slow
def test_the_model_learns_and_names_true_labels() -> None:
    edge, upper = fitted(ConfusionalLabels())
    data = digits(1000)
    trained = train(edge, upper, data, TrainingSpec(batch_size=50), epochs=8, seed=0)
    assert evaluate(trained.edge, trained.upper, data, batch_size=50, seed=0).accuracy.value > 0.6


@pytest.mark.slow
def test_one_known_label_of_each_class_names_the_others(tmp_path: Path) -> None:
    """Soft labels rename labels; records of one label still share a direction."""
    settings: dict[str, Any] = {"dataset": "digits", "budget": "smoke:private=400,auxiliary=100,epochs=1", "threads": 1}
    run = run_audit(defense="confusional_labels", attack="release_clustering", out=tmp_path / "run", **settings)
    assert run.rows[-1].answers["label_accuracy"].value > 0.8
