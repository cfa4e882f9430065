"""The command of the distribution privkit-sl, which first looks for another distribution in privkit's folder.

The public package index has a foreign project named privkit. It installs into the same folder `privkit`: installed
later, it replaces files of ours; removed, it deletes them. So this module lies outside that folder and imports nothing
from there before it has looked.
"""

import csv
import sys
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NoReturn

OURS, FOREIGN = "privkit-sl", "privkit"
_FIRST = "privkit/__init__.py"
_AGAIN = f"pip uninstall {FOREIGN} {OURS}, then install {OURS} again"


def conflict() -> str:
    """Say in one sentence what is wrong with this installation, and what to do; empty if nothing is.

    >>> conflict()
    ''
    """
    foreign, ours, found = _installed(FOREIGN), _installed(OURS), PathFinder.find_spec("privkit")
    if foreign and found and found.origin and _FIRST in _written(foreign) and _is(foreign, found.origin):
        return (
            f"the distribution {FOREIGN} {foreign.version} is another project, and its files are where Python looks "
            f"for those of {OURS}; remove both: {_AGAIN}"
        )
    files = [file for file in _written(ours) if file.endswith(".py")] if ours else []
    if ours and (gone := [file for file in files if not Path(str(ours.locate_file(file))).exists()]):
        return f"{gone[0]} of {OURS} is missing, as if another distribution had removed it; repair it: {_AGAIN}"
    return ""


def main() -> NoReturn:
    """Run the command line, or end with exit code 2 and the sentence of `conflict`."""
    if wrong := conflict():
        print(f"privkit: {wrong}", file=sys.stderr)
        sys.exit(2)
    from privkit.cli.start import main as start

    start()


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _is(foreign: Distribution, origin: str) -> bool:
    return Path(str(foreign.locate_file(_FIRST))).resolve() == Path(origin).resolve()


def _written(found: Distribution) -> list[str]:
    """Paths of the files that pip wrote for a distribution; empty for the metadata that a build leaves in a clone."""
    return [line[0] for line in csv.reader((found.read_text("RECORD") or "").splitlines()) if line]
