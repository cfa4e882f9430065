"""No file that a user's own code reads changes in silence, however the code reads it."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from privkit import observed
from privkit.audit.run import AuditRun, run_audit
from privkit.errors import RunFolderError, UsageError
from privkit.import_path import imported
from privkit.reports.origins import differences
from privkit.reports.schema import Provenance
from privkit.run.sources import as_it_is_now, files_read, sources
from tests.small import SMALL

HEAD = "import os, importlib, json\nfrom pathlib import Path\nHERE = Path(__file__).parent\nNAME = 'hel' + 'per'\n"
BODIES = {
    "torch.load beside the module": "import torch\ndef work():\n    return torch.load(HERE / 'sub' / 'init.pt')\n",
    "torch.load, memory-mapped": "import torch\ndef work():\n    return torch.load(HERE / 'sub' / 'init.pt', mmap=True)\n",
    "weights at import": "import torch\nSTATE = torch.load(HERE / 'sub' / 'init.pt')\ndef work():\n    return STATE\n",
    "numpy.load": "import numpy as np\ndef work():\n    return np.load(str(HERE / 'sub') + '/init' + '.npy')\n",
    "numpy.load, memory-mapped": (
        "import numpy as np\ndef work():\n    return np.load(HERE / 'sub' / 'init.npy', mmap_mode='r').sum()\n"
    ),
    "numpy.memmap": "import numpy as np\ndef work():\n    return np.memmap(HERE / 'sub' / 'init.npy', mode='r').sum()\n",
    "numpy.fromfile": "import numpy as np\ndef work():\n    return np.fromfile(HERE / 'sub' / 'init.npy').sum()\n",
    "numpy.loadtxt": "import numpy as np\ndef work():\n    return np.loadtxt(HERE / 'table.csv', delimiter=',')\n",
    "json beside the module": "def work():\n    return json.loads((HERE / 'settings.json').read_text())\n",
    "json in the current folder": "def work():\n    with open('settings.json') as file:\n        return json.load(file)\n",
    "json at import": "WISHES = json.loads((HERE / 'settings.json').read_text())\ndef work():\n    return WISHES\n",
    "json in a class's body": (
        "class Settings:\n    ALL = json.loads((HERE / 'settings.json').read_text())\ndef work():\n    return Settings.ALL\n"
    ),
    "toml": "import tomllib\ndef work():\n    return tomllib.loads(Path('settings.toml').read_text())\n",
    "configparser": (
        "import configparser\ndef work():\n    read = configparser.ConfigParser()\n    return read.read('settings.ini')\n"
    ),
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
    "a file in a generator": "def lines():\n    yield from open(HERE / 'table.csv')\ndef work():\n    return list(lines())\n",
    "a file that a glob finds": "def work():\n    return [path.read_bytes() for path in sorted(HERE.glob('*.json'))]\n",
    "a compressed file": "import gzip\ndef work():\n    return gzip.open(HERE / 'data.gz').read()\n",
    "an archive": "import zipfile\ndef work():\n    return zipfile.ZipFile(HERE / 'data.zip').namelist()\n",
    "a link": "def work():\n    return (HERE / 'link.json').read_text()\n",
    "a file that a helper reads": "import reader\ndef work():\n    return reader.settings()\n",
    "a file that a helper keeps": "import reader\ndef work():\n    return reader.kept()\n",
    "import_module by a variable": "def work():\n    return importlib.import_module(NAME).VALUE\n",
    "__import__ by a variable": "def work():\n    return __import__(NAME).VALUE\n",
    "import_module at import": "def _get():\n    return importlib.import_module(NAME).VALUE\nVALUE = _get()\ndef work():\n    return VALUE\n",
    "what such a module imports": "def work():\n    return importlib.import_module('out' + 'er').VALUE\n",
    "a module by its location": (
        "import importlib.util\ndef work():\n"
        "    spec = importlib.util.spec_from_file_location('anything', HERE / 'helper.py')\n"
        "    module = importlib.util.module_from_spec(spec)\n    spec.loader.exec_module(module)\n    return module.VALUE\n"
    ),
    "runpy": "import runpy\ndef work():\n    return runpy.run_path(str(HERE / 'helper.py'))['VALUE']\n",
    "exec of a file": "def work():\n    exec(open(HERE / 'helper.py').read(), names := {})\n    return names['VALUE']\n",
    "exec of a compiled file": (
        "def work():\n    text = (HERE / 'helper.py').read_text()\n"
        "    exec(compile(text, 'helper.py', 'exec'), names := {})\n    return names['VALUE']\n"
    ),
    "a file that such code reads": (
        "def work():\n    exec(open(HERE / 'opens.txt').read(), {'HERE': HERE})\n"
    ),
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
    """Other bytes, of the same length, by a program that is no part."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("case", BODIES)
def test_what_a_part_reads_is_named_once_it_changes(
    home: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
