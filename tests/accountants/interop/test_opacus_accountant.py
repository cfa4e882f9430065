"""A real opacus training loop with privkit's accountant, and its ε against opacus' and dp_accounting's."""

import io
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, RDPAccountant, create_accountant
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from privkit.accountants.bounds import numerical_composition as pld
from privkit.accountants.bounds.loss_distribution import GridTooLarge
from privkit.accountants.interop import opacus_accountant
from privkit.accountants.interop.opacus_accountant import PrivkitAccountant, register
from tests.accountants.one_release import exact

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

DELTA = 1e-5
History = list[tuple[float, float, int]]
HISTORIES: list[History] = [
    [(1.0, 0.02, 300)],
    [(0.7, 0.05, 40)],
    [(4.0, 0.3, 100)],
    [(1.2, 0.01, 200), (0.9, 0.02, 100), (2.0, 0.05, 60)],
]


def accountant(history: History) -> PrivkitAccountant:
    """With a past."""
    found = PrivkitAccountant()
    found.history = list(history)
    return found


def parts(samples: int = 400, batch: int = 20) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """A linear model on handwritten digits."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data[:samples], dtype=torch.float32) / 16
    data = TensorDataset(images, torch.tensor(digits.target[:samples]))
    model = torch.nn.Linear(64, 10)
    return model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(data, batch_size=batch)


def train(model: Any, optimizer: Any, loader: Any, epochs: int = 1) -> tuple[int, float]:
    """Steps taken, and the loss of the last batch that held a record."""
    steps, loss = 0, torch.tensor(inf)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            steps += 1
    return steps, loss.item()


# Training


def test_a_real_training_loop_is_accounted_for() -> None:
    register()
    engine = PrivacyEngine(accountant="privkit")
    assert isinstance(engine.accountant, PrivkitAccountant)
    model, optimizer, loader = engine.make_private(
        module=(made := parts())[0], optimizer=made[1], data_loader=made[2], noise_multiplier=1.1, max_grad_norm=1.0
    )
    assert engine.get_epsilon(DELTA) == 0.0
    spent = []
    for _ in range(2):
        steps, _ = train(model, optimizer, loader)
        assert steps == 20
        spent.append(engine.get_epsilon(DELTA))
    assert engine.accountant.history == [(1.1, pytest.approx(1 / 20), 40)]
    assert len(engine.accountant) == 40
    assert 0 < spent[0] < spent[1]
    rdp, prv = RDPAccountant(), PRVAccountant()
    rdp.history = prv.history = list(engine.accountant.history)
    assert spent[1] <= rdp.get_epsilon(DELTA)
    lower, _, upper = prv._get_dprv(eps_error=0.01, delta_error=DELTA / 1000).compute_epsilon(DELTA, DELTA / 1000, 0.01)
    assert lower <= spent[1] <= upper


@pytest.mark.slow
def test_noise_and_rate_may_change_on_the_way() -> None:
    register()
    engine = PrivacyEngine(accountant="privkit")
    model, optimizer, loader = engine.make_private(
        module=(made := parts())[0], optimizer=made[1], data_loader=made[2], noise_multiplier=1.5, max_grad_norm=1.0
    )
    train(model, optimizer, loader)
    first = engine.get_epsilon(DELTA)
    optimizer.noise_multiplier = 0.9
    train(model, optimizer, loader)
    assert [entry[::2] for entry in engine.accountant.history] == [(1.5, 20), (0.9, 20)]
    assert engine.get_epsilon(DELTA) > first
    theirs = PLDAccountant()
    for sigma, rate, steps in engine.accountant.history:
        theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    assert engine.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-3)


def test_a_checkpoint_goes_on_where_it_stopped(tmp_path: Path) -> None:
    register()
    engine = PrivacyEngine(accountant="privkit")
    model, optimizer, loader = engine.make_private(
        module=(made := parts())[0], optimizer=made[1], data_loader=made[2], noise_multiplier=1.1, max_grad_norm=1.0
    )
    train(model, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "checkpoint.pt", module=model, optimizer=optimizer)
    again = PrivacyEngine(accountant="privkit")
    model, optimizer, loader = again.make_private(
        module=(made := parts())[0], optimizer=made[1], data_loader=made[2], noise_multiplier=1.1, max_grad_norm=1.0
    )
    again.load_checkpoint(path=tmp_path / "checkpoint.pt", module=model, optimizer=optimizer)
    assert again.get_epsilon(DELTA) == engine.get_epsilon(DELTA) > 0
    train(model, optimizer, loader)
    assert again.accountant.history == [(1.1, pytest.approx(0.05), 40)]
    other = PrivacyEngine(accountant="rdp")
    with pytest.raises(ValueError, match="privkit"):
        other.accountant.load_state_dict(again.accountant.state_dict())


@pytest.mark.parametrize("target", [1.0, 4.0])
def test_noise_is_found_for_a_target(target: float) -> None:
    register()
    engine = PrivacyEngine(accountant="privkit")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=(made := parts())[0],
        optimizer=made[1],
        data_loader=made[2],
        target_epsilon=target,
        target_delta=DELTA,
        epochs=2,
        max_grad_norm=1.0,
    )
    train(model, optimizer, loader, epochs=2)
    assert target - 0.011 <= engine.get_epsilon(DELTA) <= target
    rdp = RDPAccountant()
    rdp.history = [(optimizer.noise_multiplier, 0.05, 40)]
    assert rdp.get_epsilon(DELTA) > target  # opacus' default would have asked for more noise


def test_training_learns_something() -> None:
    """The loop above is a real one: without noise the loss falls."""
    register()
    engine = PrivacyEngine(accountant="privkit")
    model, optimizer, loader = engine.make_private(
        module=(made := parts())[0], optimizer=made[1], data_loader=made[2], noise_multiplier=0.0, max_grad_norm=1.0
    )
    _, loss = train(model, optimizer, loader, epochs=4)
    assert loss < 1.0 < np.log(10)
    assert engine.get_epsilon(DELTA) == inf


# Numbers


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 1e-3])
def test_epsilon_is_at_most_rdps_and_inside_prvs_interval(history: History, delta: float) -> None:
    found = accountant(history).get_epsilon(delta)
    rdp, prv = RDPAccountant(), PRVAccountant()
    rdp.history = prv.history = list(history)
    assert found <= rdp.get_epsilon(delta)
    lower, _, upper = prv._get_dprv(eps_error=0.01, delta_error=delta / 1000).compute_epsilon(delta, delta / 1000, 0.01)
    assert lower <= found <= upper
    assert found <= tight_epsilon(history, delta) * (1 + 2e-3)


def tight_epsilon(history: History, delta: float) -> float:
    """dp_accounting's ε, an upper bound by pessimistic rounding."""
    theirs = PLDAccountant()
    for sigma, rate, steps in history:
        theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    return float(theirs.get_epsilon(delta))


def test_without_sampling_it_is_the_exact_profile() -> None:
    mu = (9 / 16 + 4 / 25) ** 0.5
    history: History = [(4.0, 1.0, 9), (5.0, 1.0, 4)]
    assert accountant(history).get_epsilon(DELTA) == pytest.approx(exact(mu), rel=1e-9)
    sampled: History = [(4.0, 0.1, 9), (5.0, 0.2, 4)]
    assert accountant(sampled).get_epsilon(DELTA, poisson=False) == pytest.approx(exact(mu), rel=1e-9)
    assert accountant(sampled).get_epsilon(DELTA) < exact(mu) / 2


def test_the_order_of_steps_does_not_matter() -> None:
    a, b = (1.2, 0.01, 30), (0.9, 0.02, 20)
    once = accountant([a, b]).get_epsilon(DELTA)
    assert accountant([(1.2, 0.01, 10), b, (1.2, 0.01, 20)]).get_epsilon(DELTA) == pytest.approx(once, rel=1e-12)


def test_steps_add_up_like_opacus_keeps_them() -> None:
    ours, theirs = PrivkitAccountant(), RDPAccountant()
    for sigma, rate in [(1.0, 0.1)] * 3 + [(2.0, 0.1)] + [(1.0, 0.1)] * 2:
        ours.step(noise_multiplier=sigma, sample_rate=rate)
        theirs.step(noise_multiplier=sigma, sample_rate=rate)
    assert ours.history == theirs.history == [(1.0, 0.1, 3), (2.0, 0.1, 1), (1.0, 0.1, 2)]
    assert len(ours) == 6


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("history", HISTORIES[1::2])
def test_without_numerical_composition_it_still_does_not_exceed_rdp(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*_: object) -> tuple[float, float]:
        raise GridTooLarge(1e9, 1e-4)

    monkeypatch.setattr(pld, "composed_bounds", too_large)
    rdp = RDPAccountant()
    rdp.history = list(history)
    found = accountant(history).get_epsilon(DELTA)
    assert tight_epsilon(history, DELTA) * (1 - 2e-3) <= found <= rdp.get_epsilon(DELTA) * (1 + 1e-9)


def test_a_history_of_many_kinds_is_composed_by_renyi() -> None:
    history = [(float(sigma), 0.05, 2) for sigma in np.linspace(1.5, 2.5, 300)]
    assert len(history) > opacus_accountant.MOST_KINDS
    found = accountant(history).get_epsilon(DELTA)
    between = [accountant([(sigma, 0.05, 600)]).get_epsilon(DELTA) for sigma in (1.5, 2.5)]
    assert between[1] < found < 1.3 * between[0]
    rdp = RDPAccountant()
    rdp.history = history[::50]
    assert found > rdp.get_epsilon(DELTA) * 0.5


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    sigma=st.floats(0.05, 50),
    rate=st.floats(1e-5, 1),
    steps=st.integers(1, 10**5),
    delta=st.floats(1e-12, 0.9),
)
def test_epsilon_is_never_negative_and_never_nan(sigma: float, rate: float, steps: int, delta: float) -> None:
    found = accountant([(sigma, rate, steps)]).get_epsilon(delta)
    assert 0 <= found < inf
    unsampled = accountant([(sigma, rate, steps)]).get_epsilon(delta, poisson=False)
    assert found <= unsampled
    assert found <= accountant([(sigma, rate, steps + 1000)]).get_epsilon(delta) * (1 + 1e-3) + 1e-6


def test_a_large_delta_gives_zero_where_opacus_gives_a_negative_number() -> None:
    history: History = [(10.0, 0.01, 10)]
    rdp = RDPAccountant()
    rdp.history = list(history)
    assert rdp.get_epsilon(0.9) < 0
    assert accountant(history).get_epsilon(0.9) == 0.0


@pytest.mark.parametrize("sigma", [1e-3, pytest.param(1e-9, marks=pytest.mark.slow), 1e-200, 1e-320])
def test_hardly_any_noise_gives_a_huge_epsilon(sigma: float) -> None:
    assert accountant([(sigma, 0.01, 10)]).get_epsilon(DELTA) > 1e6


# Bad input


@pytest.mark.parametrize("sigma", [float("nan"), -1.0, inf, True, "1", None, torch.tensor(1.0)])
@pytest.mark.parametrize("where", ["step", "history", "state"])
def test_a_bad_noise_multiplier_is_refused(sigma: Any, where: str) -> None:
    refused_everywhere(sigma, 0.1, 1, where, "noise_multiplier")


@pytest.mark.parametrize("rate", [float("nan"), -0.1, 0.0, 1.1, True, "0.1", None])
@pytest.mark.parametrize("where", ["step", "history", "state"])
def test_a_bad_sample_rate_is_refused(rate: Any, where: str) -> None:
    refused_everywhere(1.0, rate, 1, where, "sample_rate")


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, float("nan")])
@pytest.mark.parametrize("where", ["history", "state"])
def test_a_bad_number_of_steps_is_refused(steps: Any, where: str) -> None:
    refused_everywhere(1.0, 0.1, steps, where, "steps")


def refused_everywhere(sigma: Any, rate: Any, steps: Any, where: str, name: str) -> None:
    """In a step, in a history that was set, in a checkpoint."""
    found = accountant([(1.0, 0.5, 7)])
    if where == "step":
        with pytest.raises(ValueError, match=name):
            found.step(noise_multiplier=sigma, sample_rate=rate)
    elif where == "state":
        with pytest.raises(ValueError, match=name):
            found.load_state_dict({"mechanism": "privkit", "history": [(sigma, rate, steps)]})
    else:
        found.history.append((sigma, rate, steps))
        with pytest.raises(ValueError, match=name):
            found.get_epsilon(DELTA)
        return
    assert found.history == [(1.0, 0.5, 7)]


@pytest.mark.parametrize("history", [3, [3], [(1.0, 0.1)], None, "abc"])
def test_a_history_of_another_shape_is_refused(history: Any) -> None:
    found = accountant([(1.0, 0.5, 7)])
    with pytest.raises(ValueError, match="cannot be loaded"):
        found.load_state_dict({"mechanism": "privkit", "history": history})
    assert found.history == [(1.0, 0.5, 7)]


@pytest.mark.parametrize("state", [{}, {"history": []}, {"mechanism": "privkit"}, {"mechanism": "rdp", "history": []}])
def test_another_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"[Cc]annot be loaded"):
        PrivkitAccountant().load_state_dict(state)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, float("nan"), True, "1e-5", None])
def test_a_bad_delta_is_refused(delta: Any) -> None:
    with pytest.raises(ValueError, match="delta"):
        accountant([(1.0, 0.1, 1)]).get_epsilon(delta)
    with pytest.raises(ValueError, match="delta"):
        PrivkitAccountant().get_epsilon(delta)


def test_options_of_other_accountants_are_taken_and_typing_errors_are_not() -> None:
    found = accountant([(1.0, 0.1, 1)])
    assert found.get_epsilon(DELTA, eps_error=0.1, alphas=[2.0]) == found.get_epsilon(DELTA)
    with pytest.raises(ValueError, match="unknown option 'poison'"):
        found.get_epsilon(DELTA, poison=False)
    wrong: Any = "no"
    with pytest.raises(ValueError, match="poisson must be"):
        found.get_epsilon(DELTA, poisson=wrong)


def test_float32_and_whole_numbers_cost_what_floats_cost() -> None:
    found = accountant([])
    odd: Any = np.float32(1.5)
    found.step(noise_multiplier=odd, sample_rate=0.1)
    assert found.history == [(1.5, 0.1, 1)]
    assert [type(value) for value in found.history[0]] == [float, float, int]
    assert accountant([(2, 0.1, 5)]).get_epsilon(DELTA) == accountant([(2.0, 0.1, 5)]).get_epsilon(DELTA)


def test_a_rate_that_rounds_above_one_is_one() -> None:
    found = PrivkitAccountant()
    found.step(noise_multiplier=1.0, sample_rate=(1 / 49) * 49 + 2e-16)
    assert found.history == [(1.0, 1.0, 1)]


def test_state_survives_torch_save() -> None:
    found, buffer = accountant([(1.0, 0.1, 5), (2.0, 0.1, 1)]), io.BytesIO()
    torch.save(found.state_dict(), buffer)
    buffer.seek(0)
    again = PrivkitAccountant()
    again.load_state_dict(torch.load(buffer, weights_only=True))
    assert again.history == found.history
    found.step(noise_multiplier=2.0, sample_rate=0.1)
    assert again.history[-1] == (2.0, 0.1, 1)


def test_registering_twice_is_fine_and_others_stay() -> None:
    register()
    register()
    assert type(create_accountant("privkit")) is PrivkitAccountant
    assert type(create_accountant("rdp")) is RDPAccountant


def test_privkit_accountants_alone_imports_neither_opacus_nor_torch() -> None:
    code = (
        "import sys, privkit.accountants, privkit.accountants.answer, privkit.accountants.ledger, "
        "privkit.accountants.interop.events\n"
        "print([name for name in ('torch', 'opacus', 'dp_accounting', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
