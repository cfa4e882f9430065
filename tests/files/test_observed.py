"""No file that a user's own code reads changes in silence, however the code reads it."""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from privkit.audit.lead import Leader
from privkit.audit.run import AuditRun, run_audit
from privkit.errors import RunFolderError, UsageError
from privkit.files import observed
from privkit.files.import_path import imported
from privkit.parts.registry import part_table
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance, Row
from privkit.run.plan import Cell
from privkit.run.sources import as_it_is_now, files_read, sources
from privkit.settings.resolve import resolve
from tests.small import SMALL

HEAD = "import os, importlib, json\nfrom pathlib import Path\nHERE = Path(__file__).parent\nNAME = 'hel' + 'per'\n"
BODIES = {
    "torch.load beside the module": "import torch\ndef work():\n    return torch.load(HERE / 'sub' / 'init.pt')\n",
    "torch.load, memory-mapped": "import torch\ndef work():\n    return torch.load(HERE / 'sub' / 'init.pt', mmap=1)\n",
    "weights at import": "import torch\nSTATE = torch.load(HERE / 'sub' / 'init.pt')\ndef work():\n    return STATE\n",
    "numpy.load": "import numpy as np\ndef work():\n    return np.load(str(HERE / 'sub') + '/init' + '.npy')\n",
    "numpy.load, memory-mapped": (
        "import numpy as np\ndef work():\n    return np.load(HERE / 'sub' / 'init.npy', mmap_mode='r').sum()\n"
    ),
    "numpy.memmap": "import numpy as np\ndef work():\n    return np.memmap(HERE / 'sub' / 'init.npy', mode='r')\n",
    "numpy.fromfile": "import numpy as np\ndef work():\n    return np.fromfile(HERE / 'sub' / 'init.npy').sum()\n",
    "numpy.loadtxt": "import numpy as np\ndef work():\n    return np.loadtxt(HERE / 'table.csv', delimiter=',')\n",
    "json beside the module": "def work():\n    return json.loads((HERE / 'settings.json').read_text())\n",
    "json in the current folder": "def work():\n    with open('settings.json') as f:\n        return json.load(f)\n",
    "json at import": "WISHES = json.loads((HERE / 'settings.json').read_text())\ndef work():\n    return WISHES\n",
    "json in a class's body": (
        "class Settings:\n    ALL = json.loads((HERE / 'settings.json').read_text())\n"
        "def work():\n    return Settings.ALL\n"
    ),
    "toml": "import tomllib\ndef work():\n    return tomllib.loads(Path('settings.toml').read_text())\n",
    "configparser": ("import configparser\ndef work():\n    return configparser.ConfigParser().read('settings.ini')\n"),
    "pickle": "import pickle\ndef work():\n    return pickle.load(open(HERE / 'data.pickle', 'rb'))\n",
    "csv": "import csv\ndef work():\n    return list(csv.reader(open(HERE / 'table.csv')))\n",
    "an image": "from PIL import Image\ndef work():\n    return Image.open(HERE / 'mask.png').size\n",
    "a file by its descriptor": (
        "def work():\n    handle = os.open(HERE / 'settings.json', os.O_RDONLY)\n"
        "    try:\n        return os.read(handle, 100)\n    finally:\n        os.close(handle)\n"
    ),
    "a file for reading and writing": "def work():\n    return open(HERE / 'settings.json', 'r+').read()\n",
    "a file in a thread": (
        "from threading import Thread\ndef read():\n    return (HERE / 'settings.json').read_text()\n"
        "def work():\n    one = Thread(target=read)\n    one.start()\n    one.join()\n"
    ),
    "a file in a generator": (
        "def lines():\n    yield from open(HERE / 'table.csv')\ndef work():\n    return list(lines())\n"
    ),
    "a file that a glob finds": "def work():\n    return [path.read_bytes() for path in sorted(HERE.glob('*.json'))]\n",
    "a compressed file": "import gzip\ndef work():\n    return gzip.open(HERE / 'data.gz').read()\n",
    "an archive": "import zipfile\ndef work():\n    return zipfile.ZipFile(HERE / 'data.zip').namelist()\n",
    "a link": "def work():\n    return (HERE / 'link.json').read_text()\n",
    "a file that a helper reads": "import reader\ndef work():\n    return reader.settings()\n",
    "a file that a helper keeps": "import reader\ndef work():\n    return reader.kept()\n",
    "import_module by a variable": "def work():\n    return importlib.import_module(NAME).VALUE\n",
    "__import__ by a variable": "def work():\n    return __import__(NAME).VALUE\n",
    "import_module at import": (
        "def _get():\n    return importlib.import_module(NAME).VALUE\nVALUE = _get()\ndef work():\n    return VALUE\n"
    ),
    "what such a module imports": "def work():\n    return importlib.import_module('out' + 'er').VALUE\n",
    "a module by its location": (
        "import importlib.util\ndef work():\n"
        "    spec = importlib.util.spec_from_file_location('anything', HERE / 'helper.py')\n"
        "    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n"
    ),
    "runpy": "import runpy\ndef work():\n    return runpy.run_path(str(HERE / 'helper.py'))['VALUE']\n",
    "exec of a file": "def work():\n    exec(open(HERE / 'helper.py').read())\n    return locals()['VALUE']\n",
    "exec of a compiled file": (
        "def work():\n    text = (HERE / 'helper.py').read_text()\n"
        "    exec(compile(text, 'helper.py', 'exec'), names := {})\n    return names['VALUE']\n"
    ),
    "a file that such code reads": ("def work():\n    exec(open(HERE / 'opens.txt').read(), {'HERE': HERE})\n"),
    "a variable by its key": "def work():\n    return os.environ['PRIVKIT_SHADE']\n",
    "a variable by get": "def work():\n    return os.environ.get('PRIVKIT_SHADE', '1')\n",
    "a variable by getenv": "def work():\n    return os.getenv('PRIVKIT_SHADE')\n",
}
"""How a part reads -> the module that does so."""
HELPERS = {
    "helper.py": "VALUE = 1\n",
    "outer.py": "from helper import VALUE\n",
    "opens.txt": "open(HERE / 'settings.json').read()\n",
    "reader.py": (
        "from functools import cache\nfrom pathlib import Path\n"
        "def settings():\n    return Path(__file__).with_name('settings.json').read_text()\n"
        "@cache\ndef kept():\n    return settings()\n"
    ),
}


def changed_file(body: str) -> str:
    """The file that a module of `BODIES` reads."""
    names = ("init.pt", "init.npy", "table.csv", "settings.toml", "settings.ini", "data.pickle", "mask.png")
    named = next((name for name in (*names, "data.gz", "data.zip", "link.json") if name in body), "")
    if "'.npy'" in body:
        return "sub/init.npy"
    if named:
        return f"sub/{named}" if named.startswith("init") else named
    return "settings.json" if any(word in body for word in ("json'", "reader", "opens")) else "helper.py"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of files to read, on the Python path and the current one."""
    (tmp_path / "sub").mkdir()
    for name, text in HELPERS.items():
        (tmp_path / name).write_text(text)
    for name in ("settings.json", "linked.json"):
        (tmp_path / name).write_text('{"shade": 0.25}')
    (tmp_path / "link.json").symlink_to("linked.json")
    (tmp_path / "settings.toml").write_text("shade = 1\n")
    (tmp_path / "settings.ini").write_text("[a]\nshade = 1\n")
    (tmp_path / "table.csv").write_text("1,2\n")
    torch.save({"weight": torch.zeros(3)}, tmp_path / "sub" / "init.pt")
    np.save(tmp_path / "sub" / "init.npy", np.zeros(3))
    script = (
        "import gzip, pickle, zipfile; from PIL import Image; pickle.dump(1, open('data.pickle', 'wb'));"
        "gzip.open('data.gz', 'wb').write(b'1'); zipfile.ZipFile('data.zip', 'w').writestr('a', '1');"
        "Image.new('L', (2, 2)).save('mask.png')"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PRIVKIT_SHADE", "0.25")
    exec(script, {})
    for name in ("_read", "_hashes", "_stats"):  # what other tests of this process loaded is not part of this one
        monkeypatch.setattr(observed, name, {})
    observed.begin()
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def part(home: Path, body: str, name: str = "mypart") -> ModuleType:
    """A module with this body, imported as a user's own part is."""
    (home / f"{name}.py").write_text(HEAD + body)
    imported("the part", f"{name}:work")
    return sys.modules[name]


def made(name: str = "mypart") -> Provenance:
    """What a command would be made of that names a module."""
    found = sources([name])
    return Provenance(code=found.code, files=found.files)


def seen(name: str = "mypart") -> Provenance:
    """The same after its code ran."""
    return (here := made(name)).model_copy(update={"files": here.files | files_read(here)})


def edit(path: Path) -> None:
    """Other bytes, of the same length, by a program that is not a part."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("case", BODIES)
def test_what_a_part_reads_is_named_once_it_changes(home: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part(home, BODIES[case]).work()
    before, here = seen(), made()
    assert differences(before, as_it_is_now(before, here)) == []
    if "PRIVKIT_SHADE" in BODIES[case]:
        monkeypatch.setenv("PRIVKIT_SHADE", "0.75")
        assert differences(before, as_it_is_now(before, made())) == ["the environment variable PRIVKIT_SHADE"]
        return
    file = changed_file(BODIES[case])
    edit(home / file)
    assert f"the file {file}" in differences(before, as_it_is_now(before, here))
    os.remove(home / file)
    assert f"the file {file}, which is gone" in differences(before, as_it_is_now(before, here))


def test_a_file_that_was_looked_for_and_comes_to_be(home: Path) -> None:
    body = "def work():\n    try:\n        return open('more.json').read()\n    except OSError:\n        return ''\n"
    part(home, body).work()
    before = seen()
    assert differences(before, as_it_is_now(before, made())) == []
    (home / "more.json").write_text("1")
    assert differences(before, as_it_is_now(before, made())) == ["the file more.json"]


def test_a_file_counts_for_its_readers_alone(home: Path) -> None:
    part(home, BODIES["json beside the module"], "first").work()
    part(home, BODIES["csv"], "second").work()
    assert set(seen("first").files) == {"settings.json"}
    assert set(seen("second").files) == {"table.csv"}


def test_a_module_of_a_computed_name_counts_for_all_that_may_load_it(home: Path) -> None:
    """The second part finds it loaded, so that no file is opened."""
    for name in ("first", "second"):
        part(home, BODIES["import_module by a variable"], name).work()
        assert set(seen(name).files) == {"helper.py"}
    part(home, BODIES["csv"], "third").work()
    assert set(seen("third").files) == {"table.csv"}


def test_a_row_of_another_worker_read_something_else(small_run: AuditRun) -> None:
    def read(row: Row, digest: str) -> Row:
        files = {"settings.json": digest, "net.pt": digest}
        return row.model_copy(update={"provenance": row.provenance.model_copy(update={"files": files})})

    first, second = small_run.rows
    ledger, files = SimpleNamespace(path=small_run.folder), read(first, "a").provenance.files
    leader = cast("Leader", SimpleNamespace(ledger=ledger, _files=files))
    Leader._check_files(leader, read(second, "a"), {"net.pt": "b"})
    with pytest.raises(RunFolderError, match=r"the file settings\.json was edited while the cells of"):
        Leader._check_files(leader, read(second, "b"), {"net.pt": "b"})


def test_what_is_left_out(home: Path) -> None:
    """Installed packages, the system, what the part wrote itself, files of the run, and what nobody's part opens."""
    body = (
        "import numpy, privkit.errors\ndef work():\n"
        "    for path in (numpy.__file__, privkit.errors.__file__, '/proc/self/status', 'run/log.txt'):\n"
        "        open(path, 'rb').read()\n"
    )
    (home / "run").mkdir()
    (home / "run" / "log.txt").write_text("1")
    observed.leave_out(home / "run")
    part(home, body).work()
    assert seen().files == {}
    open("settings.json").close()
    assert seen().files == {}


def test_a_file_that_is_edited_while_a_command_runs_stops_it(home: Path) -> None:
    module = part(home, BODIES["json in the current folder"])
    module.work()
    seen()
    edit(home / "settings.json")
    with pytest.raises(
        UsageError, match=r"settings\.json was edited after this process read it.*start the command anew"
    ):
        seen()
    with pytest.raises(json.JSONDecodeError):
        module.work()  # the new content, so that the last opening is not the only one
    with pytest.raises(UsageError, match=r"settings\.json was edited"):
        seen()
    observed.begin()  # another run of this process, which reads it anew
    with pytest.raises(json.JSONDecodeError):
        module.work()
    assert set(seen().files) == {"settings.json"}
    here = made()
    (home / "mypart.py").write_text("")
    with pytest.raises(UsageError, match=r"mypart\.py was edited while this command ran"):
        files_read(here)


def test_an_edit_that_was_taken_back_between_two_openings_is_seen(home: Path) -> None:
    module = part(home, "def work():\n    return open('settings.json').read()\n")
    kept = (home / "settings.json").read_bytes()
    for data in (kept, kept.replace(b"2", b"3"), kept):
        (home / "settings.json").write_bytes(data)
        module.work()
    with pytest.raises(UsageError, match=r"settings\.json was edited"):
        seen()


PARTS = """
import importlib, json, os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from privkit.attacks.inversion.floors import MidGrey
from privkit.defenses.none import NoDefense

HERE = Path(__file__).parent
"""
ATTACK = """

@dataclass(frozen=True, kw_only=True)
class Shade(MidGrey):
    name: ClassVar[str] = "shade"

    def run(self, observation, generator, session=None):
        shade = json.loads((HERE / "settings.json").read_text())["shade"]
        grey = super().run(observation, generator)
        return type(grey)(images=grey.images * 0 + shade)
"""
MODEL = """

def pair(classes):
    lower, upper = nn.Sequential(nn.Flatten(), nn.Linear(64, 12)), nn.Linear(12, classes)
    lower[1].load_state_dict(torch.load(HERE / "sub" / "start.pt"))
    exec(open(HERE / "helper.py").read())
    return lower, upper
"""


def audit(home: Path, **changes: Any) -> AuditRun:
    """The same command, in a process of its own as far as the user's modules are concerned."""
    for name in ("ownattack", "ownmodel"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    given = {"model": "ownmodel:pair", "attack": ["mean_image", "ownattack:Shade"], "defense": "none", **SMALL}
    return run_audit(out=home / "run", **given | changes)


def test_whole_audits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack's settings touch its cell, weights and code that the model reads touch everything; then none does."""
    monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
    (home / "ownattack.py").write_text(PARTS + ATTACK)
    (home / "ownmodel.py").write_text(PARTS + MODEL)
    torch.save(nn.Linear(64, 12).state_dict(), home / "sub" / "start.pt")
    first = audit(home).rows
    model, attack = {"sub/start.pt", "helper.py"}, {"settings.json"}
    assert [set(row.provenance.files) for row in first] == [model, model | attack]
    assert audit(home).rows == first
    edit(home / "sub" / "start.pt")
    with pytest.raises(RunFolderError, match=r"the file sub/start.pt; .*1 of 1 models, 2 of 2 cells"):
        audit(home)
    edit(home / "sub" / "start.pt")
    (home / "settings.json").write_text('{"shade": 0.75}')
    with pytest.raises(RunFolderError, match=r"the file settings.json; .*0 of 1 models, 1 of 2 cells"):
        audit(home)
    rows = audit(home, again=True).rows
    assert rows[0] == first[0]
    assert rows[1].recovered["unaligned"]["mse"] != first[1].recovered["unaligned"]["mse"]
    assert audit(home).rows == rows


def test_settings_that_are_edited_between_two_cells_stop_the_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither row is wrong by itself, but they are not of one experiment."""
    monkeypatch.setattr("privkit.audit.run.build", lambda folder, *rest: folder / "report" / "index.html")
    (home / "ownattack.py").write_text(PARTS + ATTACK)

    (home / "other.json").write_text('{"shade": 0.75}')

    def finish(leader: Leader, cell: Cell, row: Row) -> Row:
        row = stored(leader, cell, row)
        if row.attack != "mean_image":
            os.replace(home / "other.json", home / "settings.json")  # as another program would
        return row

    stored = Leader.finish
    monkeypatch.setattr(Leader, "finish", finish)
    with pytest.raises((RunFolderError, UsageError), match=r"settings\.json was edited"):
        audit(home, model="vit_micro", seed=[0, 1])


def test_built_in_parts_alone_need_no_hook(small_run: AuditRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "_plugins", set())
    monkeypatch.setattr(sys, "addaudithook", lambda hook: pytest.fail("a hook"))
    part_table.cache_clear()
    resolve({"attack": ["mean_image", "black_box"], "defense": "batch_shuffle+gaussian_noise:sigma=1", **SMALL})
    assert all(row.provenance.files == row.provenance.code == {} for row in small_run.rows)
