"""The frozen block that is the model's own first one: off the server, onto the edge, with a checkpoint's weights."""

from pathlib import Path
from types import NoneType

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Generator

from privkit.audit.assembled import assemble
from privkit.defenses.patch_shuffle import PatchShuffle
from privkit.domains import Domain, Images, Tables, Tokens
from privkit.errors import UsageError
from privkit.models.tokens import Block, FirstBlock
from privkit.settings.resolve import resolve
from privkit.training import Clients

IMAGES = Images(shape=(1, 8, 8))
WORDS = Tokens(length=6, vocabulary=("", "?", "the", "cat", "sat"))
CARS = Tables(dense=("mpg",), ranges=((0, 50),), categorical=("kind",), values=(("a", "b"),))


def built(model: str, block: str = "first") -> tuple[Clients, torch.nn.Module]:
    config = resolve({"defense": f"patch_shuffle:frozen_block={block}", "model": model, "dataset": "tiny_digits"})
    edge, upper, _ = assemble(config, config.defenses[-1].spec, IMAGES, 10, 0)
    return edge.eval(), upper.eval()


def test_the_first_block_of_a_checkpoint_runs_frozen_at_the_edge_and_leaves_the_server(tmp_path: Path) -> None:
    released = VisionTransformer(
        img_size=8, patch_size=2, in_chans=1, num_classes=10, embed_dim=96, depth=4, num_heads=4, no_embed_class=True
    ).eval()
    save_file(released.state_dict(), tmp_path / "vit.safetensors")
    edge, upper = built(f"vit_micro:cut=embedding,pool=token,checkpoint={tmp_path / 'vit.safetensors'}")
    assert isinstance(edge.block, FirstBlock)
    own, theirs = edge.block.block.state_dict(), released.blocks[0].state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in theirs)
    assert not any(weight.requires_grad for weight in edge.block.parameters())
    assert len(list(upper.get_submodule("blocks").children())) == 3
    images, labels = (
        torch.rand(1, 2, 1, 8, 8, generator=Generator().manual_seed(0)),
        torch.zeros(1, 2, dtype=torch.int64),
    )
    with torch.no_grad():
        sent = edge.release(images, labels, Generator().manual_seed(1)).release.smashed[0]
        tokens = edge.lowers(images)[0]
        assert released.cls_token is not None
        every = released.blocks[0](torch.cat([released.cls_token.expand(2, -1, -1), tokens], 1))[:, 1:]
    # the block does not see places, so that its tokens are those of the shuffle in another order
    assert torch.allclose(sent.sum(1), every.sum(1), atol=1e-4)
    assert sent.shape == tokens.shape


def test_a_chain_hands_its_stage_s_block_on_and_an_extra_block_leaves_the_server_alone() -> None:
    config = resolve({"defense": "patch_shuffle:frozen_block=first+clip:bound=1", "dataset": "tiny_digits"})
    assert config.defenses[-1].spec.frozen_block == "first"
    extra, server = built("vit_micro", "true")
    assert not isinstance(extra.block, FirstBlock)
    assert len(list(server.get_submodule("blocks").children())) == 3  # cut behind the first of four


@pytest.mark.parametrize("shuffle", ["patch_shuffle", "batch_shuffle"])
@pytest.mark.parametrize(
    ("options", "model", "block"),
    [
        ("", "vit_micro", FirstBlock),
        ("", "vit_micro:cut=embedding", FirstBlock),
        ("", "t2t_vit:width=16,depth=2,heads=2,stride=1", FirstBlock),
        ("", "vit_micro:cut=block4", None),
        (":frozen_block=false", "vit_micro", None),
        (":frozen_block=true", "vit_micro", Block),
        ("+split_parts", "vit_micro", None),
        (":frozen_block=false+clip:bound=1", "vit_micro", None),
        ("+adv:frozen_block=true", "vit_micro", Block),
    ],
)
def test_a_shuffle_of_images_is_followed_by_the_model_s_block_unless_told_otherwise(
    shuffle: str, options: str, model: str, block: type[torch.nn.Module] | None
) -> None:
    config = resolve({"defense": f"{shuffle}{options}", "model": model, "dataset": "tiny_digits"})
    edge, upper, _ = assemble(config, config.defenses[-1].spec, IMAGES, 10, 0)
    plain = resolve({"defense": "none", "model": model, "dataset": "tiny_digits"})
    _, whole, _ = assemble(plain, plain.defenses[-1].spec, IMAGES, 10, 0)
    assert type(edge.block) is (block or NoneType)
    left = [len(list(server.get_submodule("blocks").children())) for server in (whole, upper)]
    assert left[0] - left[1] == (block is FirstBlock)


@pytest.mark.parametrize("shuffle", ["patch_shuffle", "batch_shuffle"])
@pytest.mark.parametrize(("dataset", "domain"), [("definitions", WORDS), ("breast_cancer", CARS)])
def test_a_shuffle_of_other_records_has_no_block(shuffle: str, dataset: str, domain: Domain) -> None:
    config = resolve({"defense": shuffle, "dataset": dataset})
    edge, _, _ = assemble(config, config.defenses[-1].spec, domain, 2, 0)
    assert edge.block is None


def test_a_model_without_blocks_above_the_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="has none there"):
        built("vit_micro:cut=block4")
    with pytest.raises(ValueError, match="needs the model's first block"):
        Clients.build(torch.nn.Identity(), PatchShuffle(frozen_block="first"), IMAGES, classes=10, seed=0)
