"""ImageNet: the official archives and the folders that they unpack to, whole and damaged."""

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import imagenet

from privkit.domains.base import TEST_ID_OFFSET, Pools
from privkit.domains.images.pictures import ImageNet
from privkit.errors import DataError

WNIDS = ["n01440764", "n01443537"]
VALIDATION = [2, 1, 2]  # the class of each validation picture, in the order of the devkit


def opened(root: Path) -> Pools:
    return ImageNet(size=8).open(root, download=False, train_images=1)


def picture(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 12), (grey, grey, grey)).save(path)


def pack(folder: Path, archive: Path, top: str = "") -> None:
    with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as packed:
        for path in sorted(folder.iterdir()):
            packed.add(path, f"{top}{path.name}")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with the three archives: two classes of two pictures, and three for validation."""
    root, made = tmp_path / "root", tmp_path / "made"
    root.mkdir()
    for place, wnid in enumerate(WNIDS):
        for number in range(2):
            picture(made / wnid / f"{wnid}_{number}.JPEG", 100 * place + 20 * number)
        (made / "train").mkdir(exist_ok=True)
        pack(made / wnid, made / "train" / f"{wnid}.tar")
    for number in range(3):
        picture(made / "val" / f"ILSVRC2012_val_{number + 1:08d}.JPEG", 200 + 20 * number)
    types = [("ID", "i4"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "i4")]
    synsets = [(1, WNIDS[0], "tench, Tinca tinca", "a fish", 0), (2, WNIDS[1], "goldfish", "a fish", 0)]
    synsets += [(3, "n00001740", "entity", "anything", 2)]
    (made / "kit" / "data").mkdir(parents=True)
    savemat(made / "kit" / "data" / "meta.mat", {"synsets": np.array(synsets, dtype=types)})
    truth = made / "kit" / "data" / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("".join(f"{label}\n" for label in VALIDATION))
    files = {part: root / name for part, (name, _) in imagenet.ARCHIVE_META.items()}
    pack(made / "train", files["train"])
    pack(made / "val", files["val"])
    pack(made / "kit", files["devkit"], "ILSVRC2012_devkit_t12/")
    sums = {part: (path.name, hashlib.md5(path.read_bytes()).hexdigest()) for part, path in files.items()}
    monkeypatch.setattr(imagenet, "ARCHIVE_META", sums)
    return root


def test_archives_are_unpacked_once(archives: Path) -> None:
    for _ in range(2):
        pools = opened(archives)
        assert pools.classes == 2
        train = pools.train.take(np.arange(4))
        assert train.y.tolist() == [0, 0, 1, 1]
        assert (train.x[:, 0, 4, 4] * 255).round().tolist() == pytest.approx([0, 20, 100, 120], abs=2)
        assert pools.test is not None
        test = pools.test.take(np.arange(3))
        assert test.y.tolist() == pools.test.targets().tolist() == [0, 1, 1]
        assert (test.x[:, 0, 4, 4] * 255).round().tolist() == pytest.approx([220, 200, 240], abs=2)
        assert test.ids[0] == TEST_ID_OFFSET
        for archive in archives.glob("*.tar*"):  # the folders suffice from now on
            archive.unlink()


@pytest.mark.parametrize("part", ["train", "val", "devkit"])
def test_a_damaged_or_missing_archive_is_named(archives: Path, part: str) -> None:
    path = archives / imagenet.ARCHIVE_META[part][0]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"{path.name} is not present in the root directory or is corrupted\); put"):
        opened(archives)
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name} is missing; put the official archives there by hand"):
        opened(archives)


def test_half_unpacked_and_uneven_folders_are_refused(archives: Path) -> None:
    opened(archives)
    picture(archives / "train" / "n09999999" / "0.JPEG", 0)
    with pytest.raises(DataError, match=r"class n09999999 is in one of .* only"):
        opened(archives)
    left = archives / "train" / "n01440764.tar"
    left.write_bytes(b"")
    with pytest.raises(DataError, match=rf"{left} is not unpacked; delete {archives / 'train'} to unpack it again"):
        opened(archives)
