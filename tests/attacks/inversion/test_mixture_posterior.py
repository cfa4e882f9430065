"""The mixture posterior is that of the Gaussian model where it holds, wins on mixed rows, and fails on noise.

Its network refines what no Gaussian model draws.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, QueryResult, View
from privkit.attacks.goals.control import CONTROL_STEPS
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.attacks.inversion.mixture_model import Equations, MixedRows, Model, linked, principal_features
from privkit.attacks.inversion.mixture_posterior import MixturePosterior
from privkit.defenses.base import Defense
from privkit.defenses.cutmix import RandomCutMix
from privkit.defenses.dp_cutmixsl import DpMixSl
from privkit.defenses.noise import GaussianNoise
from privkit.defenses.none import NoDefense
from privkit.wire.channel import record_rounds
from tests.attacks.inversion.mixing import BATCH, FLOOR, VICTIMS, clients, passes, seen
from tests.attacks.sessions import Killed, Session
from tests.small import SHAPE, digits

IMAGES = digits(1_640).x
PRIVATE, OWN = IMAGES[:40], IMAGES[40:]
CLIENTS, WIDTH = 4, 20
ATTACK = MixturePosterior(repeats=8, components=64, epochs=0)


@dataclass(frozen=True)
class Linear:
    """Four clients with linear maps of their own, whose rows are sums of two with public weights, and noise."""

    noise: float
    cells: int = 1
    signal: float = 1.0

    @property
    def maps(self) -> Tensor:
        return self.signal * torch.randn(CLIENTS, 64, WIDTH, generator=Generator().manual_seed(1)) / 8

    def query(self, images: Tensor, draws: Generator) -> QueryResult:
        batch = len(images) // CLIENTS
        seats = torch.randperm(CLIENTS, generator=draws).view(-1, 2)
        places = torch.arange(batch).repeat(len(seats)).unsqueeze(1)
        members = seats.repeat_interleave(batch, 0) * batch + places
        weights = torch.rand(len(seats), 2, self.cells, generator=draws)
        weights = (weights / weights.sum(1, keepdim=True)).repeat_interleave(batch, 0)
        sent = torch.einsum("cbp,cpd->cbd", images.flatten(1).view(CLIENTS, batch, -1), self.maps)
        rows = (sent.view(len(images), self.cells, -1)[members] * weights.unsqueeze(3)).sum(1)
        rows = rows + self.noise * torch.randn(rows.shape, generator=draws)
        view = View(
            round=0,
            smashed=rows if self.cells > 1 else rows.squeeze(1),
            mixed=2,
            weights=weights,
            clients=seats.repeat_interleave(batch, 0),
            messages=len(seats),
        )
        return QueryResult(view=view, members=members)

    def sent(self, passes: int) -> tuple[ImageObservation, list[QueryResult]]:
        draws = Generator().manual_seed(3)
        answers = [self.query(PRIVATE, draws) for _ in range(passes)]
        views = [answer.view for answer in answers]
        known = ImageObservation(
            image_shape=SHAPE, batch_size=len(PRIVATE), views=views, auxiliary=OWN, query=self.query
        )
        return known, answers

    def error(self, attack: MixturePosterior, passes: int = 1) -> float:
        known, answers = self.sent(passes)
        guess = attack.run(known, Generator().manual_seed(0)).images
        return float((guess - PRIVATE[answers[0].members.flatten()]).square().mean())

    def least_error(self, passes: int) -> float:
        """Of one who knows the maps and the noise, by one dense system for all records together."""
        _, answers = self.sent(passes)
        flat = OWN.flatten(1).double()
        mean, within = flat.mean(0), flat.T.cov()
        records, width = len(PRIVATE), WIDTH // self.cells
        client = torch.arange(records) // (records // CLIENTS)
        design = []  # from all pixels of all records to one row
        for answer in answers:
            view = answer.view
            assert view.weights is not None
            for members, weights in zip(answer.members, view.weights, strict=True):
                row = torch.zeros(WIDTH, records, 64, dtype=torch.float64)
                for member, weight in zip(members, weights, strict=True):
                    shares = weight.repeat_interleave(width).unsqueeze(1)
                    row[:, member] = (shares * self.maps[client[member]].T).double()
                design.append(row.flatten(1))
        system = torch.cat(design)
        rows = torch.cat([answer.view.smashed.flatten(1) for answer in answers]).flatten().double()
        across = (system.unflatten(1, (records, 64)) @ within).flatten(1)
        covariance = across @ system.T + self.noise**2 * torch.eye(len(system), dtype=torch.float64)
        unusual = rows - system @ mean.repeat(records)
        guess = mean.repeat(records) + across.T @ torch.linalg.solve(covariance, unusual)
        return float((guess.clamp(0, 1) - PRIVATE.flatten()).square().mean())


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("cells", [1, 5])
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_it_errs_little_more_than_one_who_knows_the_clients(noise: float, cells: int, passes: int) -> None:
    linear = Linear(noise, cells)
    assert linear.error(replace(ATTACK, passes=passes), passes) < 1.1 * linear.least_error(passes)


def test_noise_alone_shows_the_mean_image() -> None:
    floor = float((OWN.mean(0) - PRIVATE).square().mean())
    assert 0.97 * floor < Linear(1.0, signal=0.0).error(ATTACK) < 1.1 * floor


@pytest.mark.slow(but=3)
@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("cells", [1, 5])
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_its_steps_reach_the_posterior_of_one_dense_system(noise: float, cells: int, passes: int) -> None:
    linear, flat = Linear(noise, cells), OWN.flatten(1)
    features = principal_features(flat, 64)
    there = torch.linalg.lstsq(features, flat).solution
    model = Model(
        features=features,
        flat=flat,
        maps=there @ linear.maps,
        rest=torch.zeros(1, WIDTH),
        noise=torch.full((WIDTH,), noise**2),
    )
    _, answers = linear.sent(passes)
    rows = linked([answer.view for answer in answers])
    guess = rows.seated(model.guess(rows, 0.0), answers[0].view)
    found = float((guess - PRIVATE[answers[0].members.flatten()].flatten(1)).square().mean())
    assert found == pytest.approx(linear.least_error(passes), rel=0.02)


def test_maps_without_a_fold_never_saw_it() -> None:
    """Only then do guesses at the fold's images err as those at a victim's."""
    linear, draws = Linear(0.3, cells=5), Generator().manual_seed(5)
    features = principal_features(OWN.flatten(1), 30)
    folds = torch.arange(len(OWN)).split(400)
    rows = [MixedRows.joined([MixedRows.of(linear.query, OWN, fold, 40, draws) for _ in range(3)]) for fold in folds]
    equations = [Equations(features, CLIENTS) for _ in folds]
    for one, some in zip(equations, rows, strict=True):
        one.add(some)
    alone = Equations(features, CLIENTS)
    alone.add(MixedRows.joined(rows[1:]))
    torch.testing.assert_close(Equations.together(equations[1:]).maps(), alone.maps(), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(Equations.together(equations).maps(), alone.maps(), rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("passes", [4, 8])
def test_the_network_refines_what_the_posterior_draws(passes: int) -> None:
    alone, refined = (
        Linear(0.3).error(replace(ATTACK, passes=passes, epochs=epochs, width=256), passes) for epochs in (0, 12)
    )
    assert refined < 0.97 * alone


def test_the_network_spoils_nothing_where_rows_hold_noise_alone() -> None:
    alone, refined = (Linear(1.0, signal=0.0).error(replace(ATTACK, epochs=epochs, width=64)) for epochs in (0, 4))
    assert refined < 1.02 * alone


@pytest.mark.slow
def test_goes_on_after_a_kill_bit_for_bit() -> None:
    known, _ = Linear(0.3).sent(1)
    attack = replace(ATTACK, repeats=2, epochs=4, width=32)
    whole = attack.run(known, Generator().manual_seed(0))
    session = Session(dies_after=2)
    with pytest.raises(Killed):
        attack.run(known, Generator().manual_seed(0), session)
    resumed = attack.run(known, Generator().manual_seed(0), Session(state=session.state))
    assert torch.equal(resumed.images, whole.images)
    assert resumed.curve == whole.curve
    assert len(whole.curve) == 5
    assert "of the network's correction was applied" in whole.note


def test_its_controls_refine_with_few_steps() -> None:
    control = MixturePosterior().mounting.control
    assert control is not None
    assert control(CONTROL_STEPS // 2) == MixturePosterior(epochs=2)
    assert control(1) == MixturePosterior()


def error(defense: Defense, attack: MixturePosterior) -> float:
    edge = clients(defense)
    guess = attack.run(seen(edge, passes(edge, attack.passes)), Generator().manual_seed(0))
    members = record_rounds(edge, VICTIMS, batch_size=BATCH, seed=1).members
    return (guess.images - VICTIMS.x[members])[members >= 0].square().mean().item()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("defense", "passes", "share"),
    [
        (NoDefense(), 1, 0.3),
        (DpMixSl(sigma=0.05, sigma_labels=None, bound=None), 8, 0.4),
        (RandomCutMix(), 8, 0.4),
    ],
    ids=["none", "dp_mixsl", "random_cutmix"],
)
def test_wins_on_an_undefended_edge_and_on_mixed_rows(defense: Defense, passes: int, share: float) -> None:
    assert error(defense, MixturePosterior(passes=passes, repeats=16, width=128)) < share * FLOOR


def test_is_at_the_floor_on_noise_before_the_server() -> None:
    assert error(GaussianNoise(sigma=300, clip=None), MixturePosterior(repeats=4, width=128)) > 0.95 * FLOOR


def test_what_it_cannot_read_is_refused() -> None:
    known, _ = Linear(0.1).sent(1)
    hidden = [replace(view, weights=None) for view in known.views]
    wide = [replace(view, smashed=view.smashed.repeat(1, 500)) for view in known.views]
    for changed, why in (
        (replace(known, views=hidden), "hidden weights"),
        (replace(known, views=[replace(known.views[0], clients=None)]), "does not know which"),
        (replace(known, views=wide), "at most 8192 of them, and here are 10000"),
        (replace(known, auxiliary=OWN[:119]), "at least 120 own images, got 119"),
        (replace(known, query=Linear(float("nan")).query), "hold NaN"),
    ):
        with pytest.raises(NotApplicable, match=why):
            ATTACK.run(changed, Generator().manual_seed(0))
