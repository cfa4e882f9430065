"""Text and tables go through whole audits; what reads images alone says so."""

import html
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privkit import run_audit
from privkit.errors import UsageError
from privkit.settings.resolve import resolve

SMALL: dict[str, Any] = {
    "budget": "smoke:private=60,auxiliary=280,test=40,victims=20,epochs=1",
    "training": "batch_size=10",
}
DATASETS = {"definitions:length=6,vocabulary=50": "token sequences", "auto_mpg": "table rows"}


@pytest.fixture(scope="module", params=DATASETS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    found = run_audit(
        dataset=request.param,
        defense="gaussian_noise:clip=1",
        attack=["label_leak", "member_inference", "canaries", "white_box", "nearest_record"],
        **SMALL,
        out=tmp_path_factory.mktemp("run") / "run",
    )
    return found, DATASETS[request.param]


@pytest.mark.slow
def test_labels_members_and_canaries_are_asked_of_any_records(run: tuple[Any, str]) -> None:
    found, records = run
    assert {row.records for row in found.rows} == {records}
    for row in found.rows:
        assert row.accuracy is not None
        assert row.costs is not None
        if row.attack == "white_box":
            assert row.status == "not_applicable"
            assert row.reason == f"white_box reconstructs images, and these records are {records}"
        elif row.attack == "nearest_record":
            assert (row.status, row.reason) == ("done", "")
            assert all(check.passed for check in row.checks if check.decisive)
        else:
            assert (row.status, row.reason) == ("done", "")
            assert 0 <= row.answers["auc"].value <= 1
            assert all(check.passed for check in row.checks if check.decisive)
    proven = {row.defense: row.certificate.kind for row in found.rows if row.certificate}
    assert list(proven.values()) == ["nothing", "differential_privacy"]


def test_floors_are_those_of_the_domain_and_stand_in_the_report(run: tuple[Any, str]) -> None:
    found, records = run
    names = {"token sequences": ("ROUGE-L", "most frequent token"), "table rows": ("dense error", "mean or most")}
    page = Path(found.report).read_text()
    for text in (*names[records], f"test {records}", "not applicable"):
        assert text in page
    assert "PSNR" not in page


def test_records_are_recovered_where_nothing_defends_them_and_shown_beside_the_truth(run: tuple[Any, str]) -> None:
    found, records = run
    metric, floors = {
        "token sequences": ("token_accuracy", ["most_frequent_token", "commonest_tokens", "random_own_record"]),
        "table rows": ("cells", ["column_mean", "commonest_values", "random_own_record_of_class"]),
    }[records]
    bare = next(row for row in found.rows if (row.defense, row.attack) == ("none", "nearest_record"))
    assert all(
        bare.recovered["unaligned"][metric].low > bare.floors[name]["unaligned"][metric].value for name in floors
    )
    assert {check.name for check in bare.checks if check.passed} >= {f"beats_{name}" for name in floors}
    page = Path(found.report).read_text()
    with np.load(found.folder / "cells" / bare.cell / "per_example.npz", allow_pickle=False) as arrays:
        truth, guess = arrays["truth"].tolist(), arrays["guess"].tolist()
        assert len(arrays[f"unaligned_{metric}"]) == bare.counts["victims"]
    assert len(truth) == len(guess) == 8
    for text in (*truth, *guess):
        assert f">{html.escape(text)}</td>" in page
    if records == "table rows":
        assert any(note.startswith("smallest errors by column: ") for note in bare.notes)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"model": "vit_micro"},
            "vit_micro reads images, and auto_mpg holds table rows; models for them: difm, table_mlp",
        ),
        ({"model": "transformer_micro"}, "reads token sequences, and auto_mpg holds table rows"),
        ({"training": "augment=crop"}, "augment=crop moves pixels, and auto_mpg holds table rows"),
        ({"auxiliary": "digits"}, "auxiliary=digits holds images, and auto_mpg holds table rows"),
        ({"dataset": "digits", "model": "table_mlp"}, "table_mlp reads table rows, and digits holds images"),
    ],
)
def test_parts_of_another_domain_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        resolve({"dataset": "auto_mpg", **settings})


@pytest.mark.parametrize("defense", ["blur", "nopeek", "adv", "random_cutout:level=input"])
def test_defenses_on_images_refuse_other_records(tmp_path: Path, defense: str) -> None:
    with pytest.raises(UsageError, match="works on images themselves, and these records are token sequences"):
        run_audit(dataset="definitions:length=6,vocabulary=50", defense=defense, **SMALL, out=tmp_path / "run")


def test_a_defense_on_tokens_needs_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not fit table_mlp: .*tokens.*; choose another --defense or --model"):
        run_audit(dataset="auto_mpg", defense="batch_shuffle", **SMALL, out=tmp_path / "run")


def test_each_domain_has_a_default_model() -> None:
    chosen = {name: resolve({"dataset": name}).model.name for name in ("digits", "definitions", "breast_cancer")}
    assert chosen == {"digits": "vit_micro", "definitions": "transformer_micro", "breast_cancer": "table_mlp"}


def test_a_recurrent_model_goes_through_an_audit_and_the_row_says_that_clients_took_turns(tmp_path: Path) -> None:
    found = run_audit(
        dataset="definitions:length=6,vocabulary=50",
        model="lstm:width=8",
        defense="none",
        attack="label_leak",
        protocol="psl:clients=2",
        **{**SMALL, "training": "batch_size=5"},
        out=tmp_path / "run",
    )
    (row,) = found.rows
    assert (row.status, row.reason) == ("done", "")
    assert row.accuracy is not None
    assert 0 <= row.answers["auc"].value <= 1
    sentence = "the 2 lower segments ran one after another, because torch cannot batch this module over clients"
    assert sentence in row.notes
    assert sentence in Path(found.report).read_text()


def own_files(root: Path) -> None:
    """A text a line and a table with a header, as users bring them."""
    draws = np.random.default_rng(0)
    texts, rows = [], ["sepals,color,label"]
    for number in range(260):
        label = number % 2
        letters = "".join(draws.choice(list("aeiou" if label else "bcdfg"), 5))
        texts.append(f"{'vowels' if label else 'consonants'}\t{letters}")
        rows.append(f"{label + draws.random():.3f},{draws.choice(['red', 'blue'])},{'b' if label else 'a'}")
    (root / "texts.tsv").write_text("\n".join(texts))
    (root / "table.csv").write_text("\n".join(rows))


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["breast_cancer", "text_file:unit=characters,length=6", "table_file"])
def test_the_other_datasets_of_text_and_tables_go_through_a_whole_audit(dataset: str, tmp_path: Path) -> None:
    own_files(tmp_path)
    found = run_audit(
        dataset=dataset,
        data_root=tmp_path,
        defense="gaussian_noise:clip=1",
        attack=["label_leak", "member_inference", "canaries", "nearest_record"],
        budget="smoke:private=100,auxiliary=100,test=50,victims=20,epochs=3",
        training="batch_size=10",
        out=tmp_path / "run",
    )
    assert [(row.status, row.reason) for row in found.rows] == [("done", "")] * 8
    assert all(row.accuracy is not None and row.certificate is not None for row in found.rows)
    assert all(check.passed for row in found.rows for check in row.checks if check.decisive)
    bare = next(row for row in found.rows if (row.defense, row.attack) == ("none", "nearest_record"))
    assert all(check.passed for check in bare.checks if check.name.startswith("beats_"))
