"""A budget stops a training before it is exceeded."""

from dataclasses import replace
from pathlib import Path

from privkit.accountants.ledger import Ledger, PrivacyBudget
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.defenses.noise import GaussianNoise
from privkit.domains.base import Batch
from privkit.training import Clients, TrainingSpec, train
from tests.small import built, digits, generator

SPEC = TrainingSpec(batch_size=20, freeze_lower=True)


def one_epoch(edge: Clients, data: Batch) -> SplitMechanism:
    """What one epoch releases of a record, by the receipt of a round."""
    receipt = edge.release(data.x[None, :20], data.y[None, :20], generator()).receipt
    found = receipt.mechanism()
    assert found is not None
    return found


def test_training_ends_before_the_ledger_is_overdrawn(tmp_path: Path) -> None:
    data = digits(100)
    edge, upper = built(GaussianNoise(sigma=400.0))
    epoch = one_epoch(edge, data)
    with Ledger(tmp_path / "planned.jsonl") as book:
        book.charge(replace(epoch, rounds=3))
        limit = book.epsilon(1e-5).epsilon * 1.01
    with Ledger(tmp_path / "run.jsonl", budget=PrivacyBudget(epsilon=limit, delta=1e-5)) as book:
        trained = train(edge, upper, data, SPEC, epochs=5, seed=0, goes_on=lambda _: book.affords(epoch))
        assert len(trained.curve) == len(book) == trained.release_count.epochs == 3
        assert book.epsilon(1e-5).epsilon <= limit
    sent = edge.release(data.x[None, :20], data.y[None, :20], generator())
    assert sent.receipt.certificate(trained.release_count).epsilon <= limit


def test_training_that_may_go_on_is_that_without_a_budget() -> None:
    data, curves = digits(60), []
    for goes_on in (None, lambda _: True):
        edge, upper = built(GaussianNoise(sigma=1.0))
        curves.append(train(edge, upper, data, SPEC, epochs=2, seed=0, goes_on=goes_on).curve)
    assert curves[0] == curves[1]
