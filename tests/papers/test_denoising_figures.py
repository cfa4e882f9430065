"""Figures of the denoising simulations: what is drawn is what was given; the paper's three figures."""

import io

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from privkit.papers.accurate_sl import denoising_simulation as simulation
from privkit.papers.accurate_sl import figures as denoising_figures
from privkit.papers.accurate_sl.denoising import CutNoise, LinearLayer, scale_mse
from privkit.papers.accurate_sl.denoising_simulation import Curves, Settings
from privkit.papers.accurate_sl.figures import panels
from privkit.reports import figures

SETTINGS = Settings(scales=(0.3, 0.7))


def curves(quantity: str = "loss", times: float = 1.0) -> Curves:
    factor = np.linspace(0, 1, 5)
    mse = times * np.array([(factor - 0.75) ** 2 + 0.1, (factor - 0.25) ** 2 + 0.5])
    scale, error = np.array(SETTINGS.scales), np.full((2, 5), 0.01)
    return Curves(quantity=quantity, operator="scaling", factor=factor, scale=scale, mse=mse, error=error)


def lines(axis: Axes) -> dict[str, list[np.ndarray]]:
    """Ordinates of what is drawn, by line style; markers under "o"."""
    found: dict[str, list[np.ndarray]] = {}
    for line in axis.get_lines():
        kind = "o" if line.get_marker() == "o" else str(line.get_linestyle())
        found.setdefault(kind, []).append(np.asarray(line.get_ydata(), float))
    return found


def test_curves_baselines_minima_and_labels_are_the_arrays() -> None:
    given = curves()
    axis = panels([given], SETTINGS).axes[0]
    drawn = lines(axis)
    assert np.array_equal(drawn["-"], given.mse)
    assert [line[0] for line in drawn["--"]] == [line[-1] for line in given.mse]
    assert [line[0] for line in drawn["o"]] == [line.min() for line in given.mse]
    assert ":" not in drawn
    assert [text.get_text() for text in axis.texts] == ["σ = 0.3", "σ = 0.7"]
    assert axis.get_title() == "(a) $f_2$ (cross-entropy), scaling"
    assert (axis.get_xlabel()[:16], axis.get_ylabel()) == ("scaling factor λ", "MSE of the loss (nats²)")
    for band, line, error in zip(axis.collections, given.mse, given.error, strict=True):
        heights = np.asarray(band.get_paths()[0].vertices, float)[:, 1]
        assert heights.max() == pytest.approx((line + 2 * error).max())
        assert heights.min() == pytest.approx((line - 2 * error).min())


def test_closed_form_is_drawn_and_named_only_where_there_is_one() -> None:
    figure = panels([curves("linear"), curves()], SETTINGS)
    left, right = figure.axes
    average = LinearLayer.average(rows=SETTINGS.rows, columns=SETTINGS.columns)
    noises = [CutNoise(law="gaussian", scale=scale) for scale in SETTINGS.scales]
    exact = [[scale_mse(average, factor, noise) for factor in np.linspace(0, 1, 5)] for noise in noises]
    assert np.array_equal(lines(left)[":"], exact)
    assert ":" not in lines(right)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[-1] == "closed form"
    assert figure.legends[0].get_title().get_text() == SETTINGS.describe()
    assert "closed form" not in [text.get_text() for text in panels([curves()], SETTINGS).legends[0].get_texts()]


def test_panels_of_a_row_share_their_vertical_axis() -> None:
    figure = panels([curves(), curves(times=10), curves(), curves()], SETTINGS)
    first, second, third, _ = figure.axes
    assert first.get_ylim() == second.get_ylim() != third.get_ylim()
    assert first.get_ylim()[0] == 0
    assert first.get_ylim()[1] > 10 * curves().mse.max()  # nothing is cut off


def test_text_does_not_overlap() -> None:
    figure = panels([curves()] * 4, SETTINGS)
    figure.canvas.draw()
    boxes = [axis.get_tightbbox() for axis in figure.axes] + [figure.legends[0].get_window_extent()]
    assert all(box is not None for box in boxes)
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert one is not None
            assert other is not None
            wide = min(one.x1, other.x1) - max(one.x0, other.x0)
            high = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert wide <= 1 or high <= 1


def test_equal_arrays_are_equal_pictures() -> None:
    first, again = (figures.save(panels([curves()], SETTINGS), "png") for _ in range(2))
    assert first == again
    assert Image.open(io.BytesIO(first)).width > 400
    assert b"<svg" in figures.save(panels([curves()], SETTINGS), "svg")


def test_the_papers_figures_draw_their_simulations() -> None:
    settings = Settings(draws=50, points=5)
    figure = denoising_figures.draw_figure("figure_2", settings)
    assert [axis.get_title()[:3] for axis in figure.axes] == ["(a)", "(b)", "(c)", "(d)"]
    assert np.array_equal(
        lines(figure.axes[2])["-"], simulation.simulate(settings, simulation.FIGURES["figure_2"][1])[2].mse
    )
    assert ":" in lines(figure.axes[0])
    assert ":" not in lines(figure.axes[2])
    assert "chosen (the paper does not say): m = 10, n = 16" in figure.legends[0].get_title().get_text()
    assert len(denoising_figures.draw_figure("figure_6", settings).axes) == 2
    assert len(denoising_figures.draw_figure("figure_7", Settings(law="laplace", draws=50, points=5)).axes) == 6
