"""The class filter of datasets: what it keeps, how it numbers labels, and what it refuses."""

import numpy as np
import pytest
import torch

from privkit.domains.base import TEST_ID_OFFSET, Pools, RecordPool
from privkit.domains.chosen import only_classes
from privkit.domains.images.arrays import ArrayPool
from privkit.domains.images.embedded import TinyDigits
from privkit.errors import DataError, UsageError
from privkit.parts.registry import parse
from privkit.settings.early import check_parts


def pools(labels: list[int], *, classes: int = 10) -> Pools:
    """Images whose grey says their row, with the same labels in both parts."""
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    train, test = (ArrayPool(images=images, labels=np.array(labels), first_id=i) for i in (0, TEST_ID_OFFSET))
    return Pools(train=train, test=test, classes=classes)


def test_records_of_other_classes_are_left_out_and_ids_stay() -> None:
    kept = only_classes("some", pools([4, 1, 0, 0, 4, 7]), [4, 0])
    assert (kept.classes, len(kept.train)) == (2, 4)
    assert kept.train.targets().tolist() == [0, 1, 1, 0]
    batch = kept.train.take(np.array([3, 1]))
    assert batch.ids.tolist() == [4, 2]
    assert batch.y.tolist() == [0, 1]  # in the order of classes=[4,0]
    assert (batch.x[:, 0, 0, 0] * 255).round().tolist() == [4, 2]
    assert kept.test is not None
    assert kept.test.take(np.array([0])).ids.tolist() == [TEST_ID_OFFSET]


def test_every_kind_of_dataset_takes_the_filter_and_gives_it_back() -> None:
    for name in ("tiny_digits", "definitions", "auto_mpg"):
        component = parse("datasets", f"{name}:classes=[0,2]")
        check_parts({"dataset": component.label})
        assert component.label == f"{name}:classes=[0,2]"
        assert parse("datasets", component.label) == parse("datasets", component.to_json()) == component
        assert component.spec.domain == parse("datasets", name).spec.domain
        opened = component.spec.open(None, download=False, train_images=1)
        whole = parse("datasets", name).spec.open(None, download=False, train_images=1)
        assert len(opened.train) == np.isin(whole.train.targets(), [0, 2]).sum()
        assert set(opened.train.take(np.arange(len(opened.train))).y.tolist()) == {0, 1}


def test_other_options_stand_beside_the_filter() -> None:
    check_parts({"dataset": "definitions:length=8,classes=[0,2]"})
    spec = parse("datasets", "definitions:length=8,classes=[0,2]").spec
    assert (spec.length, spec.classes) == (8, [0, 2])
    with pytest.raises(UsageError, match="unknown option"):
        check_parts({"dataset": "definitions:lengths=8,classes=[0,2]"})


def test_a_dataset_without_the_filter_is_described_as_before() -> None:
    assert parse("datasets", "tiny_digits").to_json() == {"name": "tiny_digits"}
    assert type(parse("datasets", "tiny_digits").spec) is TinyDigits


@pytest.mark.parametrize("classes", ["[0]", "[]", "4", "[0,0]", "[true,1]", "[0,-1]", "[0,.5]", "cats"])
def test_a_filter_that_leaves_one_class_is_refused(classes: str) -> None:
    with pytest.raises(UsageError, match=r"at least two different class numbers such as \[0, 4\]"):
        parse("datasets", f"tiny_digits:classes={classes}")


@pytest.mark.parametrize(
    ("labels", "classes", "why"),
    [
        ([0, 4], [0, 12], r"has no class 12; name some of 0 to 9"),
        ([0, 4], [0, 5], r"has no record of class 5"),
    ],
)
def test_a_class_without_records_is_refused(labels: list[int], classes: list[int], why: str) -> None:
    with pytest.raises(DataError, match=why):
        only_classes("some", pools(labels), classes)


def test_records_with_several_labels_have_no_classes() -> None:
    domain = ArrayPool(images=np.zeros((2, 4, 4)), labels=np.zeros(2, int)).take(np.arange(2)).domain
    several = RecordPool(x=torch.zeros(2, 1, 4, 4), y=torch.tensor([[0, 1], [1, 1]]), domain=domain)
    with pytest.raises(DataError, match="several labels per record"):
        only_classes("faces", Pools(train=several, test=None, classes=2), [0, 1])
