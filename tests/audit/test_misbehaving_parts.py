"""Parts that misbehave in every way that we thought of: no row but their own changes, and nothing hangs."""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.attacks.base import Mounting
from privkit.attacks.goals.reconstruct import ImageMounting, ImageObservation, Reconstruction
from privkit.audit import attack as attack_module
from privkit.audit import cell as cells
from privkit.audit.assembled import assemble
from privkit.audit.attack import Attacked
from privkit.audit.contained import contained
from privkit.audit.run import run_audit
from privkit.defenses.none import NoDefense
from privkit.errors import Misbehaved, UsageError
from privkit.files.import_path import imported
from privkit.metrics.own import values as own_values
from privkit.parts.registry import Component, parse
from privkit.reports.schema import Row
from privkit.settings.resolve import resolve
from tests.audit.audits import Odd
from tests.small import IMAGES, SMALL

pytestmark = pytest.mark.usefixtures("no_report", "no_controls")
SETTINGS: dict[str, Any] = {**SMALL, "budget": "smoke:private=80,auxiliary=80,test=40,victims=20,epochs=1"}
SETTINGS |= {"training": "batch_size=20", "defense": "none"}


class Bad(Odd):
    """It does what a test gives it, and guesses grey."""

    name: ClassVar[str] = "bad"
    needs: ClassVar[frozenset[str]] = frozenset({"auxiliary", "auxiliary_labels", "lower", "upper"})
    mounting: ClassVar[ImageMounting] = Mounting(ignores_views=True)
    act: ClassVar[Callable[[ImageObservation], object]]

    def run(self, observation: ImageObservation, *given: object) -> Reconstruction:
        guess = torch.full((20, 1, 8, 8), 0.5, dtype=torch.float32, device="cpu")
        done = type(self).act(observation)
        return Reconstruction(images=done if isinstance(done, Tensor) else guess)


def own(x: ImageObservation) -> Any:
    return x.auxiliary


def weights(module: nn.Module | None) -> list[Tensor]:
    assert module is not None
    return [weight.data for weight in module.parameters()]


def labels(x: ImageObservation) -> Tensor:
    assert x.auxiliary_labels is not None
    return x.auxiliary_labels


def truth_by_search(x: ImageObservation) -> None:
    """Blacken every tensor of images that this process can reach through the memory of its own."""
    own(x).untyped_storage().fill_(0)


IN_PLACE: dict[str, tuple[Callable[[ImageObservation], object], str]] = {
    "scaled": (lambda x: own(x).mul_(2).sub_(1), "the auxiliary images"),
    "by numpy": (lambda x: own(x).numpy().fill(7), "the auxiliary images"),
    "by data": (lambda x: own(x).data.zero_(), "the auxiliary images"),
    "one pixel": (lambda x: own(x)[0, 0, 0, 0].add_(0.5), "the auxiliary images"),
    "resized": (lambda x: own(x).resize_(3, 1, 8, 8), "the auxiliary images"),
    "emptied": (lambda x: own(x).set_(), "the auxiliary images"),
    "storage": (truth_by_search, "the auxiliary images"),
    "labels": (lambda x: labels(x).zero_(), "the auxiliary labels"),
    "release": (lambda x: x.views[0].smashed.zero_(), "the release"),
    "upper": (lambda x: weights(x.upper)[-1].add_(1), "weights of the defended model"),
}
GUESSES: dict[str, tuple[Callable[[ImageObservation], object], str]] = {
    "bytes": (lambda x: torch.full((20, 1, 8, 8), 127.0), r"must lie in \[0, 1\], got 127 to 127; divide those"),
    "centered": (lambda x: torch.full((20, 1, 8, 8), -1.0), r"must lie in \[0, 1\], got -1 to -1; map or clamp"),
    "integers": (lambda x: torch.full((20, 1, 8, 8), 1, dtype=torch.uint8), r"must be floats in \[0, 1\], got torch.u"),
    "not finite": (lambda x: torch.full((20, 1, 8, 8), torch.nan), "are not finite, real numbers"),
    "complex": (lambda x: torch.full((20, 1, 8, 8), 1j), "are not finite, real numbers"),
    "too few": (
        lambda x: torch.zeros(19, 1, 8, 8),
        r"a guess for each record, images \[20, 1, 8, 8\], got images \[19, 1",
    ),
    "flat": (lambda x: torch.zeros(20, 64), r"bad must return .*, images \[20, 1, 8, 8\], got images \[20, 64\]"),
}


def hooked() -> None:
    nn.modules.module.register_module_forward_hook(lambda module, given, result: result * 0)


def rung() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(1)


SHARED: dict[str, Callable[[], object]] = {
    "type": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "gradient": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(2),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "denormal": lambda: torch.set_flush_denormal(True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),  # type: ignore[no-untyped-call]
    "kernels": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "hook": hooked,
    "torch's dice": lambda: torch.manual_seed(1),
    "numpy's dice": lambda: np.random.seed(1),  # noqa: NPY002
    "Python's dice": lambda: random.seed(1),
    "numpy's errors": lambda: np.seterr(all="raise"),
    "folder": lambda: os.chdir("/"),
    "environment": lambda: os.environ.update(PRIVKIT_MISBEHAVED="1"),
    "cleared": lambda: os.environ.clear(),
    "warnings": lambda: warnings.simplefilter("error"),
    "streams": lambda: setattr(sys, "stderr", None),
    "recursion": lambda: sys.setrecursionlimit(500),
    "alarm": rung,
}
ENDS: dict[str, tuple[Callable[[], object], str]] = {
    "_exit": (lambda: os._exit(0), r"called os\._exit\(0\), which would end the whole audit"),
    "exit": (lambda: sys.exit(0), r"raised SystemExit\(0\), which would end the whole audit"),
    "raise": (lambda: (_ for _ in ()).throw(GeneratorExit), "GeneratorExit"),
}


def read(name: str) -> Any:
    """What one of `SHARED` sets."""
    reads: dict[str, Callable[[], Any]] = {
        "type": torch.get_default_dtype,
        "device": lambda: torch.empty(0).device,
        "gradient": torch.is_grad_enabled,
        "threads": torch.get_num_threads,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "precision": torch.get_float32_matmul_precision,
        "denormal": lambda: (torch.full((1,), 1e-40, dtype=torch.float32, device="cpu") * 1).item(),
        "anomaly": torch.is_anomaly_enabled,
        "kernels": lambda: torch.backends.cudnn.deterministic,
        "hook": lambda: len(nn.modules.module._global_forward_hooks),
        "torch's dice": lambda: torch.get_rng_state().tolist(),
        "numpy's dice": lambda: str(np.random.get_state()),  # noqa: NPY002
        "Python's dice": random.getstate,
        "numpy's errors": np.geterr,
        "folder": os.getcwd,
        "environment": lambda: dict(os.environ),
        "cleared": lambda: dict(os.environ),
        "warnings": lambda: list(warnings.filters),
        "streams": lambda: sys.stderr,
        "recursion": sys.getrecursionlimit,
        "alarm": lambda: (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]),
    }
    return reads[name]()


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], tuple[Row, Row]]]:
    """Computes the misbehaving cell and then nearest_record's, on one trained model; both rows."""
    patch = pytest.MonkeyPatch()
    patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
    patch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())
    bad = Component(name="bad", spec=Bad(), label="bad")
    patch.setattr("privkit.settings.resolve.parse", lambda kind, given: bad if given == "bad" else parse(kind, given))
    patch.setattr("privkit.settings.early.check_parts", lambda settings: None)
    kept: list[Any] = []
    real = cells.run_cell

    def watched(*given: Any) -> Row:
        kept.append(given)
        return real(*given)

    patch.setattr("privkit.audit.worker.run_cell", watched)
    Bad.act = lambda x: None
    run = run_audit(out=tmp_path_factory.mktemp("run") / "run", attack=["bad", "nearest_record"], **SETTINGS)
    assert [row.status for row in run.rows] == ["done", "done"]

    def again() -> tuple[Row, Row]:
        first, second = kept[-2:]
        return real(*first), real(*second)

    honest = again()
    assert honest == tuple(row.model_copy(update={"files": {}}) for row in run.rows)
    yield again
    patch.undo()


@pytest.fixture(scope="module")
def foreign(computed: Callable[[], tuple[Row, Row]]) -> Row:
    """The other attack's row beside a part that behaves."""
    Bad.act = lambda x: None
    return computed()[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("by numpy", "by data", "emptied") else name
        for name in IN_PLACE
    ],
)
def test_what_is_changed_in_place_is_refused_and_changes_no_other_row(
    name: str, computed: Callable[[], tuple[Row, Row]], foreign: Row
) -> None:
    act, changed = IN_PLACE[name]
    Bad.act = lambda x: repr(act(x))
    row, other = computed()
    assert row.status == "error"
    assert f"a part of this cell changed {changed}" in row.reason
    assert row.recovered == {}
    assert other == foreign


def test_weights_that_are_the_attacks_own_copy_may_change(
    computed: Callable[[], tuple[Row, Row]], foreign: Row
) -> None:
    Bad.act = lambda x: repr(weights(x.lower)[0].add_(1))
    row, other = computed()
    assert row.status == "done"
    assert other == foreign


@pytest.mark.parametrize("name", GUESSES)
def test_guesses_out_of_range_are_refused(name: str, computed: Callable[[], tuple[Row, Row]], foreign: Row) -> None:
    Bad.act, reason = GUESSES[name]
    row, other = computed()
    assert row.status == "error"
    with pytest.raises(Misbehaved, match=reason):
        raise Misbehaved(row.reason)
    assert other == foreign


@pytest.mark.parametrize("name", SHARED)
def test_what_the_process_shares_is_put_back(name: str, computed: Callable[[], tuple[Row, Row]], foreign: Row) -> None:
    before = read(name)
    Bad.act = lambda x: SHARED[name]()
    try:
        other = computed()[1]
        assert read(name) == before
        assert other == foreign
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("name", ENDS)
def test_a_part_that_ends_the_process_ends_its_own_cell(
    name: str, computed: Callable[[], tuple[Row, Row]], foreign: Row
) -> None:
    act, reason = ENDS[name]
    Bad.act = lambda x: act()
    row, other = computed()
    assert row.status == "error"
    with pytest.raises(Misbehaved, match=reason):
        raise Misbehaved(row.reason)
    assert other == foreign


def test_a_thread_that_a_part_leaves_behind_keeps_no_process_alive() -> None:
    with contained():
        left = Thread(target=Event().wait)
        left.start()
    assert left.daemon


def test_a_process_that_a_part_starts_may_end_by_itself() -> None:
    with contained():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class Scaled(NoDefense):
    """A defense that scales the images of its clients in place."""

    name: ClassVar[str] = "scaled"

    def apply(self, smashed: Tensor, *given: Any, **named: Any) -> Any:
        return super().apply(smashed.mul_(0.5), *given, **named)


@pytest.mark.slow
def test_a_defense_that_changes_images_changes_no_row_of_the_baseline(tmp_path: Path) -> None:
    given = {**SETTINGS, "attack": "nearest_record"}
    alone = run_audit(out=tmp_path / "alone", **given)
    beside = run_audit(out=tmp_path / "beside", **{**given, "defense": f"{__name__}:Scaled"})
    assert beside.rows[0] == alone.rows[0]


class Undefined(NoDefense):
    """A defense that makes a NaN after training."""

    name: ClassVar[str] = "undefined"

    def apply(self, smashed: Tensor, *given: Any, **named: Any) -> Any:
        made = smashed if torch.is_grad_enabled() else torch.where(smashed == smashed.amax(), torch.nan, smashed)
        return super().apply(made, *given, **named)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_release_with_nan_is_named_as_such_and_not_as_changed(tmp_path: Path) -> None:
    given = {**SETTINGS, "attack": "black_box", "defense": f"{__name__}:Undefined"}
    (row,) = (row for row in run_audit(out=tmp_path / "run", **given).rows if row.defense != "none")
    assert "the release holds NaN or infinity" in row.reason


class Blackening:
    """A metric that blackens what it compares."""

    name: ClassVar[str] = "blackening"
    higher_is_closer: ClassVar[bool] = True

    def __call__(self, truth: Any, guess: Any, *, data_range: float) -> Any:
        truth[:], guess[:] = 0, 0
        return np.zeros(len(truth))


def test_a_metric_compares_copies() -> None:
    truth, guess = torch.ones(2, 1, 4, 4), torch.ones(2, 1, 4, 4)
    own_values(Blackening(), truth, guess)
    assert bool((truth == 1).all())
    assert bool((guess == 1).all())


def test_what_a_module_sets_as_it_is_imported_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "import torch\ntorch.set_default_dtype(torch.float64)\ntorch.manual_seed(3)\npart = 1\n"
    (tmp_path / "sets_a_type.py").write_text(text, "utf-8")
    before = torch.get_rng_state()
    assert imported("the part", "sets_a_type:part") == 1
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_is_built_once_is_trained_in_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "from torch import nn\nonce = nn.Flatten(), nn.Linear(64, 10)\ndef segments():\n    return once\n"
    (tmp_path / "built_once.py").write_text(text, "utf-8")
    config = resolve({**SETTINGS, "model": "built_once:segments", "attack": "mean_image"})
    first, second = (assemble(config, NoDefense(), IMAGES, 10, 0)[1] for _ in range(2))
    weights(first)[0].zero_()
    assert bool((weights(second)[0] != 0).any())


def test_guesses_and_truth_outside_an_audit() -> None:
    truth = torch.rand(20, 1, 4, 4, generator=Generator().manual_seed(0))
    shift = patched_attack(lambda x: torch.full((20, 1, 4, 4), 127.0))
    with pytest.raises(Misbehaved, match=r"must lie in \[0, 1\], got 127 to 127"):
        shift(truth)
    seen = patched_attack(lambda x: own(x).zero_())(truth).truth
    assert seen is not None
    assert bool((seen != 0).any())


def patched_attack(act: Callable[[ImageObservation], object]) -> Callable[[Tensor], Attacked]:
    """The attack of these tests on records that its adversary holds as well, mounted without an audit."""

    def mounted(truth: Tensor) -> Attacked:
        Bad.act = act
        with pytest.MonkeyPatch.context() as patch:
            real = parse
            bad = Component(name="bad", spec=Bad(), label="bad")
            patch.setattr(attack_module, "parse", lambda kind, given: bad if given == "bad" else real(kind, given))
            patch.setattr(attack_module, "budgeted", lambda component, budget: component)
            return attack_module.attack([truth.flatten(1)], "bad", auxiliary=truth, truth=truth, controls=False)

    return mounted


class NeverNumbers(NoDefense):
    """A stage whose releases are NaN in training, too."""

    name: ClassVar[str] = "never_numbers"

    def apply(self, smashed: Tensor, labels: Tensor, *given: Any) -> Any:
        return super().apply(smashed * torch.nan, labels, *given)


def test_a_defense_that_releases_nan_is_told_so_before_any_work(tmp_path: Path) -> None:
    """It was advised to lower the learning rate."""
    given = {**SETTINGS, "defense": "tests.audit.test_misbehaving_parts:NeverNumbers", "attack": "mean_image"}
    with pytest.raises(UsageError, match=r"the release of .*NeverNumbers on vit_micro is not finite: .*return finite"):
        run_audit(out=tmp_path / "run", **given)
