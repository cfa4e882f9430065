"""The simulated figures against loops and closed forms."""

import subprocess
import sys
from itertools import chain, product
from math import sqrt

import numpy as np
import pytest

from privkit.papers.accurate_sl import denoising as theory
from privkit.papers.accurate_sl import denoising_simulation as simulation
from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer
from privkit.papers.accurate_sl.denoising_simulation import Settings
from tests.papers.layers import Array, layer_at


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_linear_curves_lie_on_the_closed_form(law: str) -> None:
    setting = Settings(law=law, rows=4, columns=6, draws=20_000, points=6, seed=3)  # type: ignore[arg-type]
    average = LinearLayer.average(rows=4, columns=6)
    for curves in simulation.simulate(setting, ("linear",)):
        mse = theory.scale_mse if curves.operator == "scaling" else theory.mask_mse
        for level, scale in enumerate(curves.scale):
            noise = CutNoise(law=law, scale=scale)  # type: ignore[arg-type]
            expected = np.array([mse(average, value, noise) for value in curves.factor])
            assert np.all(np.abs(curves.mse[level] - expected) < 4 * curves.error[level])


def test_simulation_equals_a_loop_over_draws() -> None:
    setting = Settings(law="laplace", scales=(0.4, 0.9), rows=3, columns=2, draws=40, points=3, seed=5)
    generator = np.random.default_rng(5)
    weights, features = generator.uniform(-1, 1, (40, 3, 2)), generator.uniform(-1, 1, (40, 2))
    noise, uniform = generator.laplace(size=(40, 2)), generator.random((40, 2))
    labels = generator.integers(3, size=40)

    def f(quantity: str, m: Array, u: Array, label: int) -> Array:
        z = m @ u
        if quantity == "linear":
            return z
        soft = np.exp(z) / np.exp(z).sum()
        return np.asarray(-np.log(soft[label : label + 1]) if quantity == "loss" else m.T @ (soft - np.eye(3)[label]))

    for curves in simulation.simulate(setting):
        for level, point in product(range(2), range(3)):
            value, found = curves.factor[point], []
            for k in range(40):
                noisy = features[k] + curves.scale[level] * noise[k]
                seen = value * noisy if curves.operator == "scaling" else noisy * (uniform[k] < value)
                clean = f(curves.quantity, weights[k], features[k], labels[k])
                found.append(np.sum((f(curves.quantity, weights[k], seen, labels[k]) - clean) ** 2))
            assert curves.mse[level, point] == pytest.approx(np.mean(found), rel=1e-10)
            assert curves.error[level, point] == pytest.approx(np.std(found, ddof=1) / sqrt(40), rel=1e-8)


def test_gradient_is_the_derivative_of_the_loss() -> None:
    batch = next(simulation._batches(Settings(rows=3, columns=2, draws=5)))
    base = batch.results(batch.features)
    for column in range(2):
        step = np.zeros((5, 2))
        step[:, column] = 1e-6
        slope = (batch.results(batch.features + step)["loss"] - batch.results(batch.features - step)["loss"]) / 2e-6
        assert base["gradient"][:, column] == pytest.approx(slope[:, 0], rel=1e-6, abs=1e-8)


def test_blocks_do_not_change_shapes_or_means(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Settings(rows=2, columns=3, draws=1001, points=3)
    whole = simulation.simulate(setting)
    monkeypatch.setattr(simulation, "_BLOCK", 60)
    for one, other in zip(whole, simulation.simulate(setting), strict=True):
        gap = np.abs(one.mse - other.mse)
        assert np.all(gap <= 4 * np.hypot(one.error, other.error) + 1e-12)
    assert len(simulation.best_scales(setting, 0.7)) == 1001


def drawn(name: str, settings: Settings) -> list[simulation.Curves]:
    return simulation.simulate(settings, simulation.FIGURES[name][1])


def test_figures_hold_the_papers_curves_and_are_reproducible() -> None:
    setting = Settings(draws=200, points=5)
    assert [(c.quantity, c.operator) for c in drawn("figure_2", setting)] == [
        ("linear", "scaling"),
        ("linear", "masking"),
        ("loss", "scaling"),
        ("loss", "masking"),
    ]
    assert [c.quantity for c in drawn("figure_6", setting)] == ["gradient", "gradient"]
    laplace = Settings(law="laplace", draws=200, points=5)
    assert len(drawn("figure_7", laplace)) == 6
    first, again = drawn("figure_7", laplace), drawn("figure_7", laplace)
    other = drawn("figure_7", Settings(law="laplace", draws=200, points=5, seed=1))
    for one, same, else_ in zip(first, again, other, strict=True):
        assert np.array_equal(one.mse, same.mse)
        assert not np.array_equal(one.mse, else_.mse)
        assert one.mse.shape == one.error.shape == (3, 5)


def test_what_figs_2_6_and_7_show_holds() -> None:
    for curves in chain(*(drawn(name, settings) for name, (settings, _) in simulation.FIGURES.items())):
        least, bare = curves.mse.min(axis=1), curves.mse[:, -1]
        assert curves.factor[-1] == 1
        if curves.operator == "scaling":
            assert np.all(least < bare)  # whatever the noise, some λ helps
        elif curves.scale[0] == 0.3 and curves.quantity != "loss":
            assert least[0] == bare[0]  # little noise: no mask helps
            assert least[2] < bare[2]  # much noise: some mask helps


def test_single_layers_scatter_around_the_average() -> None:
    found = simulation.best_scales(Settings(draws=40_000, seed=9), 0.7)
    assert np.quantile(found, [0.05, 0.95]).round(2).tolist() == [0.2, 0.57]
    batch = next(simulation._batches(Settings(draws=3, seed=9)))
    singles = simulation.best_scales(Settings(draws=3, seed=9), 0.7)
    for weights, features, single in zip(batch.weights, batch.features, singles, strict=True):
        layer = layer_at(weights, features)
        assert theory.least_mse_scale(layer, CutNoise(law="gaussian", scale=0.7)) == pytest.approx(single, rel=1e-12)


def test_settings_say_what_the_paper_leaves_open() -> None:
    assert "chosen (the paper does not say): m = 7, n = 9" in Settings(rows=7, columns=9).describe()
    assert "b = 0.3" in Settings(law="laplace").describe()


def test_imports_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, privkit.papers.accurate_sl.denoising_simulation, privkit.papers.accurate_sl.composition;"
        "print(sorted({'torch', 'matplotlib', 'scipy.integrate', 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
