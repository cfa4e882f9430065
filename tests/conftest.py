"""Fixtures and settings of all tests, such as one thread and a finished small run to read."""

import atexit
import gc
import os
import pickle
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from privkit.attacks.inversion import black_box
from privkit.attacks.inversion.budgeted import mounted
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.start import main
from privkit.settings.table import DEFAULTS
from tests.forked import forked
from tests.needs import lacking
from tests.small import SMALL

torch.set_num_threads(1)

# Imported and collected objects live until the end, so garbage collection skips them (gc.freeze). Python clears only
# objects that are not frozen when it exits; they are unfrozen late, since pytest's last collection would take seconds.
gc.disable()
atexit.register(gc.unfreeze)

# Audits that name no attack run one that takes a second; tests of the default, `auto`, name it.
DEFAULTS["attack"] = ["black_box"]

# Every run has the same examples, so that chance does not change its result; HYPOTHESIS_PROFILE=default draws new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove the mark of the first cases of `slow(but=number)`, and skip tests that need what this machine lacks."""
    cases: Counter[str] = Counter()
    for item in items:
        for mark in [mark for mark in item.own_markers if mark.name == "slow" and "but" in mark.kwargs]:
            function = item.nodeid.partition("[")[0]
            cases[function] += 1
            if cases[function] <= mark.kwargs["but"]:
                item.own_markers.remove(mark)
        reasons = [lacking(name) for mark in item.iter_markers("needs") for name in mark.args]
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            reasons.append("needs a CUDA device")
        for reason in filter(None, reasons):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """From here on, garbage is collected."""
    gc.freeze()
    gc.enable()


def shared_state() -> dict[str, object]:
    """State of the process that all its tests share: name -> value."""
    return {
        **{f"variable {name}": value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "working folder": os.getcwd(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "type of numbers": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a file of tests that leaves shared state changed, so that no test of a later file fails because of it.

    New environment variables are allowed, since many libraries set one when they are loaded.
    """
    before = shared_state()
    yield
    after = shared_state()
    changed = {name for name, value in before.items() if after.get(name) != value}
    assert not changed, f"this file leaves these changed: {', '.join(sorted(changed))}"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Audits without a given number of threads use one thread, since tests already run in parallel."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("privkit.audit.run", "privkit.cli.estimate"):
            patch.setattr(f"{module}.default_threads", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Make `os.fsync` do nothing: no power fails in a test, and written data survive a kill of the process anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A finished audit of batch shuffling, run by the first worker that needs it; do not change its folder."""
    home = tmp_path_factory.getbasetemp()
    home = (home.parent if "PYTEST_XDIST_WORKER" in os.environ else home) / "small"
    home.mkdir(exist_ok=True)
    with FileLock(home / "lock"), pytest.MonkeyPatch.context() as patch:
        if not (home / "pickle").exists():
            patch.setattr(black_box, "mounted", partial(mounted, steps=50))  # half as long, and enough to win
            run = run_audit(defense="batch_shuffle", out=home / "run", **SMALL)
            (home / "pickle").write_bytes(pickle.dumps(run))
        return cast(AuditRun, pickle.loads((home / "pickle").read_bytes()))


@pytest.fixture
def copied(small_run: AuditRun, tmp_path: Path) -> Path:
    """A copy of the finished run, for tests that change or damage it."""
    return Path(shutil.copytree(small_run.folder, tmp_path / "run"))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits without the figures and the page of their report, which take seconds: for tests that read rows."""
    monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")


@pytest.fixture
def no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits without the control experiments, which may take longer than the attack: for tests of something else."""
    monkeypatch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())


@pytest.fixture(scope="session")
def loaded() -> None:
    """Import the modules that most commands and audits of small digits need, so that no fork has to."""
    for name in (
        "matplotlib.figure",
        "privkit.audit.run",
        "privkit.audit.scoring",
        "privkit.reports.page",
        "skimage.metrics",
        "sklearn.datasets",
        "timm.models.vision_transformer",
        "torch._dynamo",
    ):
        import_module(name)


@pytest.fixture
def privkit_cli(loaded: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs the command line in an empty folder, in a fork of this process; options as in `forked`."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return forked(main, ("privkit", *arguments), tmp_path, **options)

    return run


@pytest.fixture
def shared() -> Path:
    """The folder of reference material beside the project; the test is skipped without it."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, the reference material beside the project")
    return SHARED
