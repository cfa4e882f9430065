"""Split models: a lower segment for the client and an upper segment for the server, cut at a named layer."""

from privkit.models.base import ModelSpec, SplitModel
from privkit.models.convolutional import CNN, LENET5, VGG16, Cnn, LeNet5, Vgg16
from privkit.models.imported import ImportedPair
from privkit.models.patch_splitnn import PATCH_SPLITNN, PatchSplitNN
from privkit.models.pit import PIT_TINY, Pit
from privkit.models.resnet import RESNET18, RESNET20, RESNET20_TANH, RESNET50, ResNet
from privkit.models.t2t import T2T_VIT, T2tVit
from privkit.models.tables import DIFM, TABLE_MLP, Difm, TableMlp
from privkit.models.texts import ALBERT, LSTM, RNN, TEXT_MLP, TRANSFORMER_MICRO, Albert, Recurrent, TextMlp, Transformer
from privkit.models.vit import VIT_BASE, VIT_MICRO, VIT_TINY, VIT_TINY6, Vit

MODELS: dict[str, str] = {
    "albert": "privkit.models.texts:ALBERT",
    "cnn": "privkit.models.convolutional:CNN",
    "difm": "privkit.models.tables:DIFM",
    "lenet5": "privkit.models.convolutional:LENET5",
    "lstm": "privkit.models.texts:LSTM",
    "patch_splitnn": "privkit.models.patch_splitnn:PATCH_SPLITNN",
    "pit_tiny": "privkit.models.pit:PIT_TINY",
    "resnet18": "privkit.models.resnet:RESNET18",
    "resnet20": "privkit.models.resnet:RESNET20",
    "resnet20_tanh": "privkit.models.resnet:RESNET20_TANH",
    "resnet50": "privkit.models.resnet:RESNET50",
    "rnn": "privkit.models.texts:RNN",
    "table_mlp": "privkit.models.tables:TABLE_MLP",
    "t2t_vit": "privkit.models.t2t:T2T_VIT",
    "text_mlp": "privkit.models.texts:TEXT_MLP",
    "transformer_micro": "privkit.models.texts:TRANSFORMER_MICRO",
    "vgg16": "privkit.models.convolutional:VGG16",
    "vit_base": "privkit.models.vit:VIT_BASE",
    "vit_micro": "privkit.models.vit:VIT_MICRO",
    "vit_tiny": "privkit.models.vit:VIT_TINY",
    "vit_tiny6": "privkit.models.vit:VIT_TINY6",
}
"""Name -> "module:object" of every model; a user's own pair is named by import path, `lower:upper`."""

__all__ = [
    "ALBERT",
    "CNN",
    "DIFM",
    "LENET5",
    "LSTM",
    "MODELS",
    "PATCH_SPLITNN",
    "PIT_TINY",
    "RESNET18",
    "RESNET20",
    "RESNET20_TANH",
    "RESNET50",
    "RNN",
    "T2T_VIT",
    "TABLE_MLP",
    "TEXT_MLP",
    "TRANSFORMER_MICRO",
    "VGG16",
    "VIT_BASE",
    "VIT_MICRO",
    "VIT_TINY",
    "VIT_TINY6",
    "Albert",
    "Cnn",
    "Difm",
    "ImportedPair",
    "LeNet5",
    "ModelSpec",
    "PatchSplitNN",
    "Pit",
    "Recurrent",
    "ResNet",
    "SplitModel",
    "T2tVit",
    "TableMlp",
    "TextMlp",
    "Transformer",
    "Vgg16",
    "Vit",
]
