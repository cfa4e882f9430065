"""Losses of the server, copies that cannot be batched, and the scores of the task."""

import numpy as np
import pytest
import torch
from sklearn.metrics import matthews_corrcoef, roc_auc_score
from torch import Generator, Tensor, nn

from privkit.defenses import NoDefense
from privkit.domains.images.domain import Images
from privkit.metrics.classification import task_scores
from privkit.training import Clients, SplitProtocol, Stacked, TrainingSpec, evaluate, split_round, train
from privkit.training.losses import message_losses, multi_label, with_loss
from tests.small import random_images

SHAPE = (1, 4, 4)
IMAGES = Images(shape=SHAPE)


class Recurrent(nn.Module):
    """Four steps of four pixels, read one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 5, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        states: Tensor = self.cells(images.flatten(1).unflatten(1, (4, 4)))[0]
        return states.flatten(1)


class TwoHeads(nn.Module):
    """Scores of the classes and a guess of the parity, with a loss over both."""

    def __init__(self) -> None:
        super().__init__()
        self.classes, self.parity = nn.Linear(20, 3), nn.Linear(20, 1)

    def forward(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        return self.classes(smashed), self.parity(smashed).squeeze(1)

    def loss(self, outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        scores, parity = outputs
        right = nn.functional.cross_entropy(scores, labels, reduction="none")
        return right + nn.functional.binary_cross_entropy_with_logits(parity, (labels % 2).float(), reduction="none")


def clients(lower: nn.Module, protocol: SplitProtocol) -> Clients:
    return Clients.build(lower, NoDefense(), IMAGES, classes=3, seed=0, protocol=protocol)


def test_copies_that_cannot_be_batched_run_one_after_another() -> None:
    """Each copy is the module with its own weights, forward and backward, and learns apart from the others."""
    torch.manual_seed(0)
    data, spec = (
        random_images(12, 3, SHAPE),
        TrainingSpec(batch_size=4, optimizer="sgd", learning_rate=0.1, schedule="constant"),
    )
    edge = clients(lower := Recurrent(), SplitProtocol(clients=3))
    assert not edge.lowers.batched
    assert clients(nn.Flatten(), SplitProtocol(clients=3)).lowers.batched
    upper = nn.Linear(20, 3)
    start = [weight.detach().clone() for weight in lower.parameters()]
    train(edge, upper, data, spec, epochs=2, seed=0)
    x = data.x.view(3, 4, *SHAPE)
    for number in range(3):
        alone = edge.lowers.copy(number)
        torch.testing.assert_close(edge.lowers(x)[number], alone(x[number]))
        assert all(not torch.equal(a, b) for a, b in zip(start, alone.parameters(), strict=True))
    stacks = list(edge.lowers.parameters())
    assert all(not torch.equal(stack[0], stack[1]) for stack in stacks)
    few = edge.lowers(x[:2], torch.tensor([2, 0]))
    torch.testing.assert_close(few[0], edge.lowers.copy(2)(data.x[:4]))


def test_uppers_that_cannot_be_batched_run_too() -> None:
    stack = Stacked(nn.Sequential(nn.Unflatten(1, (4, 4)), nn.LSTM(4, 5, batch_first=True)), 2)
    stack.settle(torch.zeros(2, 3, 16))
    states, (last, _) = stack(torch.rand(2, 3, 16))
    assert (stack.batched, states.shape, last.shape) == (False, (2, 3, 4, 5), (2, 1, 3, 5))


@pytest.mark.parametrize("upper_of", ["shared", "own"])
def test_a_server_with_several_outputs_brings_its_own_loss(upper_of: str) -> None:
    """Gradients are those of the same loss on the uncut network."""
    torch.manual_seed(0)
    protocol = SplitProtocol(clients=2, upper=upper_of)  # type: ignore[arg-type]
    edge, heads, data = clients(Recurrent(), protocol), TwoHeads(), random_images(12, 3, SHAPE)
    upper = Stacked(heads, 2) if upper_of == "own" else heads
    x, y = data.x.view(2, 6, *SHAPE), data.y.view(2, 6)
    found = split_round(edge, upper, x, y, Generator())
    smashed = [edge.lowers.copy(number)(x[number]) for number in range(2)]
    losses = torch.stack([heads.loss(heads(rows), labels).mean() for rows, labels in zip(smashed, y, strict=True)])
    torch.testing.assert_close(found.losses, losses.detach())
    losses.mean().backward()
    got = [weight.grad for weight in upper.parameters()]
    for one, other in zip(got, heads.parameters(), strict=True):
        assert one is not None
        assert other.grad is not None
        torch.testing.assert_close(
            one.mean(0) if upper_of == "own" else one, other.grad if upper_of == "own" else other.grad / 1
        )
    assert evaluate(edge, upper, data, batch_size=6, seed=0).accuracy.n == 12


def test_a_loss_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one value per record, shape \[4\], got \[\]"):
        message_losses(torch.zeros(4, 3), torch.zeros(2, 2, dtype=torch.int64), lambda outputs, labels: outputs.mean())


def test_several_labels_a_record() -> None:
    logits = torch.randn(6, 3, generator=Generator().manual_seed(0))
    several = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]])
    expected = nn.functional.binary_cross_entropy_with_logits(logits, several.float())
    torch.testing.assert_close(multi_label(logits, several).mean(), expected)
    upper = with_loss(nn.Linear(20, 3), "multi_label")
    edge, data = clients(Recurrent(), SplitProtocol()), random_images(6, 3, SHAPE)
    found = split_round(edge, upper, data.x.unsqueeze(0), several.unsqueeze(0), Generator())
    own = upper(edge.lowers.copy(0)(data.x))
    torch.testing.assert_close(found.losses[0], nn.functional.binary_cross_entropy_with_logits(own, several.float()))
    heads = TwoHeads()
    assert with_loss(heads, "multi_label").loss == heads.loss  # its own comes first


@pytest.mark.parametrize("classes", [2, 5])
def test_scores_of_the_task_are_sklearns(classes: int) -> None:
    draws = np.random.default_rng(classes)
    labels = draws.integers(classes, size=60)
    scores = draws.normal(size=(60, classes)) + np.eye(classes)[labels]
    found = task_scores(scores, labels)
    sure = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    area = roc_auc_score(labels, sure[:, 1]) if classes == 2 else roc_auc_score(labels, sure, multi_class="ovr")
    assert found.mcc is not None
    assert found.mcc.value == pytest.approx(matthews_corrcoef(labels, scores.argmax(1)), abs=1e-12)
    assert found.auc is not None
    assert found.auc.value == pytest.approx(area, abs=1e-12)
    assert found.accuracy.value == (scores.argmax(1) == labels).mean()


def test_scores_of_several_labels_are_sklearns() -> None:
    draws = np.random.default_rng(0)
    labels = draws.integers(2, size=(40, 3))
    scores = draws.normal(size=(40, 3)) + labels
    found = task_scores(scores, labels)
    assert found.auc is not None
    assert found.auc.value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found.mcc is not None
    assert found.mcc.value == pytest.approx(matthews_corrcoef(labels.ravel(), scores.ravel() > 0), abs=1e-12)
    assert found.accuracy.n == len(labels)  # labels of one record depend on each other


def test_one_class_alone_has_no_auc() -> None:
    found = task_scores(np.zeros((4, 2)), np.zeros(4, dtype=np.int64))
    assert found.mcc is not None
    assert (found.auc, found.mcc.value, found.accuracy.value) == (None, 0.0, 1.0)
