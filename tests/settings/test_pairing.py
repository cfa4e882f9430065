"""A defense that mixes clients brings its own protocol, and leaves the other rows where they are."""

from pathlib import Path
from typing import Any

import pytest

from privkit.audit.run import run_audit
from privkit.errors import UsageError
from privkit.run.plan import plan
from privkit.settings.config import AuditConfig
from privkit.settings.resolve import resolve
from tests.small import SMALL

MIXED = ["patch_shuffle", "dp_cutmixsl:sigma=2"]


def shown(config: AuditConfig) -> list[tuple[str, str]]:
    return [(part.protocol.label, defense.label) for part in config.parts for defense in part.defenses]


def test_one_row_of_a_mixing_defense_moves_no_other() -> None:
    alone, together = resolve({"defense": MIXED[:1], **SMALL}), resolve({"defense": MIXED, **SMALL})
    assert shown(together) == [
        ("sl", "none"),
        ("sl", "patch_shuffle"),
        ("cutmixsl", "none:protocol=cutmixsl"),
        ("cutmixsl", "dp_cutmixsl:sigma=2.0"),
    ]
    ids = [cell.id for cell in plan(together)]
    assert ids[:2] == [cell.id for cell in plan(alone)]  # the same cells, by the same content
    assert len(set(ids)) == 4
    assert [part.training.batch_size for part in together.parts] == [50, 5]
    assert together.fingerprint != alone.fingerprint


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"defense": MIXED[1]}, [("cutmixsl", "none"), ("cutmixsl", "dp_cutmixsl:sigma=2.0")]),
        ({"defense": ["blur", "mixup"], "protocol": "psl"}, [("psl", "none"), ("psl", "blur"), ("psl", "mixup")]),
        ({"defense": "none"}, [("sl", "none")]),
        ({"defense": ["none", "mixup"]}, [("cutmixsl", "none"), ("cutmixsl", "mixup")]),
        (
            {"defense": ["blur", "blur:protocol=psl"]},
            [("sl", "none"), ("sl", "blur"), ("psl", "none:protocol=psl"), ("psl", "blur:protocol=psl")],
        ),
        (
            {"defense": [{"name": "mixup", "protocol": {"name": "psl", "clients": 4}}]},
            [("psl:clients=4", "none"), ("psl:clients=4", "mixup:protocol=psl:clients=4")],
        ),
    ],
)  # fmt: skip
def test_who_runs_under_which_protocol(settings: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert shown(resolve({**SMALL, **settings})) == expected


@pytest.mark.parametrize(
    ("defense", "hint"),
    [("mixup:protocol=sl", "only 1 of 1 send"), ("mixup:protocol=pls", "did you mean 'psl'?"), ([], "at least one")],
)
def test_pairs_that_cannot_be(defense: Any, hint: str) -> None:
    with pytest.raises(UsageError, match=hint.replace("?", r"\?")):
        resolve({**SMALL, "defense": defense})


@pytest.mark.slow
def test_rows_name_their_protocol_and_are_held_against_its_baseline(tmp_path: Path) -> None:
    run = run_audit(defense=["patch_shuffle", "mixup"], attack="mean_image", out=tmp_path / "run", **SMALL)
    assert [(row.protocol, row.defense) for row in run.rows] == [
        ("sl", "none"),
        ("sl", "patch_shuffle"),
        ("cutmixsl", "none:protocol=cutmixsl"),
        ("cutmixsl", "mixup"),
    ]
    again = run_audit(defense=["patch_shuffle", "mixup"], attack="mean_image", out=tmp_path / "run", **SMALL)
    assert again.rows == run.rows
    page = run.report.read_text()
    baselines = [f"undefended {run.rows[number].accuracy.value:.3f}" for number in (0, 2)]  # type: ignore[union-attr]
    assert all(text in page for text in baselines)


@pytest.mark.usefixtures("no_report")
def test_a_white_box_without_a_segment_says_why_and_what_to_do(tmp_path: Path) -> None:
    few = {**SMALL, "budget": "smoke:private=40,auxiliary=40,test=20,victims=10", "training": "batch_size=1"}
    run = run_audit(defense="none", protocol="cutmixsl", attack="white_box", out=tmp_path / "run", **few)
    assert run.rows[0].status == "not_applicable"
    assert "each of 10 clients keeps a lower segment of its own" in run.rows[0].reason
    assert "use --protocol sl or splitfed, or --training freeze_lower=true" in run.rows[0].reason
