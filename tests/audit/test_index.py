"""What is shipped beside the attacks follows from them, and a finished run is read without loading one."""

import csv
import io
import subprocess
import sys

import pytest

from privkit.attacks import ATTACKS
from privkit.audit.run import AuditRun
from privkit.parts.threats import KNOWN_THREATS, threat
from privkit.shared.measures import CONSTANT_ATTACKS


def test_the_index_of_threat_models_follows_from_the_attacks() -> None:
    """If this fails, write the expected text into privkit/parts/threats.csv."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["attack", "threat_model", "domains"])
    for name in sorted(set(ATTACKS) - CONSTANT_ATTACKS):
        model, domains = threat(name)
        writer.writerow([name, model, " ".join(domains)])
    assert KNOWN_THREATS.read_text("utf-8") == out.getvalue()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("command", [("report", "RUN"), ("report", "RUN", "--json"), ("compare", "RUN", "RUN")])
def test_a_finished_run_is_read_without_torch(small_run: AuditRun, tmp_path: object, command: tuple[str, ...]) -> None:
    """In a process of its own; torch alone takes two seconds to load."""
    import shutil

    run = shutil.copytree(small_run.folder, f"{tmp_path}/run")
    program = (
        "import sys\nfrom privkit.cli.app import app\napp(sys.argv[1:], standalone_mode=False)\n"
        "print(*sorted({'torch', 'torchvision', 'timm', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    arguments = [str(run) if word == "RUN" else word for word in command]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr.splitlines()[-1] == ""
