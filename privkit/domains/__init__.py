"""Kinds of records (domains), datasets with their splits, and the partition of records among clients."""

from privkit.domains.base import Batch, DatasetSpec, Pool, Pools
from privkit.domains.domain import Domain
from privkit.domains.images.domain import Images
from privkit.domains.splits import Splits, split
from privkit.domains.tables.domain import Tables
from privkit.domains.tokens.domain import Tokens

DATASETS: dict[str, str] = {
    "amazon_reviews": "privkit.domains.tokens.texts:AmazonReviews",
    "arrays": "privkit.domains.images.own:Arrays",
    "auto_mpg": "privkit.domains.tables.sets:AutoMpg",
    "breast_cancer": "privkit.domains.tables.sets:BreastCancer",
    "celeba": "privkit.domains.images.pictures:CelebA",
    "cifar10": "privkit.domains.images.vision:Cifar10",
    "cifar100": "privkit.domains.images.vision:Cifar100",
    "criteo": "privkit.domains.tables.sets:Criteo",
    "definitions": "privkit.domains.tokens.texts:Definitions",
    "digits": "privkit.domains.images.embedded:Digits",
    "fashion_mnist": "privkit.domains.images.vision:FashionMnist",
    "folder": "privkit.domains.images.own:Folder",
    "image_folder": "privkit.domains.images.pictures:ImageFolder",
    "imagenet": "privkit.domains.images.pictures:ImageNet",
    "imdb": "privkit.domains.tokens.imdb:Imdb",
    "lfw_people": "privkit.domains.images.pictures:LfwPeople",
    "lfw_subset": "privkit.domains.images.embedded:LfwSubset",
    "mnist": "privkit.domains.images.vision:Mnist",
    "names": "privkit.domains.tokens.texts:Names",
    "party_files": "privkit.domains.tables.party_files:PartyFiles",
    "pcam": "privkit.domains.images.pictures:Pcam",
    "table_file": "privkit.domains.tables.sets:TableFile",
    "text_file": "privkit.domains.tokens.texts:TextFile",
    "tiny_digits": "privkit.domains.images.embedded:TinyDigits",
}
"""Name -> "module:object" of every dataset."""

__all__ = [
    "DATASETS",
    "Batch",
    "DatasetSpec",
    "Domain",
    "Images",
    "Pool",
    "Pools",
    "Splits",
    "Tables",
    "Tokens",
    "split",
]
