"""Tables of several parties: records are joined by an id, and what cannot be joined is refused."""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from privkit.audit.run import run_audit
from privkit.domains.base import Pools, RecordPool
from privkit.domains.tables.domain import Tables
from privkit.domains.tables.party_files import PartyFiles
from privkit.errors import DataError, UsageError
from privkit.models.vertical import Parties, Vertical
from tests.small import generator

BANK = ("who,income,branch", "7,10,Rome", "8,30,Bonn", "9,20,Rome")
SHOP = ("spent,who,bought,visits", "5,9,yes,2", "1,7,no,0", "3,4,no,1")


def opened(root: Path, *tables: tuple[str, ...], **options: Any) -> Pools:
    files = [f"t{number}.csv" for number in range(len(tables))]
    for file, lines in zip(files, tables, strict=True):
        (root / file).write_text("\n".join(lines))
    given = {"files": files, "id": "who", "label": "bought"} | options
    return PartyFiles(**given).open(root, download=False, train_images=1)


def pool(pools: Pools) -> RecordPool:
    assert isinstance(pools.train, RecordPool)
    return pools.train


def test_records_that_all_parties_hold_are_joined_and_counted(tmp_path: Path) -> None:
    pools = opened(tmp_path, BANK, SHOP)
    domain = pool(pools).domain
    assert isinstance(domain, Tables)
    assert (domain.dense, domain.categorical) == (("income", "spent", "visits"), ("branch",))
    assert domain.parties == (0, 1, 1, 0)
    assert domain.shown(pool(pools).x) == [
        "income=10, spent=1, visits=0, branch=Rome",
        "income=20, spent=5, visits=2, branch=Rome",
    ]
    assert pool(pools).y.tolist() == [0, 1]
    assert pools.notes == ("2 of 4 records are held by all parties; the others are left out",)
    assert opened(tmp_path, BANK[:2], SHOP[:1] + SHOP[2:3]).notes == ("1 of 1 records are held by all parties",)


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    first = pool(opened(tmp_path, BANK, SHOP))
    for rows in permutations(SHOP[1:]):
        again = pool(opened(tmp_path, BANK[:1] + BANK[:0:-1], SHOP[:1] + rows))
        assert torch.equal(again.x, first.x)
        assert torch.equal(again.y, first.y)
        assert again.domain == first.domain


def test_bad_rows_of_each_file_are_counted_if_asked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 4 of .*t1.csv has 1 cells instead of 4"):
        opened(tmp_path, BANK, (*SHOP[:3], "3"))
    notes = opened(tmp_path, BANK, (*SHOP[:3], "3"), skip_bad_rows=True).notes
    assert notes[0].startswith("2 of 3 records")
    assert notes[1].startswith("1 of 3 rows of t1.csv were left out")


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ((BANK, ("spent,bought", "1,no")), r"t1.csv has no column 'who'; name one of spent, bought with id="),
        ((BANK, (*SHOP, SHOP[1])), r"t1.csv has 2 rows of who '9'; keep one row of each"),
        ((BANK, (*SHOP, "1,,no,2")), r"line 5 of .*t1.csv has no who; fill it in"),
        ((BANK, (*SHOP, "1, ,no,2")), r"line 5 of .*t1.csv has no who; fill it in"),
        ((BANK, ("who,income,bought", "7,1,no")), r"t0.csv and t1.csv both have a column 'income'; rename it"),
        ((BANK, ("who,spent,spent", "7,1,2")), r"t1.csv has several columns 'spent'; give each a name of its own"),
        ((BANK, ("who", "7")), r"t1.csv has no column beside 'who'; add some or leave it out"),
        ((BANK, ("who,spent", "7,1")), r"no file has a column 'bought'; name one of branch, income, spent with label="),
        ((BANK, ("who,bought", "07,no")), r"held by all parties \(who '7' in t0.csv and '07' in t1.csv\); write ids"),
        ((BANK,), r"two different files or more, got t0.csv; name them"),
    ],
)
def test_tables_that_cannot_be_joined_are_refused(tmp_path: Path, tables: Any, why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        opened(tmp_path, *tables)
    assert "\n" not in str(caught.value)


def test_names_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'who' is both the id and the label; name two columns"):
        opened(tmp_path, BANK, SHOP, label="who")
    with pytest.raises(DataError, match=r'got t0.csv; name them as files=\["a.csv","b.csv"\]'):
        opened(tmp_path, BANK, SHOP, files="t0.csv")


def test_each_party_of_a_vertical_split_reads_the_columns_of_its_file(tmp_path: Path) -> None:
    train = pool(opened(tmp_path, BANK, SHOP))
    split = Vertical(width=4).build(train.domain, 2, positions=True, seed=0)
    assert isinstance(split.lower, Parties)
    assert split.lower.ranges == (((0, 1), (3, 4)), ((1, 3),))
    x = train.domain.random(8, generator())
    assert torch.equal(split.lower.of(x, [0]) + split.lower.of(x, [1]), x)
    sent, other = split.lower(x), x.clone()
    other[:, 1:3] = 0
    assert torch.equal(split.lower(other)[:, :4], sent[:, :4])
    assert not torch.equal(split.lower(other)[:, 4:], sent[:, 4:])


def test_as_many_parties_as_files_with_columns(tmp_path: Path) -> None:
    labels = ("who,bought", "7,no", "9,yes")
    three = pool(opened(tmp_path, BANK, SHOP[:1] + SHOP[1:3], ("who,age", "7,40", "9,50"))).domain
    with pytest.raises(UsageError, match=r"parties=2 need as many holders of columns, not 3; use parties=3"):
        Vertical().build(three, 2, positions=True, seed=0)
    one = pool(opened(tmp_path, BANK, labels)).domain  # whoever holds only labels is no party
    assert isinstance(one, Tables)
    assert one.parties == (0, 0)
    with pytest.raises(UsageError, match="not 1; use another model"):
        Vertical().build(one, 2, positions=True, seed=0)


def test_an_audit_says_how_many_records_all_parties_hold(tmp_path: Path) -> None:
    draws = torch.rand(260, 3, generator=generator())
    one = [f"{n},{a:.3f},{b:.3f}" for n, (a, b, _) in enumerate(draws.tolist())]
    two = [f"{n},{c:.3f},{'yes' if a + c > 1 else 'no'}" for n, (a, _, c) in enumerate(draws.tolist())][:240]
    (tmp_path / "bank.csv").write_text("\n".join(["id,a,b", *one]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,c,label", *reversed(two)]))
    found = run_audit(
        dataset='party_files:files=["bank.csv","shop.csv"]',
        data_root=tmp_path,
        model="vertical",
        defense="split_parts",
        parts="part_1",
        attack=["release_clustering"],
        budget="smoke:private=100,auxiliary=50,test=50,victims=20,epochs=1",
        out=tmp_path / "run",
        training="batch_size=20",
        threads=1,
    )
    row = next(row for row in found.rows if row.defense != "none")
    assert (row.status, row.reason) == ("done", "")
    assert "240 of 260 records are held by all parties; the others are left out" in row.notes
    assert any("the adversary is part_1 of a vertical split" in note for note in row.notes)
