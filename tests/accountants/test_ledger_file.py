"""A ledger's file under kills, damage, full disks and a second writer."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from math import sqrt
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privkit.accountants.ledger import Ledger
from privkit.accountants.ledger_file import LedgerError
from tests.accountants.ledgers import DELTA, LABELED, filled, spec
from tests.accountants.one_release import exact

CHARGING = """
    import os, sys
    from privkit.accountants.ledger import Ledger
    from privkit.accountants.spec.mechanism import SplitMechanism
    from privkit.accountants.spec.parts import Noise
    from privkit.accountants.spec.sensitivity import Clamp
    one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=1), noise=Noise(smashed=8.0), lower_model="frozen")
    book = Ledger(sys.argv[1])
    os.write(1, b"open\\n")
    while True:
        charge = book.charge(one, note="x" * 99)
        os.write(1, b"%d\\n" % charge.number)
"""


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs code."""
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


@pytest.mark.slow
def test_a_kill_loses_no_charge_that_was_acknowledged(path: Path) -> None:
    moments, acknowledged = random.Random(7), 0
    for _ in range(8):
        with subprocess.Popen(python(CHARGING, path), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            said = [process.stdout.readline() for _ in range(moments.randrange(30))]
            time.sleep(moments.random() / 50)
            process.kill()
            said += process.stdout.read().split(b"\n")[:-1]
            process.wait()
        assert process.returncode == -signal.SIGKILL
        with Ledger(path) as book:
            acknowledged = max([acknowledged, *map(int, said)])
            assert acknowledged <= len(book) <= acknowledged + 1
            assert book.rounds == len(book)
            assert book.epsilon(DELTA).epsilon == pytest.approx(exact(sqrt(len(book)) / 8), rel=1e-8)
            acknowledged = len(book)
    assert acknowledged > 8


def test_every_torn_end_is_dropped_and_nothing_else(path: Path) -> None:
    lines = filled(path)
    whole, earlier = b"".join(lines), b"".join(lines[:-1])
    for cut in range(len(earlier) + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with Ledger(path) as book:
            assert len(book) == len(lines) - 1
            assert book.rounds == 1 + 2 + 3
            (remark,) = book.remarks
            assert "line 4 was cut off by a kill and dropped" in remark
            assert path.read_bytes() == earlier
    with Ledger(path) as book:
        assert book.remarks == ()
        assert book.charge(spec()).number == 4
    path.write_bytes(whole[:-1])  # an editor that cuts the last newline drops no charge
    with Ledger(path) as book:
        assert (len(book), book.rounds, book.remarks) == (4, 10, ())
    assert path.read_bytes() == whole


def test_a_torn_first_line_is_dropped(path: Path) -> None:
    line = filled(path, 1)[0]
    for cut in range(1, len(line) - 1):
        path.write_bytes(line[:cut])
        with Ledger(path) as book:
            assert len(book) == 0
            assert book.remarks
        assert path.read_bytes() == b""


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_changed_byte_is_found_wherever_it_is(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damage") / "l"
    whole = b"".join(filled(path, 3))
    at = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(LedgerError, match=r"line|no ledger"):
        Ledger(path)
    assert path.read_bytes() == damaged


def test_lines_that_are_missing_swapped_or_from_elsewhere_are_found(path: Path) -> None:
    a, b, c, d = filled(path)
    other = filled(path.with_name("other"), 1)[0]
    for lines in ([a, c, d], [b, c, d], [a, c, b, d], [a, b, b, c, d], [a, b"\n", b], [a, b, other], [b"\n"]):
        path.write_bytes(b"".join(lines))
        with pytest.raises(LedgerError):
            Ledger(path)
        assert path.read_bytes() == b"".join(lines)
    path.write_bytes(a + c + d)
    with pytest.raises(LedgerError, match="damaged in line 2, and only this line says what was released"):
        Ledger(path)


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"hello\n",
        b"a,b\n1,2\n",
        b'{"charge": 2, "rounds": 1',
        b'{"charge": 1}\n',
        b'{"epsilon": 3}',
        b"\x00\x01\xff" * 40,
        "Ünïcode\n".encode("utf-16"),
        b"\n\n",
        b"[]",
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(path)
    assert path.read_bytes() == content


@settings(deadline=None, max_examples=200)
@given(content=st.one_of(st.binary(min_size=1, max_size=200), st.text(min_size=1, max_size=99).map(str.encode)))
@example(content=b'{"charge": 1, ')
def test_any_other_bytes_are_refused_or_a_torn_beginning(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "l"
    path.write_bytes(content)
    start = b'{"charge": 1, '
    if b"\n" not in content and (content.startswith(start) or start.startswith(content)):
        with Ledger(path) as book:
            assert book.remarks
    else:
        with pytest.raises(LedgerError):
            Ledger(path)
        assert path.read_bytes() == content


def test_a_line_of_a_later_version_is_named(path: Path) -> None:
    """Right checksum, unknown mechanism."""
    from privkit.accountants.ledger_file import LedgerFile

    file = LedgerFile(path)
    file.append('"rounds": 1, "note": "", "mechanism": {"kind": "teleport"}')
    file.close()
    with pytest.raises(LedgerError, match=r"line 1 .* unknown kind 'teleport'"):
        Ledger(path)


def test_earlier_lines_are_never_rewritten_and_are_plain_json(path: Path) -> None:
    lines = filled(path)
    with Ledger(path) as book:
        book.charge(LABELED, note="more")
    assert path.read_bytes().startswith(b"".join(lines))
    parsed = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert [line["charge"] for line in parsed] == [1, 2, 3, 4, 5]
    assert [line["rounds"] for line in parsed] == [1, 2, 3, 4, 1]
    assert parsed[0]["note"] == 'epoch 0 "ü", "mechanism": {'
    assert parsed[0]["mechanism"]["kind"] == "split_mechanism"


# Writers and disks


def test_a_second_writer_is_refused(path: Path) -> None:
    with Ledger(path) as book:
        with pytest.raises(LedgerError, match="in use by another run"):
            Ledger(path)
        other = subprocess.run(python(CHARGING, path), capture_output=True, text=True, timeout=60, check=False)
        assert other.returncode == 1
        assert "LedgerError: the ledger" in other.stderr
        assert "in use by another run" in other.stderr
        book.charge(spec())
    with Ledger(path) as book:
        assert len(book) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_may_not_charge(path: Path) -> None:
    with Ledger(path) as book:
        child = os.fork()
        if child == 0:
            try:
                book.charge(spec())
            except LedgerError as error:
                os._exit(17 if "another process" in str(error) else 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 17
        book.charge(spec())
        assert len(book) == 1


@pytest.mark.parametrize("change", ["append", "truncate", "remove", "replace"])
def test_a_file_that_changes_under_our_hands_is_noticed(path: Path, change: str) -> None:
    with Ledger(path) as book:
        book.charge(spec())
        if change == "append":
            path.write_bytes(path.read_bytes() + b"x")
        elif change == "truncate":
            os.truncate(path, 10)
        elif change == "remove":
            path.unlink()
        else:
            path.with_name("copy").write_bytes(path.read_bytes())
            os.replace(path.with_name("copy"), path)
        with pytest.raises(LedgerError, match="changed or moved by somebody else"):
            book.charge(spec())
        assert len(book) == 1


FULL = """
    import resource, signal, sys
    from pathlib import Path
    from privkit.accountants.ledger import Ledger
    from privkit.accountants.spec.mechanism import SplitMechanism
    from privkit.accountants.spec.parts import Noise
    from privkit.accountants.spec.sensitivity import Clamp
    one = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=1), noise=Noise(smashed=8.0), lower_model="frozen")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    book = Ledger(sys.argv[1])
    book.charge(one)
    size = Path(sys.argv[1]).stat().st_size
    for room in (100, 0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
        try:
            book.charge(one)
        except ValueError as error:
            print(error)
        assert Path(sys.argv[1]).stat().st_size == size
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        book = Ledger(sys.argv[1])
    print(len(book), book.remarks)
"""


def test_a_full_disk_charges_nothing(path: Path) -> None:
    done = subprocess.run(python(FULL, path), capture_output=True, text=True, timeout=60, check=True)
    torn, none, last = done.stdout.splitlines()
    for sentence in (torn, none):
        assert sentence.startswith(f"cannot write the ledger {path}: ")
        assert "release nothing" in sentence
    assert last == "1 ()"


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_write_of_unknown_fate_closes_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    book = Ledger(path)
    book.charge(spec())

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((LedgerError, KeyboardInterrupt)):
        book.charge(spec())
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="is closed; open it again"):
        book.charge(spec())
    with Ledger(path) as again:
        assert len(again) == (1 if isinstance(failure, OSError) else 2)
        assert again.charge(spec()).number == len(again)


def test_places_that_keep_nothing_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot open"):
        Ledger(tmp_path / "file" / "ledger")
    with pytest.raises(LedgerError, match="not an ordinary file"):
        Ledger("/dev/null")
