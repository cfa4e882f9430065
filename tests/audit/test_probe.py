"""A dry run times a step of training on few images if many take long, and scales it by their number."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from privkit.audit import probe
from privkit.audit.probe import training_step, untrained
from privkit.audit.seed_data import open_data
from privkit.config import AuditConfig
from privkit.domains.base import Batch
from privkit.settings import resolve
from privkit.training.spec import TrainingSpec
from tests.small import SMALL

CPU = torch.device("cpu")


CONFIG = resolve({"defense": "mixup", **SMALL})
POOLS = open_data(CONFIG)[0]


def config_of(batch_size: int) -> AuditConfig:
    """A small audit with a batch of this size."""
    return replace(CONFIG, training=replace(CONFIG.training, batch_size=batch_size))


@pytest.mark.parametrize(("an_image", "timed_on"), [(1e-5, 1000), (0.1, 8), (10.0, 8)])
def test_the_time_of_a_step_is_exact_where_it_grows_with_the_images(
    an_image: float, timed_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 1000 images a client is timed whole if it is quick, and on eight images if one takes seconds."""
    now, seen = 0.0, []

    def train(edge: object, upper: object, images: Batch, spec: TrainingSpec, **_: object) -> None:
        nonlocal now
        now += an_image * len(images)
        seen.append(spec.batch_size)

    monkeypatch.setattr(probe, "train", train)
    monkeypatch.setattr(probe, "perf_counter", lambda: now)
    config, defense = config_of(1000), CONFIG.defenses[-1]
    step = training_step(config, defense, untrained(config, defense, POOLS, CPU), POOLS, CPU)
    assert step.batch_size == seen[-1] == timed_on
    assert step.seconds == pytest.approx(an_image * 1000 * config.protocol.spec.clients)
    assert sum(seen[:-1]) <= seen[-1]


def test_work_grows_as_the_number_of_images_does() -> None:
    """Scaling a step by its images is right: operations of a step are counted at two sizes."""

    def operations(batch_size: int) -> int:
        sized = config_of(batch_size)
        model = untrained(sized, CONFIG.defenses[-1], POOLS, CPU)
        with FlopCounterMode(display=False) as counter:
            probe._step(sized, model, POOLS, batch_size, CPU)
        return counter.get_total_flops()

    assert operations(16) == 4 * operations(4) > 0
