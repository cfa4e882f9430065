"""Private, auxiliary and test images: which rows they are, that they are disjoint, and what too few images do."""

import numpy as np
import pytest
import torch

from privkit.domains.base import TEST_ID_OFFSET, Pools
from privkit.domains.images.arrays import ArrayPool
from privkit.domains.images.domain import Images
from privkit.domains.images.embedded import TinyDigits
from privkit.domains.splits import split
from privkit.errors import DataError


def pool(images: int, first_id: int = 0) -> ArrayPool:
    """Tiny images whose first pixel is their row."""
    pixels = np.zeros((images, 2, 2), dtype=np.uint8)
    pixels[:, 0, 0] = np.arange(images) % 256
    return ArrayPool(images=pixels, labels=np.arange(images) % 10, first_id=first_id)


def pools(train: int, test: int | None = None) -> Pools:
    """A dataset with or without an official test set."""
    return Pools(train=pool(train), test=None if test is None else pool(test, TEST_ID_OFFSET), classes=10)


def test_too_few_records_are_refused_with_the_names_of_the_parts() -> None:
    said = "3 records are too few for the parts of private=200, auxiliary=200, test=100, each of at least one"
    with pytest.raises(DataError, match=said):
        split(pools(3), private=200, auxiliary=200, test=100, seed=0)


def test_parts_are_the_documented_rows_of_the_permutation() -> None:
    parts = split(pools(100), private=40, auxiliary=20, test=10, seed=3)
    order = np.random.default_rng(3).permutation(100)
    assert parts.private.ids.tolist() == order[:40].tolist()
    assert parts.auxiliary.ids.tolist() == order[80:].tolist()
    assert parts.test.ids.tolist() == order[70:80].tolist()
    assert parts.classes == 10
    assert parts.domain == Images(shape=(1, 2, 2))
    for part in (parts.private, parts.auxiliary, parts.test):  # an id names its image and its label
        assert torch.equal((part.x[:, 0, 0, 0] * 255).round().long(), part.ids)
        assert torch.equal(part.y, part.ids % 10)


@pytest.mark.parametrize("official_test", [None, 50])
@pytest.mark.parametrize("train", [30, 70, 200])
def test_parts_are_disjoint(train: int, official_test: int | None) -> None:
    parts = split(pools(train, official_test), private=40, auxiliary=20, test=10, seed=0)
    ids = torch.cat([parts.private.ids, parts.auxiliary.ids, parts.test.ids])
    assert len(ids.unique()) == len(ids)


def test_official_test_set_is_used_where_there_is_one() -> None:
    parts = split(pools(60, 30), private=40, auxiliary=20, test=10, seed=0)
    assert (len(parts.private), len(parts.auxiliary), len(parts.test)) == (40, 20, 10)  # test takes no training image
    assert parts.test.ids.min() >= TEST_ID_OFFSET
    assert max(parts.private.ids.max(), parts.auxiliary.ids.max()) < TEST_ID_OFFSET
    small = split(pools(60, 4), private=40, auxiliary=20, test=10, seed=0)
    assert sorted((small.test.ids - TEST_ID_OFFSET).tolist()) == [0, 1, 2, 3]


def test_seed_decides_the_parts() -> None:
    real = TinyDigits().open(None, download=False, train_images=400)
    parts = [split(real, private=200, auxiliary=100, test=50, seed=seed) for seed in (0, 0, 1)]
    assert [len(part) for part in (parts[0].private, parts[0].auxiliary, parts[0].test)] == [200, 100, 50]
    first, again, other = (part.hashes() for part in parts)
    assert first == again
    for name in first:
        assert first[name] != other[name]


@pytest.mark.parametrize(
    ("train", "official_test", "wished", "given"),
    [
        (70, None, (40, 20, 10), (40, 20, 10)),
        (35, None, (40, 20, 10), (20, 10, 5)),
        (7, None, (4000, 2000, 1000), (4, 2, 1)),
        (30, 9, (40, 20, 10), (20, 10, 9)),
        (58, 1, (50, 50, 1), (29, 29, 1)),  # 50 * (58 / 100) is below 29 in floating point
    ],
)
def test_small_pool_is_shared_in_proportion(
    train: int, official_test: int | None, wished: tuple[int, int, int], given: tuple[int, int, int]
) -> None:
    private, auxiliary, test = wished
    parts = split(pools(train, official_test), private=private, auxiliary=auxiliary, test=test, seed=0)
    assert (len(parts.private), len(parts.auxiliary), len(parts.test)) == given


@pytest.mark.parametrize(("train", "official_test"), [(0, None), (2, None), (6, None), (1, 5), (50, 0)])
def test_too_few_images_are_refused_in_one_sentence(train: int, official_test: int | None) -> None:
    with pytest.raises(DataError, match=r"^[^.\n]*; bring [^.\n]*$"):
        split(pools(train, official_test), private=40, auxiliary=20, test=10, seed=0)


def fitted(x: torch.Tensor, *shape: int) -> torch.Tensor:
    c, h, w = shape
    return Images(shape=(c, h, w)).fit(x, Images.of(x))


def test_auxiliary_images_are_resampled_by_area() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4) / 15
    torch.testing.assert_close(fitted(x, 1, 2, 2), x.reshape(1, 1, 2, 2, 2, 2).mean((3, 5)))
    assert fitted(x, 1, 7, 5).shape == (1, 1, 7, 5)  # larger, and not square
    assert torch.equal(fitted(x, 1, 4, 4), x)


def test_auxiliary_images_get_channels_by_mean_and_repetition() -> None:
    color = torch.tensor([0.0, 0.3, 0.9]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    grey = torch.full((2, 1, 4, 4), 0.4)
    torch.testing.assert_close(fitted(color, 1, 4, 4), grey)
    torch.testing.assert_close(fitted(torch.full((2, 1, 8, 8), 0.4), 3, 4, 4), grey.expand(-1, 3, -1, -1))
