"""The contract of a batch, and the real images that ship inside installed packages."""

import pytest
import torch

from privkit.domains.base import Batch, DatasetSpec
from privkit.domains.images.embedded import Digits, LfwSubset, TinyDigits
from privkit.errors import DataError


def batch_of(x: torch.Tensor, rows: int | None = None) -> Batch:
    """A batch of these images with as many (or `rows`) labels and ids."""
    count = len(x) if rows is None else rows
    return Batch(x=x, y=torch.arange(count) % 3, ids=torch.arange(count) + 10)


@pytest.mark.parametrize(
    ("x", "rows", "complaint"),
    [
        (torch.zeros(2, 1, 4, 4, dtype=torch.float64), 2, "float32"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), 2, "float32"),
        (torch.zeros(2, 4, 4), 2, r"\[N, C, H, W\]"),
        (torch.full((2, 1, 4, 4), 1.001), 2, r"\[0, 1\]"),
        (torch.full((2, 1, 4, 4), -0.001), 2, r"\[0, 1\]"),
        (torch.tensor([0.5, torch.nan]).reshape(2, 1, 1, 1), 2, r"\[0, 1\]"),
        (torch.zeros(2, 1, 4, 4), 3, "as many"),
    ],
)
def test_batch_refuses_what_breaks_its_contract(x: torch.Tensor, rows: int, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        batch_of(x, rows)


def test_batch_keeps_images_labels_and_ids_together() -> None:
    batch = batch_of(torch.rand(5, 1, 4, 4))
    for rows in (slice(1, 3), torch.tensor([4, 0, 2])):
        part = batch[rows]
        assert len(part) == len(part.x)
        for name in ("x", "y", "ids"):
            assert torch.equal(getattr(part, name), getattr(batch, name)[rows])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_batch_moves_as_a_whole(device: str) -> None:
    batch = batch_of(torch.rand(5, 1, 4, 4))
    moved = batch.to(torch.device(device))
    assert {moved.x.device.type, moved.y.device.type, moved.ids.device.type} == {device}
    assert moved.sha256() == batch.sha256()


@pytest.mark.parametrize("part", ["x", "y", "ids"])
def test_hash_changes_with_one_pixel_label_or_id(part: str) -> None:
    batch, other = (batch_of(torch.linspace(0, 1, 48).reshape(3, 1, 4, 4)) for _ in range(2))
    assert other.sha256() == batch.sha256()
    values = getattr(other, part).view(-1)
    values[-1] = values[-2]
    assert other.sha256() != batch.sha256()


def test_hash_does_not_depend_on_the_layout_in_memory() -> None:
    batch = batch_of(torch.rand(3, 2, 4, 4))
    transposed = batch_of(batch.x.contiguous(memory_format=torch.channels_last))
    assert not transposed.x.is_contiguous()
    assert transposed.sha256() == batch.sha256()


@pytest.mark.parametrize(
    ("spec", "images", "shape", "classes", "per_class"),
    [
        (Digits(), 5000, (1, 28, 28), 10, (500, 500)),
        (TinyDigits(), 1797, (1, 8, 8), 10, (174, 183)),
        (LfwSubset(), 200, (1, 25, 25), 2, (100, 100)),
    ],
)
def test_embedded_dataset(
    spec: DatasetSpec, images: int, shape: tuple[int, int, int], classes: int, per_class: tuple[int, int]
) -> None:
    pools = spec.open(None, download=False, train_images=1)
    assert pools.test is None
    assert pools.classes == classes
    assert len(pools.train) == images
    batch = pools.train.take(torch.arange(images).numpy())
    assert batch.x.shape == (images, *shape)
    assert batch.x.min() < 0.02  # the range is used in full, so nothing was scaled twice or not at all
    assert batch.x.max() > 0.98
    assert torch.equal(batch.ids, torch.arange(images))
    counts = torch.bincount(batch.y)
    assert len(counts) == classes
    assert (counts.min(), counts.max()) == per_class


def test_labels_belong_to_their_images() -> None:
    # The mean image of a class is nearest to that class for most digits; with shuffled labels for one in ten.
    pool = TinyDigits().open(None, download=False, train_images=1).train
    batch = pool.take(torch.arange(len(pool)).numpy())
    x = batch.x.flatten(1)
    means = torch.stack([x[batch.y == label].mean(0) for label in range(10)])
    assert (torch.cdist(x, means).argmin(1) == batch.y).float().mean() > 0.85


def test_the_first_hundred_of_lfw_subset_are_faces() -> None:
    # A face fills its image with detail; most of the other patches are smooth.
    pool = LfwSubset().open(None, download=False, train_images=1).train
    batch = pool.take(torch.arange(200).numpy())
    detail = batch.x.diff(dim=3).abs().mean((1, 2, 3)) + batch.x.diff(dim=2).abs().mean((1, 2, 3))
    assert ((detail > detail.median()) == (batch.y == 1)).float().mean() > 0.85
