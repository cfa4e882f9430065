"""The default audit as it stands: what a newcomer sees first, within the promised time."""

from pathlib import Path
from time import process_time

import pytest

from privkit.audit.run import run_audit
from privkit.parts.threats import threats_of
from privkit.reports.conclusion import conclusions
from privkit.reports.schema import Row
from privkit.settings.quick_attacks import AUTO_THREAT_MODELS

CPU_SECONDS = 240.0
"""Of both cores together in two minutes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "by_queries"),
    [
        ("batch_shuffle", 0.75),
        ("patch_shuffle", 0.80),
    ],
)
def test_a_shuffle_falls_under_every_threat_model_that_is_tried(
    defense: str, by_queries: float, tmp_path: Path
) -> None:
    start = process_time()
    run = run_audit(defense=defense, attack="auto", out=tmp_path / "run", threads=1)
    assert process_time() - start < CPU_SECONDS
    assert run.exit_code == 0
    found = {one.threat_model: one for one in threats_of(run.rows)}
    rows = {row.attack: row for row in run.rows if row.defense == defense}

    def ssim(row: Row) -> float:
        return row.recovered["unaligned"]["ssim"].value

    assert [found[model].outcome for model in AUTO_THREAT_MODELS] == ["falls"] * 4
    assert ssim(rows[found["query"].attack]) >= by_queries
    # over seeds and machines, now one and now the other
    assert found["weights"].attack in ("jigsaw", "jigsaw_white_box")
    assert ssim(rows[found["weights"].attack]) > 0.5
    for model in ("query", "many_passes"):
        share = found[model].identified
        assert share is not None
        assert share.low > 0.5
    assert conclusions(run.rows, threats_of(run.rows))[0].sentence.startswith(
        f"{defense} does not protect these images"
    )
    assert [found[model].outcome for model in ("passive", "malicious")] == ["not_tried"] * 2
