"""The papers' own settings: each is an audit, `papers` shows it, and what a user gives stands in its place."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from privkit.errors import UsageError
from privkit.papers import PAPERS, paper
from privkit.papers.presets import overridden, preset, preset_settings, presets
from privkit.run.plan import plan
from privkit.settings.resolve import resolve


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_an_audit(name: str) -> None:
    config = resolve(preset(name))
    assert len(plan(config)) >= 1
    assert presets()[name].read_text(encoding="utf-8").startswith("# ")


def test_every_paper_has_a_preset_under_its_own_name_and_no_two_share_one() -> None:
    every = [path.stem for name in PAPERS for path in paper(name).presets]
    assert len(set(every)) == len(every) == len(presets())
    for name in PAPERS:
        assert paper(name).presets
        assert all(path.stem.startswith(name) for path in paper(name).presets)


def test_dp_cutmixsl_is_set_as_the_paper_says() -> None:
    config = resolve(overridden(preset("dp_cutmixsl"), {"seed": [3]}))
    training, protocol = config.also[0].training, config.also[0].protocol.spec
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("adamw", 0.001, 128)
    assert (protocol.grouping, protocol.clients, config.seeds) == ("round_robin", 10, (3,))
    assert config.model.spec.class_token == "client"
    assert training.warm_up == pytest.approx(5 / 600, rel=1e-3)


def test_what_is_given_stands_in_the_place_of_a_preset() -> None:
    config = resolve(overridden(preset("dp_cutmixsl"), {"training": "batch_size=5", "dataset": "digits"}))
    assert (config.training.batch_size, config.training.learning_rate, config.dataset.name) == (5, 0.001, "digits")


def test_a_file_names_a_preset_and_what_it_varies(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "dp_cutmixsl"\ndataset = "digits"\n[training]\nbatch_size = 5\n')
    config = resolve(preset_settings(file))
    assert (config.training.batch_size, config.training.learning_rate, config.dataset.name) == (5, 0.001, "digits")
    assert config.model.label.startswith("vit_tiny:")
    for wrong in ('"dp_cutmix"', "3"):
        file.write_text(f"preset = {wrong}\n")
        with pytest.raises(UsageError, match=f"unknown preset '{wrong.strip(chr(34))}'"):
            preset_settings(file)


@pytest.mark.slow
def test_a_preset_is_an_audit_with_flags_of_the_users_own(
    privkit_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    flags = [
        "--model",
        "vit_micro:pool=token,class_token=client",
        "--dataset",
        "tiny_digits",
        "--budget",
        "smoke",
        "--training",
        "batch_size=5",
    ]
    done = privkit_cli("audit", "--preset", "dp_cutmixsl", *flags, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dp_cutmixsl" in done.stdout


def test_an_unknown_preset_is_named_and_papers_lists_them(
    privkit_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    with pytest.raises(UsageError, match="did you mean 'dp_cutmixsl'"):
        preset("dp_cutmixls")
    listed = json.loads(privkit_cli("papers", "--json").stdout)
    assert {name for one in listed for name in one["presets"]} == set(presets())
    assert "--preset NAME" in privkit_cli("papers", "cutmixsl").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", presets())
def test_a_dry_run_shows_a_presets_cells_and_its_time(
    name: str, privkit_cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = privkit_cli("audit", "--preset", name, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "with controls on" in done.stdout
    assert "not applicable" not in done.stdout
