"""Cells, boxes and Cutouts against their own laws."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from privkit.defenses.base import ReleaseCount
from privkit.defenses.chain import Chain
from privkit.defenses.cutmix import Mixup, RandomCutMix
from privkit.defenses.cutout import CutSmashed, RandomCutout, VanillaCutout
from privkit.defenses.masks import box_grid, nested_boxes, positions, spread, uniform_permutations
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.receipts import Nothing
from privkit.torch_utils.patches import patchify, unpatchify
from tests.small import generator

CUTOUTS = [RandomCutout(), CutSmashed(), VanillaCutout()]
named = pytest.mark.parametrize("cutout", CUTOUTS, ids=lambda d: d.name)


def kept_by(receipt: Nothing) -> Tensor:
    """bool [M, T], the positions that masks kept."""
    assert receipt.masks is not None
    return receipt.masks


def test_cells_are_counted_by_the_trailing_shape() -> None:
    assert positions("mask", torch.zeros(2, 3, 16, 8), None, leading=2) == 16
    assert positions("mask", torch.zeros(2, 3, 4, 16, 8), None, leading=3) == 16
    assert positions("mask", torch.zeros(2, 3, 4, 16, 8), 4, leading=2) == 4 * 2  # the same five axes: a map of 16×8
    assert positions("mask", torch.zeros(2, 3, 4, 5, 16, 8), 2, leading=3) == 8 * 4


@pytest.mark.parametrize(
    ("shape", "patch", "said"),
    [
        ((2, 3, 8), None, r"needs tokens .* or give patch=, the side of a position of a feature map"),
        ((2, 3, 8), 2, "needs tokens"),
        ((2, 3, 4, 8, 8), None, "needs tokens"),
        ((2, 3, 4, 8, 6), 4, r"patch=4 does not divide the feature map's 8×6 pixels; use one of \[1, 2\]"),
        ((2, 3, 4, 8, 8), 0, "patch must be a whole number >= 1"),
    ],
)
def test_what_has_no_cells_is_refused(shape: tuple[int, ...], patch: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        positions("mask", torch.zeros(shape), patch, leading=2)


def test_boxes_need_a_square_grid_of_tokens() -> None:
    assert box_grid("box", torch.zeros(1, 1, 3, 8, 12), 4, leading=2) == (2, 3)
    with pytest.raises(ValueError, match="got 65 tokens; leave the class token out"):
        box_grid("box", torch.zeros(1, 1, 65, 8), None, leading=2)


@given(
    m=st.integers(1, 3),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    patch=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_weights_of_cells_reach_their_pixels(m: int, rows: int, columns: int, patch: int, seed: int) -> None:
    share = torch.rand(m, 2, rows * columns, generator=generator(seed))
    maps = torch.zeros(m, 2, 1, 3, rows * patch, columns * patch)
    weight = spread(share, maps, patch, leading=3).expand_as(maps)
    for y, x in np.ndindex(rows * patch, columns * patch):
        cell = y // patch * columns + x // patch
        assert torch.equal(weight[..., y, x], share[:, :, cell, None, None].expand(m, 2, 1, 3))
    tokens = torch.zeros(m, 2, 4, rows * columns, 5)
    assert torch.equal(spread(share, tokens, None, leading=3)[:, :, 0, :, 0], share)
    assert torch.equal(unpatchify(patchify(maps + weight, patch), patch, maps.shape[3:]), maps + weight)  # type: ignore[arg-type]
    assert torch.equal(patchify(weight, patch)[:, :, 0, :, 0], share)  # in the order of cells


def test_every_permutation_is_equally_likely() -> None:
    rows = uniform_permutations(12_000, 3, generator()).numpy()
    seen = np.unique(rows @ np.array([9, 3, 1]), return_counts=True)[1]
    assert len(seen) == 6
    assert chisquare(seen).pvalue > 1e-4


@given(
    areas=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    seed=st.integers(0, 2**32),
)
def test_boxes_are_boxes_nested_and_of_their_area(areas: list[float], rows: int, columns: int, seed: int) -> None:
    falling = torch.tensor([sorted(areas, reverse=True)], dtype=torch.float64)
    boxes = nested_boxes(falling, rows, columns, generator(seed)).view(-1, rows, columns)
    for box in boxes:
        bounding = int(box.any(0).sum()) * int(box.any(1).sum())
        assert int(box.sum()) == bounding  # no holes, no second piece
    assert (boxes[1:] <= boxes[:-1]).all()
    area = float(falling[0, 0])
    assert abs(int(boxes[0].sum()) - area * rows * columns) <= ceil(area**0.5 * rows) / 2 + 1e-6


def test_a_box_inside_another_may_be_too_small() -> None:
    boxes = nested_boxes(torch.tensor([[0.7685, 0.7656]], dtype=torch.float64), 8, 8, generator())
    assert boxes.sum(2).tolist() == [[48, 42]]  # as the docstring says


def test_boxes_lie_anywhere_alike() -> None:
    boxes = nested_boxes(torch.full((8_000, 1), 4 / 16).double(), 4, 4, generator())  # 2×2, nine places
    first = boxes.squeeze(1).int().argmax(1).numpy()
    seen = np.unique(first, return_counts=True)[1]
    assert len(seen) == 9
    assert chisquare(seen).pvalue > 1e-4


@named
@pytest.mark.parametrize("stationary", [False, True])
def test_gradient_of_a_cutout_is_masked(cutout: RandomCutout, stationary: bool) -> None:
    cutout = replace(cutout, stationary=stationary)
    z = torch.rand(2, 3, 9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: cutout.apply(t, torch.zeros(2, 3), generator())[0].smashed.tanh(), (z,))
    release, receipt = cutout.apply(z, torch.zeros(2, 3), generator())
    upstream = torch.rand_like(release.smashed)
    (found,) = torch.autograd.grad(release.smashed, z, upstream)
    assert torch.equal(found, upstream * kept_by(receipt)[:, None, :, None])
    assert torch.equal(release.smashed, z * kept_by(receipt)[:, None, :, None])


@given(
    payload=st.floats(0, 1),
    m=st.integers(1, 4),
    t=st.integers(1, 30),
    seed=st.integers(0, 2**32),
)
def test_the_payload_is_exact(payload: float, m: int, t: int, seed: int) -> None:
    z = torch.ones(m, 2, t, 3)
    release, receipt = RandomCutout(payload=payload).apply(z, torch.zeros(m, 2), generator(seed))
    assert (kept_by(receipt).sum(1) == round(payload * t)).all()
    assert receipt.payload_share == pytest.approx(round(payload * t) / t, abs=1e-12)
    assert release.weights is not None
    assert torch.equal(release.weights.squeeze(1).bool(), kept_by(receipt))
    assert release.smashed.sum() == 3 * 2 * kept_by(receipt).sum()


@named
def test_images_are_masked_at_the_input_layer(cutout: RandomCutout) -> None:
    images = torch.rand(2, 3, 3, 8, 8) + 1
    release, receipt = replace(cutout, level="input", payload=0.75).apply(images, torch.zeros(2, 3), generator())
    side = 1 if cutout.name == "vanilla_cutout" else 2
    assert kept_by(receipt).shape == (2, 64 // side**2)
    assert torch.equal(release.smashed != 0, spread(kept_by(receipt), images, side, leading=2).expand_as(images))


@named
def test_stationary_masks_stay_and_fresh_ones_do_not(cutout: RandomCutout) -> None:
    z, y = torch.rand(4, 2, 64, 3), torch.zeros(4, 2)
    fresh, still = generator(), generator()
    drawn = [kept_by(cutout.apply(z, y, fresh)[1]) for _ in range(2)]
    kept = [kept_by(replace(cutout, stationary=True).apply(z, y, still)[1]) for _ in range(2)]
    other = kept_by(replace(cutout, stationary=True, mask_seed=1).apply(z, y, still)[1])
    assert not torch.equal(*drawn)
    assert torch.equal(*kept)
    assert not torch.equal(kept[0], other)
    assert torch.equal(still.get_state(), generator().get_state())  # nothing was drawn
    assert len({tuple(row) for row in kept[0].tolist()}) > 1  # each client has its own


def test_a_stationary_mask_of_mixed_messages_never_shows_what_it_drops() -> None:
    """Each message had its own mask, and grouping moved clients from message to message."""
    z, y = torch.ones(4, 1, 16, 1), torch.eye(2).expand(4, 1, 2, 2)[..., 0, :]
    chain = Chain(stages=(Mixup(), RandomCutout(place="mixer", stationary=True)))
    seen = torch.zeros(4, 16, dtype=torch.bool)
    for order in ((0, 1, 2, 3), (2, 3, 0, 1), (1, 2, 3, 0)):
        release, receipt = chain.apply(z[list(order)].view(2, 2, 1, 16, 1), y.view(2, 2, 1, 2), generator())
        seen[list(order)] |= (release.smashed != 0).view(2, 1, 16).expand(2, 2, 16).reshape(4, 16)
    assert seen.double().mean() == receipt.certificate(ReleaseCount(epochs=3)).quantities["positions_seen"]


def test_kept_cells_are_uniform() -> None:
    _, receipt = RandomCutout(payload=0.5).apply(torch.zeros(12_000, 1, 4, 1), torch.zeros(12_000, 1), generator())
    pairs = kept_by(receipt).int().numpy() @ np.array([8, 4, 2, 1])
    seen = np.unique(pairs, return_counts=True)[1]
    assert len(seen) == 6  # which two of four
    assert chisquare(seen).pvalue > 1e-4


def test_cutsmashed_is_random_cutout_on_another_wire() -> None:
    z, y = torch.rand(4, 2, 16, 3), torch.zeros(4, 2)
    ours, theirs = CutSmashed().apply(z, y, generator()), RandomCutout().apply(z, y, generator())
    assert torch.equal(ours[0].smashed, theirs[0].smashed)
    said = [receipt.certificate().assumptions[0] for _, receipt in (ours, theirs)]
    assert "shares the pseudo-random sequence" in said[0]
    assert "one bit per position" in said[1]


@named
def test_nothing_of_what_is_cut_leaks(cutout: RandomCutout) -> None:
    """A product with the mask would leak signs, 0·x = −0 for x < 0, and overflows."""
    z = -torch.rand(2, 3, 16, 2)
    _, receipt = cutout.apply(z, torch.zeros(2, 3), generator())
    z[~kept_by(receipt).unsqueeze(1).expand(2, 3, 16)] = float("nan")
    released = cutout.apply(z, torch.zeros(2, 3), generator())[0].smashed
    assert torch.equal(released.signbit(), kept_by(receipt)[:, None, :, None].expand_as(released))
    assert released.isfinite().all()


def test_cutout_proves_nothing_and_counts_what_was_seen() -> None:
    z, y = torch.rand(2, 2, 16, 3), torch.zeros(2, 2)
    fresh = RandomCutout(payload=0.5).apply(z, y, generator())[1].certificate(ReleaseCount(epochs=3))
    still = RandomCutout(payload=0.5, stationary=True).apply(z, y, generator())[1].certificate(ReleaseCount(epochs=3))
    assert (fresh.kind, fresh.epsilon, fresh.delta) == ("nothing", float("inf"), None)
    assert "no differential privacy" in fresh.statement
    assert fresh.quantities == {"payload_share": 0.5, "positions_seen": 1 - 0.5**3}
    assert still.quantities == {"payload_share": 0.5, "positions_seen": 0.5}


def test_positions_seen_is_what_fresh_masks_show() -> None:
    z, y, draws = torch.zeros(500, 1, 16, 1), torch.zeros(500, 1), generator()
    seen = torch.zeros(500, 16, dtype=torch.bool)
    for _ in range(4):
        _, receipt = RandomCutout(payload=0.25).apply(z, y, draws)
        seen |= kept_by(receipt)
    expected = receipt.certificate(ReleaseCount(epochs=4)).quantities["positions_seen"]
    shares = seen.double().mean(1)
    assert abs(shares.mean().item() - expected) < 4.5 * shares.std().item() / 500**0.5


def test_a_chain_of_masks_reports_what_all_of_them_leave() -> None:
    """The share of positions was that of the first mask, although the second left out more."""
    z, y = torch.rand(2, 2, 16, 3), torch.eye(2).expand(2, 2, 2)
    for second in (RandomCutout(stationary=True), RandomCutMix(concentration=float("inf"))):
        chain = Chain(stages=(RandomCutout(), second))
        grouped = (z, y) if second.group == 1 else (z.unsqueeze(0), y.unsqueeze(0))
        receipt = chain.apply(*grouped, generator())[1]
        quantities = receipt.certificate(ReleaseCount(epochs=4)).quantities
        assert (quantities["payload_share"], receipt.payload_share) == (0.25, 0.25)
        assert "positions_seen" not in quantities
    late = Chain(stages=(GaussianNoise(), RandomCutout(place="mixer"))).apply(z, y, generator())[1].certificate()
    assert (late.quantities["payload_share"], late.quantities["positions_seen"]) == (1, 0.5)
    alone = RandomCutout(place="mixer").apply(z, y, generator())[1].certificate()
    assert alone.quantities == {"payload_share": 1, "positions_seen": 0.5}  # clients send all to the mixer


@named
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"payload": -0.1}, r"payload must be a finite number >= 0 and <= 1, got -0\.1"),
        ({"payload": 1.5}, "payload must be a finite number >= 0 and <= 1"),
        ({"payload": float("nan")}, "payload must be"),
        ({"mask_seed": -1}, "mask_seed must be a whole number >= 0"),
        ({"level": "logits"}, "level must be one of smashed, input"),
        ({"patch": 0}, "patch must be a whole number >= 1"),
    ],
)
def test_bad_fields_are_refused(cutout: RandomCutout, fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(cutout, **fields)  # type: ignore[arg-type]


@named
def test_feature_maps_need_a_patch_that_divides(cutout: RandomCutout) -> None:
    maps, y = torch.zeros(2, 3, 4, 8, 8), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=f"{cutout.name} needs tokens"):
        cutout.apply(maps, y, generator())
    with pytest.raises(ValueError, match="patch=3 does not divide"):
        replace(cutout, patch=3).apply(maps, y, generator())
    assert kept_by(replace(cutout, patch=2).apply(maps, y, generator())[1]).shape == (2, 16)
