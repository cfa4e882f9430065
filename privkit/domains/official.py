"""Official files in a data root; a missing or damaged one is refused in one sentence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from privkit.errors import DataError
from privkit.torch_utils.out_of_memory import ran_out


def need_root(name: str, root: Path | None, inside: str) -> Path:
    """The data root, or one sentence that says how to name it."""
    if root is None:
        raise DataError(
            f"{name} needs a data root: pass --data-root DIR (or set PRIVKIT_DATA) to the folder that holds {inside}"
        )
    if not os.path.isdir(root):  # unlike Path.is_dir, False also where permission is denied
        raise DataError(f"the data root {root} is no folder; create it, or pass the one that holds {inside}")
    return root


def check_files(name: str, folder: Path, files: Sequence[tuple[str, str | None]], advice: str) -> None:
    """Check that each file exists and, if its MD5 is known, is intact."""
    for file, md5 in files:
        path = folder / file
        if not path.is_file():
            raise DataError(f"{name}: {path} is missing; {advice}")
        if md5 is not None:
            with path.open("rb") as handle:
                if hashlib.file_digest(handle, "md5").hexdigest() != md5:
                    raise DataError(f"{name}: {path} is damaged (its MD5 is not the official one); {advice}")


def file_inside(name: str, root: Path, file: str, advice: str) -> Path:
    """The path of a file that a user named, which must lie in the data root."""
    path = root / file
    if not path.resolve().is_relative_to(root.resolve()):
        raise DataError(f"{name}: {file} lies outside of the data root {root}; name a file inside it")
    check_files(name, root, [(file, None)], advice)
    return path


def check_folder(name: str, folder: Path, advice: str) -> None:
    """Check that the folder of pictures exists."""
    if not folder.is_dir():
        raise DataError(f"{name}: {folder} is missing; {advice}")


def reason(error: Exception) -> str:
    """The first sentence of an error, on one line; torchvision's second one is about Python arguments."""
    return " ".join(str(error).split()).split(". ")[0].rstrip(".") or type(error).__name__


@contextmanager
def one_sentence(name: str, place: Path, advice: str) -> Iterator[None]:
    """Turn errors of torchvision and its decoders on missing or damaged files into one sentence."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # pickle, csv, tarfile, gzip and h5py each raise their own kind
        if ran_out(error):
            raise
        # torchvision turns the ImportError of an optional package into a RuntimeError
        cause = error.__context__ if isinstance(error.__context__, ImportError) else error
        if isinstance(cause, ImportError) and cause.name:
            raise DataError(f"{name} needs one more package: pip install {cause.name}") from error
        raise DataError(f"{name}: {place} cannot be read ({reason(error)}); {advice}") from error


def advice_on_missing(download: bool) -> str:
    """Advice about a missing file."""
    if download:
        return "the download did not bring it: fetch the official file by hand"
    return "put the official file there, or add --download to fetch it"
