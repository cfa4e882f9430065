"""Keeps what this version of privkit writes: `.venv/bin/python tests/kept/make.py 0.1`.

A small run, a recording of its noisy model, a table with its budgets, and a ledger. Later versions read them
(test_kept.py), so the archive of a released version is never made again.
"""

import io
import shlex
import sys
import tarfile
import tempfile
from contextlib import chdir
from pathlib import Path

from privkit.accountants.ledger import Ledger
from privkit.accountants.spec.mechanism import SplitMechanism
from privkit.accountants.spec.parts import Noise
from privkit.accountants.spec.sensitivity import Clamp
from privkit.cli.app import app

HERE = Path(__file__).parent
COMMANDS = (
    "audit --dataset tiny_digits --model vit_micro:width=8,depth=2,heads=1,grid=2"
    " --defense gaussian_noise:sigma=.5,clip=5 --attack nearest_record --attack canaries --attack label_leak"
    " --budget smoke:private=200,auxiliary=200,test=100,victims=20,epochs=20"
    " --training batch_size=10,learning_rate=.01 --threads 1 --gate ssim<=0.99 --gate accuracy>=.2 --out run",
    "record run --out recording",
    "epsilon table.csv --compare --out budgets.json",
)
TABLE = """\
name,mechanism,sigma,dimensions,clip_low,clip_high,labels,group,clients,sampling,patches,noise_site,rounds,delta
plain,dp_sl,16/255,10,0,0.15,one_hot,1,10,without_replacement,,,1,1e-5
mixed,dp_mixsl,16/255,10,0,0.15,one_hot,2,10,without_replacement,,mixer,1,1e-5
cut,dp_cutmixsl,16/255,10,0,0.15,one_hot,2,10,without_replacement,64,mixer,1,1e-5
refused,dp_sl,0,10,0,0.15,one_hot,1,10,without_replacement,,,1,1e-5
"""
RELEASE = SplitMechanism(smashed=Clamp(low=0, high=1, dimensions=4), noise=Noise(smashed=8), lower_model="frozen")


def write() -> None:
    """Fill the current folder; the command that a run stores names no place of this machine."""
    Path("table.csv").write_text(TABLE, "utf-8")
    for command in COMMANDS:
        sys.argv = ["privkit", *shlex.split(command)]
        app(sys.argv[1:], standalone_mode=False)
    with Ledger("ledger.jsonl") as ledger:
        for epoch in range(3):
            ledger.charge(RELEASE, note=f"epoch {epoch}")


def keep(version: str) -> Path:
    """Write everything into an empty folder, and pack it: one file for git, whose bytes no checkout changes."""
    path = HERE / f"{version}.tar.xz"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path, "w:xz", preset=9) as archive:
        with chdir(folder):
            write()
        for file in sorted(file for file in Path(folder).rglob("*") if file.is_file()):
            data = file.read_bytes()
            info = tarfile.TarInfo(file.relative_to(folder).as_posix())
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


if __name__ == "__main__":
    print(keep(sys.argv[1]))
