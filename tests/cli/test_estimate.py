"""A dry run meets what the run would meet, and says it in one sentence."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor, nn

from privkit.attacks import ATTACKS
from privkit.audit.run import run_audit
from privkit.cli.estimate import preview
from privkit.errors import UsageError
from privkit.settings.resolve import resolve
from tests.small import SMALL


class Flat(nn.Module):
    """A lower segment whose release is not a grid."""

    def forward(self, images: Tensor) -> Tensor:
        """Pixels in a row."""
        return images.flatten(1)


class Crashing(nn.Module):
    """A lower segment with a fault."""

    def forward(self, images: Tensor) -> Tensor:
        """Raise."""
        raise RuntimeError("boom\nand more")


def upper(classes: int) -> nn.Module:
    """Fits `Flat`."""
    return nn.Linear(64, classes)


def test_an_attack_that_does_not_apply_is_said_in_its_line() -> None:
    pair = f"{__name__}.Flat:{__name__}.upper"
    text = preview(resolve({"defense": "none", "model": pair, "attack": "jigsaw", **SMALL}))
    assert "not applicable: a decoder needs tokens" in text.splitlines()[0]
    assert "1 cells" in text


def test_an_attack_on_labels_that_does_not_apply_is_said_as_in_the_run() -> None:
    given = {"defense": "none", "attack": "exploit", **SMALL}
    assert "not applicable" not in preview(resolve(given))
    text = preview(resolve({**given, "training": "batch_size=4,freeze_lower=true"}))
    assert "not applicable: no gradient comes back to a client: the lower segment does not learn" in text


def seconds(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?:about|up to) (\d+) s", line)]


@pytest.mark.slow
def test_the_twin_of_a_failing_attack_is_told_as_the_most() -> None:
    given = {"defense": "gaussian_noise", "attack": "auto", **SMALL, "escalate": 2}
    *lines, last = preview(resolve(given)).splitlines()
    twins = [line for line in lines if "only if the attack fails on a defense" in line]
    assert [line.split("-s0-")[0] for line in twins] == ["none-posterior_mean"] * 2
    assert re.search(
        r"^3 cells, about \d+ s .*, up to \d+ s with 2 more cells on the undefended model if attacks", last
    )

    least, most = seconds(last)
    assert most > least


@pytest.mark.slow
def test_the_doublings_of_a_failing_attack_are_told_as_the_most() -> None:
    given = {"defense": "gaussian_noise", **SMALL, "escalate": 2}
    (long,) = preview(resolve({**given, "defense": "none", "attack": "black_box:epochs=2000"})).splitlines()[:-1]
    once, all_doublings = seconds(long)
    assert 3.9 * once < all_doublings < 4.1 * once + 4
    assert "up to" not in preview(resolve({**given, "attack": "black_box:epochs=2000", "escalate": 0}))


def test_a_model_that_raises_is_one_sentence() -> None:
    pair = f"{__name__}.Crashing:{__name__}.upper"
    with pytest.raises(UsageError) as caught:
        preview(resolve({"defense": "none", "model": pair, **SMALL}))
    assert "boom" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_attack_that_raises_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"black_box:width=7|width"):
        preview(resolve({"attack": "black_box:width=7", **SMALL}))


@pytest.mark.slow
def test_the_estimate_uses_the_sizes_that_the_data_have(tmp_path: Path) -> None:
    """A hundred pictures are not the budget's two thousand."""
    config = resolve({"dataset": "lfw_subset", "training": "batch_size=20", "budget": "small", "threads": 1})
    assert int(preview(config).splitlines()[-1].split("about ")[1].split(" s")[0]) < 120


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["model_completion", "exploit"])
def test_the_training_of_attacks_on_labels_is_counted(attack: str) -> None:
    """Thousands of epochs take more than the seconds of the training that they follow."""
    text = preview(resolve({"defense": "none", "attack": f"{attack}:epochs=100000", **SMALL}))
    assert int(text.split("about ")[1].split(" s")[0]) > 60


@pytest.mark.slow
def test_the_default_audit_loads_no_library_that_it_does_not_need() -> None:
    """Each costs a process of an audit from half a second to three seconds; torch may load sympy in training."""
    heavy = ["timm", "torchvision", "scipy.stats", "sklearn", "skimage", "matplotlib", "pandas", "opacus", "sympy"]
    program = (
        "import sys\nfrom privkit.cli.app import app\napp(['audit', '--dry-run'], standalone_mode=False)\n"
        f"print('loaded', *sorted(set({heavy}) & set(sys.modules)))\n"
        "import gc\nprint(sum(generation['collections'] for generation in gc.get_stats()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "4 cells, " in done.stdout
    loaded, collections = done.stdout.splitlines()[-2:]
    assert loaded == "loaded"
    assert int(collections) < 300  # 590 if torch is loaded under the eyes of the collector, about 110 else


@pytest.mark.slow
def test_every_attack_and_every_protocol_has_an_estimate() -> None:
    text = preview(resolve({"defense": ["patch_shuffle", "mixup"], "attack": "all", **SMALL}))
    *lines, last = text.splitlines()
    assert "cells, " in last
    assert len(lines) == 4 * (len(ATTACKS) - 2)  # the constant guesses are floors of every row
    assert all("not estimated" not in line for line in lines)
    assert all(int(line.split("about ")[1].split(" s")[0]) >= 0 for line in lines)
    assert sum("not applicable" in line for line in lines if "-white_box-" in line) == 2  # under cutmixsl
    longest = {line.split("-s0-")[0]: int(line.split("about ")[1].split(" s")[0]) for line in lines}
    assert longest["none-adaptive"] >= longest["none-black_box"]  # eight passes and one


def test_shapes_are_checked_before_any_work(tmp_path: Path) -> None:
    """A defense on tokens and a model without: 149 CPU seconds of training went before the refusal."""
    with pytest.raises(UsageError, match="batch_shuffle does not fit resnet20: batch_shuffle needs tokens"):
        run_audit(defense="batch_shuffle", model="resnet20", out=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()
