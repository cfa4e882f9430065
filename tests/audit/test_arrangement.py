"""A row names where the network is cut, and what the clients run behind the defense."""

import pytest

from privkit.audit.assembled import assemble
from privkit.audit.cell import arrangement
from privkit.domains.images.domain import Images
from privkit.run.plan import plan
from privkit.settings.resolve import resolve

T2T = "t2t_vit:width=16,depth=2,heads=2,stride=1"


@pytest.mark.parametrize(
    ("defense", "model", "said"),
    [
        ("patch_shuffle", "vit_micro", ("cut after block1", "block2 frozen behind the defense")),
        ("batch_shuffle+clip:bound=1", "vit_micro", ("cut after block1", "block2 frozen behind the defense")),
        ("patch_shuffle:frozen_block=false", "vit_micro", ("cut after block1", "no block behind the shuffle")),
        ("patch_shuffle", "vit_micro:cut=block4", ("cut after block4", "no block behind the shuffle")),
        (
            "batch_shuffle:frozen_block=first",
            "vit_micro:cut=embedding",
            ("cut after embedding", "block1 frozen behind the defense"),
        ),
        (
            "batch_shuffle:frozen_block=true",
            "vit_micro",
            ("cut after block1", "a drawn frozen block behind the defense"),
        ),
        (
            "patch_shuffle",
            T2T,
            ("cut after tokens", "overlapping patches", "block1 frozen behind the defense"),
        ),
        ("none:frozen_block=first", "vit_micro", ("cut after block1", "block2 frozen behind the defense")),
        ("gaussian_noise", "vit_micro", ("cut after block1",)),
    ],
)
def test_cut_overlap_and_block_are_named(defense: str, model: str, said: tuple[str, ...]) -> None:
    attacks = ["black_box", "jigsaw:passes=8"]
    config = resolve({"defense": defense, "model": model, "dataset": "tiny_digits", "attack": attacks})
    cells = [cell for cell in plan(config) if cell.defense == config.defenses[-1]]
    edge, _, _ = assemble(config, config.defenses[-1].spec, Images(shape=(1, 8, 8)), 10, 0)
    assert [arrangement(config, cell, edge) for cell in cells] == [(*said, "one pass"), (*said, "8 passes")]
    before = said[:-1] if "behind" in said[-1] else said
    assert arrangement(config, cells[0]) == (*before, "one pass")
