"""Pictures of masked and mixed data show what the defenses really send."""

import numpy as np
import pytest

from privkit.papers import paper
from privkit.papers.mixed_pictures import mixed_pictures


def test_a_picture_is_the_message_that_a_defense_makes() -> None:
    figure = mixed_pictures({"cut": "random_cutout", "mix": "mixup:concentration=inf", "cutmix": "random_cutmix"})
    drawn = [np.asarray(axis.images[0].get_array()) for axis in figure.axes]
    assert len(drawn) == 10
    for first, second, cut, mix, cutmix in (drawn[:5], drawn[5:]):  # images, then smashed data
        assert np.allclose(mix, (first + second) / 2, atol=1e-6)
        assert np.all((cutmix == first) | (cutmix == second))
        assert not np.array_equal(cutmix, first)
        patches = cut.reshape(7, 4, 7, 4).transpose(0, 2, 1, 3).reshape(49, 16)
        whole = first.reshape(7, 4, 7, 4).transpose(0, 2, 1, 3).reshape(49, 16)
        kept = (patches == whole).all(1)
        assert np.all(patches[~kept] == 0)
        assert kept.sum() >= 24


@pytest.mark.parametrize("name", ["dp_cutmixsl", "cutmixsl"])
def test_the_papers_methods_are_drawn_by_the_figures_command(name: str) -> None:
    assert "mixed_pictures" in paper(name).figures()
