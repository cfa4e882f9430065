"""The cut changes nothing: split training is joint training, step for step, and survives a kill bit for bit."""

from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from privkit.defenses import BatchShuffle, NoDefense, PatchShuffle
from privkit.defenses.base import Defense
from privkit.errors import DamagedFile, TrainingDiverged, UsageError
from privkit.models import SplitModel
from privkit.training import Checkpoint, Clients, TrainingSpec, evaluate, split_round, train
from tests.small import IMAGES, built, digits

SPEC = TrainingSpec(batch_size=20)


def weights(*modules: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for module in modules for p in module.parameters()]


@pytest.mark.parametrize(
    "defense", [NoDefense(), PatchShuffle(), BatchShuffle(), BatchShuffle(frozen_block=True)], ids=str
)
def test_gradients_across_the_cut_are_those_of_the_joint_network(defense: Defense) -> None:
    data = digits(20)
    x, y = data.x.unsqueeze(0), data.y.unsqueeze(0)
    edge, upper = built(defense)
    split_round(edge, upper, x, y, Generator().manual_seed(1))
    across = [p.grad.clone() for p in (*edge.lowers.parameters(), *upper.parameters()) if p.grad is not None]
    edge.zero_grad()
    upper.zero_grad()
    release = edge.release(x, y, Generator().manual_seed(1)).release
    nn.functional.cross_entropy(upper(release.smashed.flatten(0, 1)), data.y).backward()
    joint = [p.grad for p in (*edge.lowers.parameters(), *upper.parameters()) if p.grad is not None]
    assert len(across) == len(joint) == len(list(edge.lowers.parameters())) + len(list(upper.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(across, joint, strict=True))


def test_same_seed_same_weights_and_other_seed_other_weights() -> None:
    def run(seed: int) -> list[torch.Tensor]:
        edge, upper = built(BatchShuffle())
        train(edge, upper, digits(100), SPEC, epochs=2, seed=seed)
        return weights(edge, upper)

    first, again, other = run(0), run(0), run(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


class Killed(Exception):
    pass


class DyingCheckpoint(Checkpoint):
    """Saves every epoch, and dies after one of them."""

    def __init__(self, path: Path, dies_after: int) -> None:
        super().__init__(path)
        self.dies_after = dies_after

    def save(self, state: dict[str, object]) -> None:
        self._cost = 0.0
        super().save(state)

    def report(self, done: int, total: int, value: float) -> None:
        if done == self.dies_after:
            raise Killed


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("dies_after", [1, 2])
@pytest.mark.parametrize("defense", [BatchShuffle(frozen_block=True), NoDefense()], ids=str)
def test_goes_on_after_a_kill_bit_for_bit(tmp_path: Path, defense: Defense, dies_after: int) -> None:
    straight = built(defense)
    curve = train(*straight, digits(40), SPEC, epochs=3, seed=0).curve
    path = tmp_path / "training.ckpt"
    with pytest.raises(Killed):
        train(*built(defense), digits(40), SPEC, epochs=3, seed=0, checkpoint=DyingCheckpoint(path, dies_after))
    resumed = built(defense, seed=5)  # other initial weights: everything must come from the checkpoint
    assert train(*resumed, digits(40), SPEC, epochs=3, seed=0, checkpoint=Checkpoint(path)).curve == curve
    assert all(torch.equal(a, b) for a, b in zip(weights(*straight), weights(*resumed), strict=True))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    path = tmp_path / "training.ckpt"
    with pytest.raises(Killed):
        train(*built(NoDefense()), digits(100), SPEC, epochs=3, seed=0, checkpoint=DyingCheckpoint(path, 1))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"training\.ckpt is damaged.*; delete it"):
        train(*built(NoDefense()), digits(100), SPEC, epochs=3, seed=0, checkpoint=Checkpoint(path))


def test_the_seconds_of_a_stage_are_counted_over_all_its_starts(tmp_path: Path) -> None:
    path = tmp_path / "training.ckpt"
    for took, before in ((2.0, 0.0), (3.0, 2.0), (0.0, 5.0)):
        checkpoint = Checkpoint(path, seconds=lambda took=took: took)  # type: ignore[misc]
        state = checkpoint.load()
        assert (checkpoint.earlier, state) == (before, {"epoch": 1} if before else None)
        checkpoint.keep({"epoch": 1})


def test_a_frozen_lower_segment_stays_as_it_was() -> None:
    edge, upper = built(PatchShuffle(frozen_block=True))
    before, server_before = weights(edge), weights(upper)
    train(edge, upper, digits(100), TrainingSpec(batch_size=20, freeze_lower=True), epochs=1, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(edge), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(server_before, weights(upper), strict=True))


def test_what_a_user_froze_stays_frozen() -> None:
    edge, upper = built(NoDefense())
    patch_embed = edge.lowers.module.get_submodule("patch_embed").requires_grad_(False)
    before, others = weights(patch_embed), weights(edge)
    train(edge, upper, digits(100), SPEC, epochs=1, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(patch_embed), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(others, weights(edge), strict=True))


def test_the_frozen_block_is_never_trained_and_runs_after_the_shuffle() -> None:
    edge, upper = built(PatchShuffle(frozen_block=True))
    assert edge.block is not None
    before = weights(edge.block)
    train(edge, upper, digits(100), SPEC, epochs=1, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(edge.block), strict=True))
    data = digits(20)
    x = data.x.unsqueeze(0)
    sent = edge.release(x, data.y.unsqueeze(0), Generator().manual_seed(0))
    rows = sent.receipt.permutation.unsqueeze(-1).expand(-1, -1, -1, 96)  # type: ignore[attr-defined]
    shuffled = edge.lowers(x).gather(2, rows)
    assert torch.equal(sent.release.smashed[0], edge.block(shuffled[0]))


@pytest.mark.slow
def test_it_learns() -> None:
    edge, upper = built(NoDefense())
    data = digits(1200)
    train(edge, upper, data[:1000], TrainingSpec(batch_size=50), epochs=6, seed=0)
    assert evaluate(edge, upper, data[1000:], batch_size=50, seed=0).accuracy.low > 0.3  # chance is .1


def test_bad_batches() -> None:
    for batch_size, reason in [(200, "more than the 100 private images"), (1, "has no effect")]:
        with pytest.raises(UsageError, match=reason):
            train(*built(BatchShuffle()), digits(100), TrainingSpec(batch_size=batch_size), epochs=1, seed=0)
    with pytest.raises(UsageError, match="more than the 10 test images"):
        evaluate(*built(NoDefense()), digits(10), batch_size=20, seed=0)
    for bad in ({"batch_size": 0}, {"learning_rate": -1.0}, {"weight_decay": float("nan")}):
        with pytest.raises(ValueError, match="must be"):
            TrainingSpec(**bad)  # type: ignore[arg-type]


def test_a_nan_names_its_step() -> None:
    class Bomb(nn.Module):
        """Turns to NaN at the eighth batch."""

        def __init__(self) -> None:
            super().__init__()
            self.calls, self.weight = 0, nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x.flatten(1)[:, :10] * self.weight / (0.0 if self.calls == 8 else 1.0) * 0.0

    model = SplitModel(lower=nn.Identity(), upper=Bomb())
    with pytest.raises(TrainingDiverged, match="at step 8 of 15"):
        train(
            Clients.build(model.lower, NoDefense(), IMAGES, classes=10, seed=0),
            model.upper,
            digits(100),
            SPEC,
            epochs=3,
            seed=0,
        )


def test_a_frozen_block_needs_tokens() -> None:
    with pytest.raises(ValueError, match="needs tokens"):
        Clients.build(nn.Identity(), PatchShuffle(frozen_block=True), IMAGES, classes=10, seed=0)
