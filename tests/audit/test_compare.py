"""Two runs beside each other: what is paired, what the test says, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import wilcoxon
from typer.testing import CliRunner

import privkit
from privkit.audit import compare as module
from privkit.audit.compare import paired, unpaired
from privkit.audit.run import AuditRun, run_audit
from privkit.cli.app import app
from privkit.errors import RunFolderError, UsageError
from privkit.reports.comparison import Comparison, Difference
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance
from privkit.run.records import PICTURES
from privkit.shared.interval import Interval
from tests.reports.made import made
from tests.small import SMALL


@pytest.fixture(scope="module")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> AuditRun:
    """The same models under another attack, which costs nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
        out = tmp_path_factory.mktemp("audit") / "other"
        return run_audit(defense="batch_shuffle", attack="mid_grey", out=out, **SMALL)


def line(found: Comparison, name: str, quantity: str) -> Difference:
    (difference,) = (one for one in found.differences if (one.first_name, one.quantity) == (name, quantity))
    return difference


def stored(run: AuditRun, number: int, metric: str) -> np.ndarray:
    arrays = np.load(run.folder / "cells" / run.rows[number].cell / "per_example.npz")
    return arrays[metric][np.argsort(arrays["ids"])]


def test_a_run_does_not_differ_from_itself(small_run: AuditRun) -> None:
    found = privkit.compare(small_run, small_run.folder)
    assert {(one.difference.value, one.p_value or 1.0, one.effect or 0.0) for one in found.differences} == {(0, 1, 0)}
    assert (found.configuration, found.made_of, found.unpaired) == ((), (), ())


def test_records_in_another_order_and_beside_others_are_paired_by_their_ids() -> None:
    def run(ids: list[int], values: list[float]) -> Any:
        return SimpleNamespace(values=lambda row, names: (ids, {"unaligned_mse": np.array(values)}))

    row: Any = SimpleNamespace(seed=0, recovered={"unaligned": {"mse": None}}, files={PICTURES: ""})
    one, other = run([3, 1, 2], [0.3, 0.1, 0.2]), run([4, 1, 2, 3], [9.0, 0.2, 0.4, 0.6])
    (found,) = module._by_record(one, other, [row], [row])
    assert found["records"] == 3
    assert [found[name] for name in ("first", "second")] == pytest.approx([0.2, 0.4])
    assert found["difference"].value == pytest.approx(0.2)
    assert found["effect"] == paired([np.array([1.0, 2.0, 3.0])], [np.array([2.0, 4.0, 6.0])], [[1, 2, 3]]).effect


@pytest.mark.slow
def test_records_are_paired_by_their_ids(small_run: AuditRun, other_run: AuditRun) -> None:
    found = privkit.compare(small_run, other_run)
    for number, name in enumerate(("none / black_box", "batch_shuffle / black_box")):
        ssim = line(found, name, "ssim")
        assert ssim.second_name == name.replace("black_box", "mid_grey")
        change = stored(other_run, number, "unaligned_ssim") - stored(small_run, number, "unaligned_ssim")
        assert ssim.difference.value == pytest.approx(change.mean())
        assert ssim.difference.low < change.mean() < ssim.difference.high
        assert ssim.p_value is not None
        assert ssim.p_value >= wilcoxon(change).pvalue  # Holm only raises it
        assert (ssim.records, ssim.seeds) == (50, (0,))
        assert line(found, name, "accuracy").difference.value == 0  # the same models
    assert found.configuration[0].startswith('attacks: ["black_box"] only in A, ["mid_grey"] only in B')
    back = privkit.compare(other_run, small_run)
    for one, two in zip(found.differences, back.differences, strict=True):
        assert one.difference.value == pytest.approx(-two.difference.value)
        assert (one.effect or 0) == pytest.approx(-(two.effect or 0))


def test_an_attack_on_the_undefended_model_of_one_run_leaves_the_defenses_paired() -> None:
    """It is mounted there only if it failed on a defense."""
    one: dict[int, Any] = {0: "won"}
    other: dict[int, Any] = {0: "failed"}
    first, second = {("weak", "ridge"): one}, {("none", "ridge"): {}, ("strong", "ridge"): other}
    assert module._pairs(first, second) == ([(one, other)], ["none / ridge only in B"])
    assert module._pairs({("none", "ridge"): one}, {("strong", "ridge"): other}) == ([(one, other)], [])


def test_the_command_prints_what_python_returns(small_run: AuditRun, other_run: AuditRun) -> None:
    folders = [str(small_run.folder), str(other_run.folder)]
    done = CliRunner().invoke(app, ["compare", *folders, "--json"])
    assert json.loads(done.stdout) == json.loads(privkit.compare(*folders).model_dump_json())
    shown = CliRunner().invoke(app, ["compare", *folders]).stdout
    assert "none / black_box → none / mid_grey" in shown
    assert "configuration: attacks: " in shown
    assert "made of: the same" in shown


def changed(run: AuditRun, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Path:
    """The run, whose rows are others when it is read as B."""
    read = module._read
    number = iter([0, 1])

    def altered(given: Path) -> module._Run:
        found = read(given)
        return replace(found, rows=[row.model_copy(update=changes) for row in found.rows]) if next(number) else found

    monkeypatch.setattr(module, "_read", altered)
    return run.folder


def test_other_data_seeds_and_folders_are_refused(
    small_run: AuditRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        privkit.compare(small_run, tmp_path)
    provenance = small_run.rows[0].provenance
    moved = provenance.model_copy(update={"data": {**provenance.data, "private": "ab"}})
    for changes, sentence in (
        ({"provenance": moved}, "other private records with seed 0 .*compare runs with the same --dataset"),
        ({"seed": 3}, r"no seed in common \(0 in A, 3 in B\)"),
        ({"status": "error"}, "no numbers of the same defense, attack and seed"),
    ):
        with monkeypatch.context() as patch:
            folder = changed(small_run, patch, **changes)
            with pytest.raises(UsageError, match=sentence):
                privkit.compare(folder, folder)


def test_a_row_of_a_lost_worker_has_no_data_and_hides_none(small_run: AuditRun) -> None:
    """The same data were refused after it, and two such runs of other data were paired."""
    one = module._read(small_run)
    no_data = one.rows[-1].provenance.model_copy(update={"data": {}})
    lost = one.rows[-1].model_copy(update={"status": "error", "provenance": no_data})
    module._same_data(one, replace(one, rows=[*one.rows, lost]))
    moved = no_data.model_copy(update={"data": {"private": "ab", "test": "cd"}})
    other = [row.model_copy(update={"provenance": moved}) for row in one.rows]
    with pytest.raises(UsageError, match="other private records with seed 0"):
        module._same_data(replace(one, rows=[*one.rows, lost]), replace(one, rows=[*other, lost]))


def test_code_and_machine_are_named(small_run: AuditRun, monkeypatch: pytest.MonkeyPatch) -> None:
    provenance = small_run.rows[0].provenance
    packages = {**provenance.packages, "torch": "3"}
    elsewhere = provenance.model_copy(update={"machine": {"device": "cuda", "threads": "1"}, "packages": packages})
    folder = changed(small_run, monkeypatch, provenance=elsewhere)
    torch, device = privkit.compare(folder, folder).made_of
    assert torch.startswith("torch (")
    assert torch.endswith("in A, 3 in B)")
    assert device == "device (cpu in A, cuda in B)"


def test_another_attack_s_own_source_is_no_difference() -> None:
    """Two runs named the source of a file that both had with the same checksum."""
    packages = [{"torch": version} for version in ("2", "3")]
    one = made(attack="black_box", provenance=Provenance(packages=packages[0]))
    other = made(attack="mine:Own", provenance=Provenance(packages=packages[1], code={"mine": "ab"}))
    assert differences(*module._origins(one, other)) == ["torch (2 there, 3 here)"]
    edited = other.model_copy(update={"provenance": Provenance(packages=packages[1], code={"mine": "cd"})})
    assert differences(*module._origins(other, edited)) == ["the source of mine"]


def test_a_record_that_several_seeds_attack_counts_once() -> None:
    """A test set that is the same for all seeds would otherwise give a p-value of three times as many records."""
    draws = np.random.default_rng(0)
    before, after = draws.normal(size=20), draws.normal(0.4, 1, 20)
    once, ids = paired([before], [after]), [list(range(20))] * 3
    assert paired(3 * [before], 3 * [after], ids).p_value == pytest.approx(once.p_value)
    assert paired(3 * [before], 3 * [after]).p_value < 0.5 * once.p_value
    others = [list(range(first, first + 20)) for first in (0, 20, 40)]
    assert paired(3 * [before], 3 * [after], others) == paired(3 * [before], 3 * [after])


def test_exact_numbers_differ_exactly() -> None:
    def exact(value: float) -> list[Interval]:
        return [Interval(value=value, low=value, high=value, n=1, method="exact")]

    found = unpaired(exact(8.0), exact(2.0))
    assert (found.low, found.value, found.high) == (-6, -6, -6)
    assert unpaired(exact(float("inf")), exact(2.0)).value == -float("inf")
    assert unpaired(exact(float("inf")), exact(float("inf"))).value == 0
