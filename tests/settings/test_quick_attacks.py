"""`--attack auto`: what it mounts on which defense, and the table that it follows."""

import csv
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from privkit.attacks.base import threat_model
from privkit.audit.run import AuditRun, run_audit
from privkit.defenses import DEFENSES
from privkit.errors import UsageError
from privkit.parts.registry import parse
from privkit.parts.threats import threats_of
from privkit.reports.registry import REGISTRY
from privkit.run.plan import plan
from privkit.settings.quick_attacks import AUTO_THREAT_MODELS, LINKED, TABLE, _strongest, choose
from privkit.settings.resolve import resolve
from privkit.shared.measures import KINDS
from privkit.shared.threat_models import INCLUDES
from tests.small import SMALL

ROOT = Path(__file__).resolve().parents[2]


def mounted(**settings: object) -> dict[str, list[str]]:
    config = resolve({**SMALL, "attack": "auto", **settings})
    return {d.label: [a.label for a in part.attacks_on(d)] for part in config.parts for d in part.defenses}


def registry() -> list[dict[str, str]]:
    with REGISTRY.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_it_is_the_default() -> None:
    code = "from privkit.settings.table import DEFAULTS; print(DEFAULTS['attack'], DEFAULTS['budget'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "['auto'] quick"


def test_the_table_names_attacks_that_exist_and_a_defense_once_a_model() -> None:
    with TABLE.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["defense"].partition(":")[0] for row in rows} <= set(DEFENSES)
    for row in rows:
        assert parse("defenses", row["defense"]).label == row["defense"]
        assert threat_model(parse("attacks", row["attack"]).spec) == row["threat_model"]
    under = [(row["defense"], model) for row in rows for model in row["strongest_under"].split()]
    assert len(under) == len(set(under))
    assert {model for _, model in under} == set(AUTO_THREAT_MODELS)


def test_the_table_is_what_its_committed_lines_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    strongest = import_module("strongest")
    lines = strongest.read_lines(strongest.RUNS)
    assert strongest.table(lines) == TABLE.read_text(encoding="utf-8")
    loser = {**lines[0], "attack": "white_box", "threat_model": "weights", "mse": 0.9, "falls": False}
    assert f"{loser['defense']},white_box,weights,," in strongest.table([*lines, loser])


def test_a_shuffle_meets_its_strongest_jigsaws_and_the_baseline_the_black_box() -> None:
    found = mounted(defense=["patch_shuffle", "batch_shuffle"])
    assert found["none"] == [KINDS["images"].baseline]
    assert found["patch_shuffle"] == ["jigsaw", "jigsaw_white_box"]
    assert found["batch_shuffle"] == ["jigsaw", "jigsaw_white_box", "jigsaw:passes=8"]


def test_options_that_were_measured_have_a_choice_of_their_own() -> None:
    bare = choose(parse("defenses", "batch_shuffle:keep=0.4,frozen_block=false"), "images")
    assert (bare.attacks, bare.remark) == (("jigsaw", "jigsaw_white_box", "jigsaw:passes=8"), "")


def test_options_that_the_registry_has_meet_its_attacks_and_those_on_the_defense() -> None:
    label = "batch_shuffle:keep=0.2"
    rows = [row for row in registry() if row["defense"] == label]
    found = choose(parse("defenses", label), "images")
    assert found.remark == ""
    assert rows
    assert set(found.attacks) == {*(row["attack"] for row in rows), *_strongest()["batch_shuffle"]}
    assert {parse("attacks", row["attack"]).label for row in registry()} == {row["attack"] for row in registry()}


@pytest.mark.parametrize("unmeasured", ["batch_shuffle:keep=0.3", "patch_shuffle+gaussian_noise"])
def test_what_the_table_does_not_know_meets_the_general_list_and_that_is_said(unmeasured: str) -> None:
    found = choose(parse("defenses", unmeasured), "images")
    assert found.remark == f"auto has not measured {unmeasured}: its general list of attacks is mounted"
    stages = [stage.partition(":")[0] for stage in unmeasured.split("+")]
    known = tuple(dict.fromkeys(attack for stage in stages for attack in _strongest()[stage]))
    assert found.attacks[: len(known)] == known
    assert set(found.attacks) == {*known, *KINDS["images"].general}
    assert len(found.attacks) == len(set(found.attacks))


@pytest.mark.parametrize(
    ("given", "linked"),
    [
        ({}, False),
        ({"protocol": "splitfed:clients=10"}, True),
        ({"training": "freeze_lower=true"}, True),
        ({"training": "freeze_lower=true", "defense": "patch_shuffle"}, False),
    ],
)
def test_mixed_rows_meet_white_boxes_if_their_clients_share_a_segment(given: dict[str, str], linked: bool) -> None:
    """Measured so, dp_cutmixsl keeps black_box and unmix at the floor, and eight passes show .7 to a white box."""
    defense = given.get("defense", "dp_cutmixsl")
    found = mounted(**{"defense": defense, **given})[defense]
    assert found == [*_strongest()[defense], *(LINKED if linked else ())]


def test_a_defense_without_rows_meets_the_general_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows in ("_strongest", "_registered"):
        monkeypatch.setattr(f"privkit.settings.quick_attacks.{rows}", lambda: {})
    unknown = choose(parse("defenses", "blur"), "images")
    assert (unknown.attacks, "has not measured blur" in unknown.remark) == (KINDS["images"].general, True)
    assert {threat_model(parse("attacks", name).spec) for name in KINDS["images"].general} == set(AUTO_THREAT_MODELS)


def test_the_general_list_finds_nearly_all_that_the_strongest_attacks_find() -> None:
    """A defense that nobody measured may be any of those in the table."""
    with TABLE.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for defense in {row["defense"] for row in rows}:
        for model in AUTO_THREAT_MODELS:
            found = {
                row["attack"]: float(row["ssim"])
                for row in rows
                if row["defense"] == defense and row["threat_model"] in (model, *INCLUDES[model])
            }
            general = [found[attack] for attack in KINDS["images"].general if attack in found]
            assert max(general) >= max(found.values()) - 0.06, (defense, model)


def test_other_records_meet_the_attacks_that_read_them() -> None:
    words = mounted(dataset="definitions", defense="gaussian_noise")
    assert words == {"none": ["vocabulary"], "gaussian_noise": list(KINDS["tokens"].general)}
    assert mounted(dataset="breast_cancer", defense="gaussian_noise")["gaussian_noise"] == list(KINDS["tables"].general)


def test_models_and_protocols_bring_attacks_of_their_own(tmp_path: Path) -> None:
    """Vectors of parties are read by ridge, labels that stay are asked for, and a gradient names its next token."""
    u_shape = {"defense": "blur", "protocol": "u_shape"}
    assert mounted(**u_shape) == {
        "none": [KINDS["images"].baseline, "release_clustering"],
        "blur": [*_strongest()["blur"], "release_clustering"],
    }
    pooled = mounted(model="resnet20:cut=pool", dataset="cifar10", data_root=str(tmp_path), defense="none")
    assert pooled["none"][0] == KINDS["images"].baseline
    assert pooled["none"][1].startswith("posterior_mean:")
    parties = {"model": "vertical", "defense": "max_norm"}
    found = mounted(**parties)["max_norm"]
    assert found[-1] == "release_clustering"
    assert "ridge" in found
    assert mounted(**parties, dataset="breast_cancer")["none"] == ["ridge", "release_clustering"]
    texts = {"dataset": "definitions", "protocol": "u_shape", "defense": "none"}
    assert mounted(**texts)["none"] == ["vocabulary", "release_clustering"]
    assert mounted(**texts, model=f"hf:path={tmp_path},task=next_token")["none"] == ["vocabulary", "tail_inversion"]


def test_attacks_named_beside_it_are_added_once() -> None:
    assert mounted(defense="patch_shuffle", attack=["auto", "canaries", "jigsaw"]) == {
        "none": [KINDS["images"].baseline, "canaries", "jigsaw"],
        "patch_shuffle": [*_strongest()["patch_shuffle"], "canaries"],
    }
    with pytest.raises(UsageError, match="unknown attack"):
        resolve({**SMALL, "attack": "automatic"})
    with pytest.raises(UsageError, match="at least one defense and one attack"):
        resolve({**SMALL, "attack": []})


def test_each_defense_has_its_own_cells_and_the_fingerprint_knows() -> None:
    config = resolve({**SMALL, "attack": "auto", "defense": "patch_shuffle"})
    assert [cell.attack.name for cell in plan(config) if not cell.twin_of] == [
        "black_box",
        "jigsaw",
        "jigsaw_white_box",
    ]
    attacks = [KINDS["images"].baseline, "jigsaw", "jigsaw_white_box"]
    by_hand = resolve({**SMALL, "attack": attacks, "defense": "patch_shuffle"})
    assert config.fingerprint != by_hand.fingerprint
    assert {cell.id for cell in plan(config)} < {cell.id for cell in plan(by_hand)}


@pytest.fixture(scope="module")
def forbidden(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """A short audit by `auto` in which nothing may be queried."""
    folder: Path = tmp_path_factory.mktemp("auto") / "run"
    given = {**SMALL, "budget": "smoke:victims=25", "training": "batch_size=25", "queries": "rounds=0"}
    short = {"patch_shuffle": ("jigsaw", "white_box:epochs=0")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.settings.quick_attacks._strongest", lambda: short)
        patch.setattr("privkit.audit.goals.context.AttackContext.controls", lambda context, mount, **of: ())
        return run_audit(attack="auto", defense="patch_shuffle", out=folder, **given)


@pytest.mark.slow
def test_queries_that_are_forbidden_are_no_verdict(forbidden: AuditRun) -> None:
    found = {one.threat_model: one for one in threats_of(list(forbidden.rows))}
    assert found["query"].sentence.startswith("not possible: jigsaw needs")
    assert found["query"].sentence.endswith("the threat model forbids queries")
    assert found["weights"].attack == "white_box:epochs=0"
    assert (found["passive"].outcome, found["passive"].untried) == ("not_tried", ("fora", "pcat", "sdar", "unsplit"))


def test_the_page_shows_verdicts_first(forbidden: AuditRun) -> None:
    page = forbidden.report.read_text()
    assert 0 < page.index("not possible: jigsaw needs") < page.index('class="card"')
    assert "sdar, unsplit" in page
