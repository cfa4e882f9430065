"""Records with several labels each train, are measured and attacked; what reads one label per record says so."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from privkit import domains, run_audit
from privkit.audit.goals.label_adversary import one_of
from privkit.domains.base import Batch, Pools, RecordPool
from privkit.domains.images.embedded import TinyDigits
from privkit.domains.partition import Dirichlet
from privkit.errors import DataError, UsageError
from privkit.metrics.classification import task_scores
from privkit.parts.registry import part_table
from privkit.shared.interval import clopper_pearson

SMALL: dict[str, Any] = {
    "dataset": "digit_facts",
    "budget": "smoke:private=200,auxiliary=100,test=60,victims=20,epochs=2",
}


@dataclass(frozen=True, kw_only=True)
class DigitFacts:
    """Digits, of which three things are asked: is it even, above four, a prime number?"""

    name: ClassVar[str] = "digit_facts"
    domain: ClassVar[str] = "images"

    def open(self, root: Path | None, *, download: bool, train_images: int) -> Pools:
        pool = TinyDigits().open(root, download=download, train_images=train_images).train
        digits = pool.take(torch.arange(len(pool)).numpy())
        facts = torch.tensor([[d % 2 == 0, d > 4, d in (2, 3, 5, 7)] for d in digits.y.tolist()]).long()
        return Pools(train=RecordPool(x=digits.x, y=facts, domain=digits.domain), test=None, classes=3)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(domains.DATASETS, "digit_facts", "tests.audit.test_several_labels:DigitFacts")
    part_table.cache_clear()
    yield
    part_table.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_an_audit_with_several_labels_a_record(tmp_path: Path) -> None:
    attacks = ["label_leak:positive=2", "member_inference", "nearest_record", "release_clustering", "sdar"]
    attacks.append("release_clustering:named_by=likeness")
    found = run_audit(
        **SMALL,
        defense="none",
        attack=attacks,
        training="loss=multi_label,batch_size=20",
        out=tmp_path / "run",
    )
    likeness = next(row for row in found.rows if row.attack.endswith("likeness"))
    assert likeness.reason == "release_clustering:named_by=likeness needs images of its own with one label each"
    rows = {row.attack.partition(":")[0]: row for row in found.rows if row is not likeness}
    assert {name: row.status for name, row in rows.items()} == {
        "label_leak": "done",
        "member_inference": "not_applicable",
        "nearest_record": "done",
        "release_clustering": "not_applicable",
        "sdar": "not_applicable",
    }
    assert (
        rows["member_inference"].reason
        == "member_inference reads one label per record, and these records have several each"
    )
    # In the first cell, which trains the model, as in the others, which read it from the run folder.
    assert rows["sdar"].reason.endswith("with a server that has a loss of its own or loss=multi_label")
    leak = rows["label_leak"]
    assert leak.accuracy is not None
    assert leak.accuracy.n == 60
    assert leak.accuracy.value > 0.55
    assert set(leak.task) == {"mcc", "auc"}
    assert 0 <= leak.answers["auc"].value <= 1
    assert "each record has 3 labels: the attack asked whether label 2 is among them" in leak.notes
    assert all(check.passed for row in rows.values() for check in row.checks if check.decisive)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "each record has 3 labels, and cross-entropy takes one; use --training loss=multi_label"),
        (
            {"defense": "mixup", "protocol": "psl:clients=2", "training": "loss=multi_label,batch_size=10"},
            "mixup reads one label per record, and these records have several",
        ),
    ],
)
def test_what_takes_one_label_is_refused_before_any_training(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        run_audit(
            **{**SMALL, "defense": "none", "attack": "label_leak", "training": "batch_size=20", **settings},
            out=tmp_path / "run",
        )
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_batch_takes_whole_numbers_or_floats_of_zero_and_one() -> None:
    x, ids = torch.zeros(2, 1, 4, 4), torch.arange(2)
    batch = Batch(x=x, y=torch.tensor([[0.0, 1.0], [1.0, 1.0]]), ids=ids)
    assert batch.y.dtype == torch.int64
    assert batch[1:].y.tolist() == [[1, 1]]
    for wrong in (torch.tensor([[0, 2], [1, 1]]), torch.tensor([[0.5, 1.0], [1.0, 1.0]])):
        with pytest.raises(DataError, match="several labels per record must be 0 or 1 each"):
            Batch(x=x, y=wrong, ids=ids)
    with pytest.raises(DataError, match=r"labels must be \[N\], one class number per record, or \[N, L\] of 0 and 1"):
        Batch(x=x, y=torch.zeros(2, 1, 1), ids=ids)


def test_the_interval_counts_records_and_not_their_labels() -> None:
    labels = torch.tensor([[0, 1, 1, 0]] * 10).numpy()
    scores = torch.tensor([[-1.0, 1.0, 1.0, 1.0]] * 10).double().numpy()
    found = task_scores(scores, labels).accuracy
    assert (found.value, found.n) == (0.75, 10)
    assert (found.low, found.high) == (clopper_pearson(7, 10).low, clopper_pearson(8, 10).high)


def test_combinations_of_labels_are_dealt_out_like_classes() -> None:
    labels = torch.tensor([[0, 1], [1, 0], [1, 1]]).repeat(20, 1)
    shares = Dirichlet(alpha=0.5).assign(labels, clients=3, seed=0)
    numbers = Dirichlet(alpha=0.5).assign(torch.arange(3).repeat(20), clients=3, seed=0)
    assert torch.equal(shares.rows, numbers.rows)


def test_one_attribute_of_several() -> None:
    labels = torch.tensor([[0, 1], [1, 0]])
    assert (one_of(labels, 1) == 1).tolist() == [True, False]
    assert torch.equal(one_of(torch.tensor([3, 1]), 1), torch.tensor([3, 1]))
