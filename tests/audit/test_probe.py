"""A dry run times a step of training on few images if many take long, and scales it by their number."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from privkit.attacks.base import Session
from privkit.attacks.goals.reconstruct import ImageObservation
from privkit.audit import probe
from privkit.audit.goals.goal import Timed, audit_goal
from privkit.audit.probe import Rehearsal, seconds_of_training, training_step
from privkit.audit.seed_data import open_data
from privkit.domains.base import Batch
from privkit.errors import UsageError
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from privkit.torch_utils.clock import clock
from privkit.training.spec import TrainingSpec
from tests.small import SMALL

CPU = torch.device("cpu")


CONFIG = resolve({"defense": "mixup", **SMALL})
POOLS = open_data(CONFIG)[0]


def config_of(batch_size: int) -> AuditConfig:
    """A small audit with a batch of this size."""
    return replace(CONFIG, training=replace(CONFIG.training, batch_size=batch_size))


@pytest.mark.parametrize(("an_image", "timed_on"), [(1e-5, 1000), (0.1, 12), (10.0, 12)])
def test_the_time_of_a_step_is_exact_where_it_grows_with_the_images(
    an_image: float, timed_on: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 1000 images a client is timed whole if it is quick, and on twelve images if one takes seconds."""
    now, seen = 0.0, []

    def train(edge: object, upper: object, images: Batch, spec: TrainingSpec, **_: object) -> None:
        nonlocal now
        now += an_image * len(images)
        seen.append(spec.batch_size)

    monkeypatch.setattr(probe, "train", train)
    monkeypatch.setattr(probe, "clock", lambda device: lambda: now)
    config, defense = config_of(1000), CONFIG.defenses[-1]
    cell, seconds = training_step(config, defense, POOLS, CPU)
    assert cell.batch_size == seen[-1] == timed_on
    seen = sorted(set(seen))  # a short step of the whole batch is taken several times
    assert seconds == pytest.approx(an_image * 1000 * config.protocol.spec.clients)
    assert sum(seen[:-1]) <= seen[-1]


def test_work_grows_as_the_number_of_images_does() -> None:
    """Scaling a step by its images is right: operations of a step are counted at two sizes."""

    def operations(batch_size: int) -> int:
        cell = Rehearsal.of(CONFIG, CONFIG.defenses[-1], POOLS, CPU).sized(batch_size)
        with FlopCounterMode(display=False) as counter:
            seconds_of_training(cell)
        return counter.get_total_flops()

    assert operations(16) == 4 * operations(4) > 0


def test_an_attack_without_an_epoch_in_its_time_is_timed_on_smaller_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given up: "at least about 22 s" stood for more than 300. Its clock counts what it computes on."""
    now, sizes = 0.0, list[tuple[int, int]]()
    attack = resolve({**SMALL, "attack": "black_box:epochs=50"}).attacks[0]

    def run(observation: ImageObservation, generator: torch.Generator, watch: Session) -> None:
        nonlocal now
        assert observation.auxiliary is not None
        sizes.append((observation.batch_size, len(observation.auxiliary)))
        if len(observation.auxiliary) > 300:
            raise probe._Enough
        for epoch in range(50):
            now += len(observation.auxiliary)
            watch.report(epoch + 1, 50, 0.0)

    monkeypatch.setattr(type(attack.spec), "run", lambda spec, *given: run(*given))
    monkeypatch.setattr(probe, "clock", lambda device: lambda: now)
    timed = probe.attack_time(Rehearsal.of(CONFIG, CONFIG.defenses[0], POOLS, CPU).sized(100), attack, limit=1.0)
    assert len(sizes) > 1
    assert (timed.victims, timed.records) == sizes[-1]
    assert timed.seconds == pytest.approx(50 * sizes[-1][1])


def test_the_time_before_the_first_epoch_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queries before the first epoch were taken for a part of each of 80 epochs: 1,380 s stood for 30."""
    now = 0.0
    attack = resolve({**SMALL, "attack": "black_box:epochs=50"}).attacks[0]

    def run(observation: ImageObservation, generator: torch.Generator, watch: Session) -> None:
        nonlocal now
        now += 100.0
        watch.load()
        now += 2.0
        watch.report(1, 50, 0.0)

    monkeypatch.setattr(type(attack.spec), "run", lambda spec, *given: run(*given))
    monkeypatch.setattr(probe, "clock", lambda device: lambda: now)
    timed = probe.attack_time(Rehearsal.of(CONFIG, CONFIG.defenses[0], POOLS, CPU), attack, limit=1.0)
    assert timed.seconds == pytest.approx(100 + 50 * 2)


def test_a_hijack_takes_as_many_rounds_for_any_number_of_records() -> None:
    """The estimate of fsha on digits was 9485 s, by the number of records; its rounds take less than a minute."""
    timed = Timed(seconds=3.0, epochs=5, records=8, victims=2)
    for attack, grows in (("fsha", False), ("black_box", True)):
        spec = resolve({**SMALL, "attack": attack}).attacks[0].spec
        few, many = (
            audit_goal(spec).cost(
                spec, timed, config_of(4), {"private": count, "auxiliary": count, "victims": count, "a_round": 4}
            )
            for count in (100, 1000)
        )
        assert (many.seconds > few.seconds) == grows


def test_an_alarm_inside_no_grad_leaves_gradients_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One alarm in 300 rang while an optimizer's step put them on again; all that came later failed."""
    attack = resolve({**SMALL, "attack": "black_box:epochs=50"}).attacks[0]

    def run(*given: object) -> None:
        torch.set_grad_enabled(False)
        while True:
            pass

    monkeypatch.setattr(type(attack.spec), "run", run)
    probe.attack_time(Rehearsal.of(CONFIG, CONFIG.defenses[0], POOLS, CPU), attack, limit=0.01)
    assert torch.is_grad_enabled()


def test_only_what_this_process_computes_is_timed() -> None:
    """A machine that is busy with something else made an estimate of 440 to 700 s for 163."""
    now = clock(CPU)
    start = now()
    time.sleep(0.5)
    assert now() - start < 0.25


def test_a_network_that_fails_is_told_with_the_records_that_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network of colors on grey images; and table rows were called images."""
    (tmp_path / "wide.py").write_text(
        "from torch import nn\ndef lower():\n    return nn.Linear(99, 4)\n"
        "def upper(classes):\n    return nn.Linear(4, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for dataset, given in (("tiny_digits", r"images \[1, 8, 8\]"), ("breast_cancer", r"table rows \[30\]")):
        config = resolve({**SMALL, "dataset": dataset, "model": "wide.lower:wide.upper", "defense": "gaussian_noise"})
        with pytest.raises(UsageError, match=rf"fails on random {given} \(.* cannot be multiplied"):
            training_step(config, config.defenses[0], open_data(config)[0], CPU)


def test_an_embedding_that_lacks_ids_is_told_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.py").write_text(
        "from torch import nn\ndef lower():\n    return nn.Embedding(5, 4)\n"
        "def upper(classes):\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))\n"
    )
    (tmp_path / "texts.tsv").write_text("".join(f"{i % 2}\tword{i} and more\n" for i in range(900)))
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"dataset": "text_file:file=texts.tsv", "model": "small.lower:small.upper", "defense": "gaussian_noise"}
    config = resolve({**SMALL, **given, "data_root": tmp_path})
    with pytest.raises(UsageError, match=r"out of range in self\); an embedding of token ids needs \d{2,} rows; "):
        training_step(config, config.defenses[0], open_data(config)[0], CPU)
