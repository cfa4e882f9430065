"""What a claim does not cover is said on the row of an adversary that holds it."""

from math import inf
from pathlib import Path

import numpy as np
import pytest

from privkit.accountants.auditing.families import GAUSSIAN
from privkit.accountants.auditing.independent import epsilon_independent
from privkit.audit.claims import audit_one_run, uncovered
from privkit.audit.run import run_audit
from privkit.certificate import Certificate

CLAIM = Certificate(kind="differential_privacy", statement="", epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("claim", "lower_model", "known", "said"),
    [
        (CLAIM, "trained", {"lower"}, ("the lower segment itself",)),
        (CLAIM, "trained", {"query", "lower"}, ("the lower segment itself", "answers of the lower segment")),
        (CLAIM, "trained", {"auxiliary", "upper"}, ()),
        (CLAIM, "frozen", {"lower", "query"}, ()),
        (Certificate(kind="nothing", statement=""), "trained", {"lower"}, ()),
    ],
)
def test_what_a_claim_does_not_cover(
    claim: Certificate, lower_model: str, known: set[str], said: tuple[str, ...]
) -> None:
    found = " ".join(uncovered(claim, lower_model, frozenset(known)))
    assert bool(found) == bool(said)
    assert all(part in found for part in said)


@pytest.mark.usefixtures("no_report")
def test_rows_of_one_client_name_what_the_claim_leaves_out(tmp_path: Path) -> None:
    """The lower segment of one client was trained on raw records, which its claim expects to stay with the client."""
    run = run_audit(
        defense="gaussian_noise:sigma=1",
        attack=["white_box:epochs=1", "mean_image"],
        dataset="tiny_digits",
        budget="smoke:private=50,auxiliary=50,test=50,victims=25,epochs=1,attack_epochs=1",
        training="batch_size=25",
        threads=1,
        out=tmp_path / "run",
    )
    noisy = {
        row.attack: " ".join(row.notes) for row in run.rows if row.certificate and row.certificate.epsilon is not None
    }
    assert "the lower segment itself" in noisy["white_box:epochs=1"]
    assert "the lower segment itself" not in noisy["mean_image"]


def test_independent_canaries_of_a_run_without_a_claim_need_no_delta() -> None:
    """Without a δ the bound is one on ε at δ = 0, as that of dependent canaries is."""
    coins = np.arange(200) % 2 == 0
    scores = np.where(coins, 1.0, -1.0)
    free = Certificate(kind="nothing", statement="")
    found = audit_one_run(scores, coins, free, independent=True)
    assert found.delta == 0
    assert audit_one_run(scores, coins, free).epsilon < found.epsilon < inf
    with pytest.raises(ValueError, match="delta"):
        epsilon_independent([1.0] * 9, [-1.0] * 9, threshold=0, confidence=0.95, delta=0, family=GAUSSIAN)
