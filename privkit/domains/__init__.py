"""What an input is, and where real inputs come from: datasets, their parts and who holds which."""

from privkit.domains.base import Batch, DatasetSpec, Pool, Pools
from privkit.domains.splits import Splits, split

DATASETS: dict[str, str] = {
    "celeba": "privkit.domains.images.pictures:CelebA",
    "cifar10": "privkit.domains.images.vision:Cifar10",
    "cifar100": "privkit.domains.images.vision:Cifar100",
    "digits": "privkit.domains.images.embedded:Digits",
    "fashion_mnist": "privkit.domains.images.vision:FashionMnist",
    "image_folder": "privkit.domains.images.pictures:ImageFolder",
    "lfw_people": "privkit.domains.images.pictures:LfwPeople",
    "lfw_subset": "privkit.domains.images.embedded:LfwSubset",
    "mnist": "privkit.domains.images.vision:Mnist",
    "pcam": "privkit.domains.images.pictures:Pcam",
    "tiny_digits": "privkit.domains.images.embedded:TinyDigits",
}
"""Name -> "module:object" of every dataset."""

__all__ = ["DATASETS", "Batch", "DatasetSpec", "Pool", "Pools", "Splits", "split"]
