"""What a recording declares and its data refute: planted lies are found, and honest recordings raise no alarm."""

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.mixing import FixedCounts, FixedRatio
from privkit.accountants.spec.parts import CutMix, Mixup, Noise, Poisson, WithoutReplacement
from privkit.accountants.spec.secrets import HiddenMask, ShuffledEpochs
from privkit.accountants.spec.sensitivity import Ball, BoxLabels, Categories, Clamp, Known, OneHot, PatchBall
from privkit.audit.declared import declared_by
from privkit.recording.read import Recording
from tests.recording.declarations import HALF, MECHANISM, ROUNDS, ROWS, SIGMA, changed, declared, drawn, noise

NOISY = {"builder": "tests.recording.declarations:Noisy"}
FIRST = {"builder": "tests.recording.declarations:First"}
CATEGORIES = {"builder": "tests.recording.declarations:Twice"}
ALL = ROUNDS * ROWS
X = drawn()
CLEAN = X / 2
N = noise(ALL, 1, 8, 8)
LABELS = torch.arange(ALL) % 4

Made = Callable[[Path], Recording]


def lie(
    released: Tensor,
    mechanism: SplitMechanism = MECHANISM,
    truth: Tensor | None = X,
    also: dict[str, Tensor | None] | None = None,
    **described: Any,
) -> Made:
    return lambda folder: declared(folder, released, truth, mechanism, also=also, **described)


def sent(labels: Tensor) -> dict[str, Tensor | None]:
    """Labels that travelled."""
    return {f"round_{number}.labels": part for number, part in enumerate(labels.split(ROWS))}


def shares(weights: Tensor) -> dict[str, Tensor | None]:
    """The same shares in all rows of four, and who is on which seat."""
    members = torch.arange(ALL).view(-1, 2, 4).transpose(1, 2).reshape(-1, 2)
    rows = weights.expand(4, 2, -1).contiguous()
    return {**{f"round_{number}.weights": rows.clone() for number in range(ROUNDS)}, "truth.members": members}


def mixed(weights: Tensor) -> Tensor:
    """Two clients' images with these shares [2, T], 4 rows per round; clean."""
    both = CLEAN.view(-1, 2, 4, 8, 8)
    return (both * weights.view(2, 1, 8 if weights.shape[1] > 1 else 1, -1)).sum(1).flatten(0, 1).unsqueeze(1)


LABELLED = changed(
    noise=Noise(smashed=SIGMA, labels=0.5), labels=OneHot(), unit="client", lower_model="trained", rounds=5, releases=8
)
AVERAGE = Mixup(ratio=FixedRatio.equal(2))
MIXED: dict[str, Any] = {"rows": 4, "batch_size": 4, "clients": 2, "mixed": 2}
PAIR = changed(mixing=AVERAGE)
CLIENT: dict[str, Any] = {"unit": "client", "lower_model": "trained"}
HONEST = CLEAN + SIGMA * N
LAPLACE = changed(noise=Noise(law="laplace", smashed=SIGMA))
RESPONSE = SplitMechanism(
    smashed=Categories(classes=4, answers=64),
    noise=Noise(law="randomized_response", smashed=0.8),
    lower_model="frozen",
)
SAID = (X * 4).floor().clamp(max=3)

LIES: dict[str, tuple[Made, str]] = {
    "releases without noise": (lie(CLEAN, changed(noise=Noise(smashed=100.0))), "σ = 100, but"),
    "noise beyond all numbers": (lie(CLEAN, changed(noise=Noise(smashed=1e300))), "σ = 1e+300, but"),
    "no noise where a little is declared": (lie(CLEAN), "times the size"),
    "no noise, and no lower segment": (lie(CLEAN, changed(noise=Noise(smashed=100.0)), lower=None), "times the size"),
    "no noise, and nothing else known": (lie(CLEAN, changed(noise=Noise(smashed=1.0)), None, lower=None), "times"),
    "a program with the noise that lacks": (lie(CLEAN, lower=NOISY), "times the"),
    "one dimension of 64": (lie(HONEST, changed(smashed=Clamp(low=0, high=0.5, dimensions=1))), "a row has 64 numbers"),
    "one turn of 5": (
        lie(
            HONEST,
            changed(**CLIENT, rounds=ROUNDS, releases=ROWS, participation=ShuffledEpochs(epoch_rounds=ROUNDS)),
            truth=X[:ROWS].repeat(ROUNDS, 1, 1, 1),
        ),
        "takes part in 1 rounds, but one of its records is in 5",
    ),
    "one release of 5": (lie(HONEST, truth=X[:ROWS].repeat(ROUNDS, 1, 1, 1)), "the file holds 5 of one"),
    "the same by numbers": (
        lie(HONEST, truth=X[:ROWS], also={"truth.members": torch.arange(ROWS).repeat(ROUNDS)}),
        "the file holds 5 of one",
    ),
    "one release of 8 a round": (lie(HONEST, changed(**CLIENT, rounds=5)), "releases = 1, but a client sends 8"),
    "two rounds of 5": (lie(HONEST, changed(**CLIENT, rounds=2, releases=8)), "the file holds 5 of one pass"),
    "ten rounds of which the last are left": (
        lie(HONEST, changed(**CLIENT, rounds=5, releases=8), watched=10),
        "the recorder saw 10",
    ),
    "half the noise": (lie(CLEAN + SIGMA * N / 2), "0.5"),
    "five sixths of it": (lie(CLEAN + SIGMA * N * 5 / 6), "times the size"),
    "noise on half of the numbers": (lie(CLEAN + SIGMA * N * (torch.arange(8) % 2)), "times"),
    "noise on all numbers but one": (lie(CLEAN + SIGMA * N * (torch.arange(64) > 0).view(8, 8)), "number 0"),
    "noise on half of the rows": (lie(CLEAN + SIGMA * N * (torch.arange(ALL) % 2).view(-1, 1, 1, 1)), "times"),
    "noise on all rows but one": (lie(CLEAN + SIGMA * N * (torch.arange(ALL) != 7).view(-1, 1, 1, 1)), "row"),
    "no noise in one round": (lie(CLEAN + SIGMA * N * (torch.arange(ALL) >= ROWS).view(-1, 1, 1, 1)), "times"),
    "the same noise in each row": (lie(CLEAN + SIGMA * N[3:4]), "times"),
    "the same noise in each round": (lie(CLEAN + SIGMA * N[:ROWS].repeat(ROUNDS, 1, 1, 1)), "σ = 0.2, but"),
    "one noise for each line of pixels": (lie(CLEAN + SIGMA * N[:, :, :, :1]), "σ = 0.2, but"),
    "noise in three directions": (
        lie(CLEAN + SIGMA * (noise(ALL, 3) @ noise(3, 64, seed=2) / sqrt(3)).view_as(X)),
        "times",
    ),
    "less Gaussian noise for Laplace noise": (lie(CLEAN + 0.9 * SIGMA * N, LAPLACE), "Laplace noise of b = 0.2, but"),
    "bounded noise": (lie(CLEAN + SIGMA * sqrt(3) * (2 * drawn(ALL, 7) - 1)), "the declared noise, but not its law"),
    "noise of two values": (lie(CLEAN + SIGMA * N.sign()), "got the same noise"),
    "Laplace noise for Gaussian noise": (
        lie(CLEAN + SIGMA / sqrt(2) * noise(ALL, 1, 8, 8, law="laplace")),
        "the declared noise, but not its law",
    ),
    "a range that was left": (
        lie(CLEAN + 0.01 * N, changed(smashed=Clamp(low=0, high=0.25, dimensions=64), noise=Noise(smashed=0.01))),
        "was released",
    ),
    "a range that noise would hide": (
        lie(HONEST, changed(smashed=Clamp(low=0, high=0.25, dimensions=64))),
        "releases follow lower(truth) out of it",
    ),
    "a radius that was left": (lie(HONEST, changed(smashed=Ball(radius=0.5))), "a ball, but releases follow"),
    "a radius, and no lower segment": (
        lie(2 * CLEAN + N, changed(smashed=Ball(radius=0.01), noise=Noise(smashed=1.0)), lower=None),
        "times as far out of it",
    ),
    "one row outside of its radius": (
        lie(
            torch.cat([0.01 * CLEAN[:-1], 5 * CLEAN[-1:]]) + SIGMA * N,
            changed(smashed=Ball(radius=0.05)),
            None,
            lower=None,
        ),
        "rows that lie in its ball before their noise, but one of norm 1",
    ),
    "one patch outside of its radius": (
        lie(
            torch.cat([0.01 * CLEAN[:-1], 5 * CLEAN[-1:]]).view(ALL, 8, 8) + SIGMA * N.view(ALL, 8, 8),
            changed(smashed=PatchBall(radius=0.02, patches=8)),
            None,
            lower=None,
        ),
        "patches that lie in its patch_ball before their noise, but one of norm",
    ),
    "a ball of numbers above 0": (
        lie(-CLEAN + SIGMA * N, changed(smashed=Ball(radius=4.0, nonnegative=True)), lower=None),
        "rows that lie in its ball before their noise",
    ),
    "labels beyond 1": (
        lie(9 * CLEAN + SIGMA * N, changed(smashed=BoxLabels(classes=64)), lower=None),
        "numbers in [0, 1] with their noise on them",
    ),
    "a segment in which records meet": (
        lie((CLEAN.view(ROUNDS, ROWS, 64)[:, :1].expand(-1, ROWS, -1)).reshape(X.shape) + SIGMA * N, lower=FIRST),
        "noise that hides one record, but 4 records moved 8 rows of a batch",
    ),
    "labels in the clear": (lie(HONEST, LABELLED, also=sent(LABELS)), "whole numbers were sent"),
    "labels with too little noise": (
        lie(HONEST, LABELLED, also={**sent(one_hot(LABELS, 4) + 0.05 * noise(ALL, 4)), "truth.labels": LABELS}),
        "noise of 0.5 on labels, but",
    ),
    "mixing that did not happen": (lie(HONEST, changed(mixing=AVERAGE)), "2 clients are mixed, but a row holds 1"),
    "shares that were not equal": (
        lie(
            mixed(w := torch.tensor([[0.9], [0.1]])) + SIGMA * N[: ALL // 2],
            changed(mixing=AVERAGE),
            also=shares(w),
            **MIXED,
        ),
        "a client has 0.9 of a row",
    ),
    "sampling of a few who always take part": (
        lie(
            HONEST,
            changed(participation=Poisson(rate=0.01), relation="add_or_remove_one", rounds=5),
            truth=X[:ROWS].repeat(ROUNDS, 1, 1, 1),
        ),
        "some are in 5 of 5 rounds",
    ),
    "fewer in a round than there are": (
        lie(HONEST, changed(participation=WithoutReplacement(chosen=1, clients=100), rounds=5)),
        "take part in a round, but 8 do",
    ),
    "a defense with less noise": (
        lie(HONEST, changed(noise=Noise(smashed=0.3)), defense="gaussian_noise:sigma=.2,clip=1"),
        "but its defense gaussian_noise adds",
    ),
    "answers that are never replaced": (lie(SAID, RESPONSE, lower=CATEGORIES), "0 of 2560 are"),
    "answers that are none": (lie(HONEST, RESPONSE, lower=CATEGORIES), "other numbers were released"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refuted(name: str, tmp_path: Path) -> None:
    made, sentence = LIES[name]
    found = declared_by(made(tmp_path / "r")).compared
    assert sentence in "; ".join(found.refuted), found
    assert all(said.startswith("the recording declares ") and ", but " in said for said in found.refuted)


def honest(number: int, folder: Path) -> Recording:
    """The honest recordings of one law, one amount of noise and one size."""
    law, scale = ("gaussian", "laplace")[number % 2], (0.003, 0.2, 20.0)[number // 2 % 3]
    rounds, rows = ((1, 3), (4, 8), (10, 30))[number // 6 % 3]
    moved = (0.0, 0.1, 1.0)[number // 18 % 3]
    x = drawn(rounds * rows, seed=number)
    drift = 1 - moved * torch.linspace(1, 0, rounds * rows).view(-1, 1, 1, 1)  # weights that learn, up to the last row
    released = x / 2 * drift + scale * noise(*x.shape, law=law, seed=100 + number)
    declares = changed(noise=Noise(law=law, smashed=scale))  # type: ignore[arg-type]
    return declared(folder, released, x, declares, rows=rows)


@pytest.mark.parametrize("number", range(54))
def test_an_honest_recording_raises_no_alarm(number: int, tmp_path: Path) -> None:
    found = declared_by(honest(number, tmp_path / "r")).compared
    assert not found.refuted
    assert {"releases of a record", "dimensions", "the range of releases"} <= set(found.checked)


def in_set(number: int, folder: Path) -> Recording:
    """The honest recordings of points on the border of a ball, of one radius and one size."""
    patched, above, radius = number % 2 == 1, number // 2 % 2 == 1, (0.01, 1.0, 50.0)[number // 4 % 3]
    rows = (2, 8, 60)[number // 12 % 3]
    clean = (1 if above else 2) * drawn(4 * rows, seed=number).view(-1, 8, 8) - (0 if above else 1)
    flat = clean if patched else clean.flatten(1)
    flat = flat * (radius / flat.norm(dim=-1, keepdim=True))
    clip: PatchBall | Ball = (
        PatchBall(radius=radius, patches=8, nonnegative=above) if patched else Ball(radius=radius, nonnegative=above)
    )
    released = flat + SIGMA * noise(*flat.shape, seed=100 + number)
    return declared(folder, released, None, changed(smashed=clip), rows=rows, lower=None)


@pytest.mark.parametrize("number", range(36))
def test_points_on_the_border_of_a_ball_raise_no_alarm(number: int, tmp_path: Path) -> None:
    found = declared_by(in_set(number, tmp_path / "r")).compared
    assert not found.refuted
    assert "the radius of releases" in found.checked


HALVES = torch.tensor([[1.0] * 4 + [0.0] * 4, [0.0] * 4 + [1.0] * 4])
UNEQUAL = torch.tensor([[0.7], [0.3]])
TWO = CLEAN.view(-1, 2, 4, 8, 8)
TRUE: dict[str, Made] = {
    "a client's rounds": lie(HONEST, changed(**CLIENT, rounds=50, releases=ROWS)),
    "a client's turn": lie(
        HONEST, changed(**CLIENT, rounds=50, releases=ROWS, participation=ShuffledEpochs(epoch_rounds=50))
    ),
    "three epochs": lie(HONEST, changed(rounds=ROUNDS), truth=X[:ROWS].repeat(ROUNDS, 1, 1, 1)),
    "two passes": lie(torch.cat([HONEST, CLEAN + SIGMA * noise(ALL, 1, 8, 8, seed=9)]), passes=2),
    "a scale that is rounded": lie(CLEAN + 2 / 3 * N, changed(noise=Noise(smashed=0.67))),
    "half precision": lie(HONEST.half().float()),
    "no lower segment": lie(HONEST, lower=None),
    "no truth": lie(HONEST, truth=None),
    "a lower segment that draws": lie(HONEST, lower=NOISY),
    "a clamp behind the recorded segment": lie(
        CLEAN.clamp(max=0.25) + SIGMA * N, changed(smashed=Clamp(low=0, high=0.25, dimensions=64))
    ),
    "a ball behind the recorded segment": lie(
        CLEAN * (0.5 / CLEAN.flatten(1).norm(dim=1)).view(-1, 1, 1, 1) + SIGMA * N, changed(smashed=Ball(radius=0.5))
    ),
    "a defense of privkit's": lie(
        CLEAN.clamp(-0.3, 0.3) + SIGMA * N,
        changed(smashed=Clamp(low=-0.3, high=0.3, dimensions=64)),
        defense="gaussian_noise:sigma=.2,clip=.3",
    ),
    "equal shares": lie(
        mixed(torch.full((2, 1), 0.5)) + SIGMA * N[:20], PAIR, also=shares(torch.full((2, 1), 0.5)), **MIXED
    ),
    "unequal shares": lie(
        mixed(UNEQUAL) + SIGMA * N[:20],
        changed(mixing=Mixup(ratio=FixedRatio(ratios=(0.7, 0.3)))),
        also=shares(UNEQUAL),
        **MIXED,
    ),
    "noise of the clients before mixing": lie(
        mixed(UNEQUAL) + sqrt(0.58) * SIGMA * N[:20],
        changed(mixing=Mixup(ratio=FixedRatio(ratios=(0.7, 0.3))), noise=Noise(smashed=SIGMA, site="client")),
        also=shares(UNEQUAL),
        **MIXED,
    ),
    "shares that nobody recorded": lie(mixed(UNEQUAL) + SIGMA * N[:20], PAIR, truth=None, **MIXED),
    "masks": lie(
        (TWO * HALVES.view(2, 1, 8, 1)).sum(1).flatten(0, 1).flatten(1).view(20, 8, 8) + SIGMA * N[:20].view(20, 8, 8),
        changed(mixing=CutMix(ratio=FixedCounts(counts=(4, 4)), patches=8)),
        also=shares(HALVES),
        lower={"builder": "tests.recording.declarations:Tokens"},
        **MIXED,
    ),
    "hidden masks": lie(
        (CLEAN.view(ALL, 8, 8) * (drawn(ALL)[:, 0, :, :1] > 0.5)) + SIGMA * N.view(ALL, 8, 8),
        changed(mixing=HiddenMask(kept=4, patches=8), smashed=PatchBall(radius=0.5 * sqrt(8), patches=8)),
        lower={"builder": "tests.recording.declarations:Tokens"},
    ),
    "labels with their noise": lie(
        HONEST, LABELLED, also={**sent(one_hot(LABELS, 4) + 0.5 * noise(ALL, 4)), "truth.labels": LABELS}
    ),
    "labels in the clear, as is said": lie(HONEST, also=sent(LABELS)),
    "a secret sample": lie(HONEST, changed(participation=Poisson(rate=0.1), relation="add_or_remove_one", rounds=500)),
    "a known sensitivity": lie(HONEST, changed(smashed=Known(value=4.0, relation="replace_one", norm="l2"))),
    "replaced answers": lie(
        torch.where(drawn(ALL, 3) < 0.8, (drawn(ALL, 4) * 4).floor(), SAID), RESPONSE, lower=CATEGORIES
    ),
    "a picture that the dataset holds twice": lie(HONEST, truth=torch.cat([X[:-1], X[:1]])),
}


@pytest.mark.parametrize("name", TRUE)
def test_a_special_honest_recording_raises_none_either(name: str, tmp_path: Path) -> None:
    found = declared_by(TRUE[name](tmp_path / "r")).compared
    assert not found.refuted
    assert found.checked


def test_what_was_not_compared_is_said(tmp_path: Path) -> None:
    plain = declared_by(lie(HONEST)(tmp_path / "a")).compared
    assert plain.unchecked == ["whether the lower model was frozen"]
    assert plain.checked[-2:] == ["that there is as much noise", "the law of the noise"]
    drawn_too = declared_by(lie(HONEST, lower=NOISY)(tmp_path / "e")).compared
    assert "the law of the noise" in drawn_too.checked
    alone = declared_by(lie(HONEST, lower=None, truth=None)(tmp_path / "b")).compared
    assert alone.unchecked == [
        "how often a record is released (no true image was recorded)",
        "that records do not meet in the lower segment in eval mode (no lower segment was recorded)",
        "what the noise was added to (no lower segment was recorded)",
        "whether the lower model was frozen",
    ]
    far = declared_by(lie(HONEST, lower={**HALF, "options": {"factor": 3.0}})(tmp_path / "c")).compared
    assert "times as far from the replay" in far.sentence
    hidden = declared_by(
        lie(HONEST, changed(smashed=Known(value=4.0, relation="replace_one", norm="l2")))(tmp_path / "d")
    )
    assert "what bounds the sensitivity" in hidden.compared.unchecked


def test_ten_times_the_records_take_no_more_than_thirty_times_the_work(tmp_path: Path) -> None:
    """They take about three times as long: the comparison has a fixed part, and the rest grows with the records."""

    def seconds(count: int, name: str) -> float:
        x = drawn(count)
        recording = declared(tmp_path / name, x / 2 + SIGMA * noise(*x.shape), x, rows=64)
        began = process_time()
        assert not declared_by(recording).compared.refuted
        return process_time() - began

    few, many = (min(seconds(count, f"{count} {again}") for again in range(3)) for count in (64, 640))
    assert many < 30 * few
