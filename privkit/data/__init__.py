"""Datasets: real images as one `Batch` contract, and their private / auxiliary / test splits."""

from privkit.data.base import Batch, DatasetSpec, Pool, Pools
from privkit.data.splits import Splits, split

DATASETS: dict[str, str] = {
    "celeba": "privkit.data.pictures:CelebA",
    "cifar10": "privkit.data.vision:Cifar10",
    "cifar100": "privkit.data.vision:Cifar100",
    "digits": "privkit.data.embedded:Digits",
    "fashion_mnist": "privkit.data.vision:FashionMnist",
    "image_folder": "privkit.data.pictures:ImageFolder",
    "lfw_people": "privkit.data.pictures:LfwPeople",
    "lfw_subset": "privkit.data.embedded:LfwSubset",
    "mnist": "privkit.data.vision:Mnist",
    "pcam": "privkit.data.pictures:Pcam",
    "tiny_digits": "privkit.data.embedded:TinyDigits",
}
"""Name -> "module:object" of every dataset."""

__all__ = ["DATASETS", "Batch", "DatasetSpec", "Pool", "Pools", "Splits", "split"]
