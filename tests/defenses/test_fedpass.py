"""FedPass: the paper's formula, fresh and fixed passports, and what parties of a vertical split keep apart."""

from math import sqrt
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from privkit.audit.run import run_audit
from privkit.defenses.fedpass import FedPass
from tests.small import SMALL, generator


def released(smashed: Tensor, seed: int = 0, **options: float) -> Tensor:
    defense = FedPass(**options)  # type: ignore[arg-type]
    return defense.apply(smashed, torch.zeros(smashed.shape[:2]), generator(seed))[0].smashed


def tanh_of(passport: Tensor, encoder: Tensor, decoder: Tensor) -> Tensor:
    """The network on one passport [C], number by number."""
    hidden = [sum(passport[c] * encoder[c, k] for c in range(len(passport))) for k in range(encoder.shape[1])]
    bent = [value if value > 0 else 0.01 * value for value in hidden]
    made = [sum(bent[k] * decoder[k, c] for k in range(len(bent))) for c in range(len(passport))]
    return torch.tensor(made, dtype=torch.float64).tanh()


@pytest.mark.parametrize("sigma", [0.0, 0.7])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (8, 2, 3)])
def test_equals_the_formula_written_out(shape: tuple[int, ...], sigma: float) -> None:
    z = torch.randn(2, 2, *shape, dtype=torch.float64, generator=generator(5))
    draws = Generator().manual_seed(3)
    means = -1.5 * torch.rand(2, 8, generator=draws, dtype=torch.float64)
    encoder = torch.randn(8, 2, generator=draws, dtype=torch.float64) / sqrt(8)
    decoder = torch.randn(2, 8, generator=draws, dtype=torch.float64) / sqrt(2)
    fresh = torch.randn(4, 2, 8, generator=generator(), dtype=torch.float64)
    found = FedPass(reach=1.5, sigma=sigma, seed=3).apply(z, torch.zeros(2, 2), generator())[0].smashed
    axis = 0 if len(shape) == 3 else len(shape) - 1
    for row, (record, sent) in enumerate(zip(z.flatten(0, 1), found.flatten(0, 1), strict=True)):
        scale, bias = (tanh_of(means[k] + sigma * fresh[row, k], encoder, decoder) for k in (0, 1))
        for channel in range(8):
            expected = scale[channel] * record.select(axis, channel) + bias[channel]
            torch.testing.assert_close(sent.select(axis, channel), expected, rtol=0, atol=1e-6)


def test_passports_of_the_run_stay_and_those_of_a_record_do_not() -> None:
    z = torch.randn(1, 5, 6, 12, dtype=torch.float64, generator=generator(5))
    fixed = released(z, sigma=0.0)
    torch.testing.assert_close(released(z, seed=1, sigma=0.0), fixed, rtol=0, atol=0)
    torch.testing.assert_close(FedPass(sigma=0.0).public_transform(z[0]), fixed[0], rtol=0, atol=0)
    fresh = released(z)
    assert not torch.allclose(released(z, seed=1), fresh)
    torch.testing.assert_close(FedPass().public_transform(z[0]), fixed[0], rtol=0, atol=0)  # a white box has the means


def test_two_own_records_reveal_passports_of_the_run_and_none_of_a_record() -> None:
    """An affine map of each channel follows from two points; a record's own passports leave nothing to learn."""
    own, private = torch.randn(2, 1, 2, 12, dtype=torch.float64, generator=generator(5))
    for sigma, wins in ((0.0, True), (1.0, False)):
        a, b = released(own, seed=1, sigma=sigma)[0]
        scale = (a - b) / (own[0, 0] - own[0, 1])
        guess = (released(private, seed=2, sigma=sigma) - (a - scale * own[0, 0])) / scale
        assert ((guess - private).abs().amax() < 1e-6) == wins


@pytest.mark.usefixtures("no_report")
def test_a_party_s_part_stays_its_own(tmp_path: Path) -> None:
    run = run_audit(
        defense="fedpass+split_parts",
        model="vertical",
        parts="part_1",
        attack="release_clustering",
        out=tmp_path / "run",
        **SMALL,
    )
    assert {row.status for row in run.rows} == {"done"}
