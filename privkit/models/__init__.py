"""Split models: a lower segment for the client and an upper segment for the server, cut at a named layer."""

from privkit.models.base import ModelSpec, SplitModel

MODELS: dict[str, str] = {
    "albert": "privkit.models.texts:ALBERT",
    "cnn": "privkit.models.convolutional:CNN",
    "difm": "privkit.models.tables:DIFM",
    "hf": "privkit.models.language:HUGGING_FACE",
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
    "vertical": "privkit.models.vertical:VERTICAL",
    "vgg16": "privkit.models.convolutional:VGG16",
    "vit_base": "privkit.models.vit:VIT_BASE",
    "vit_micro": "privkit.models.vit:VIT_MICRO",
    "vit_tiny": "privkit.models.vit:VIT_TINY",
    "vit_tiny6": "privkit.models.vit:VIT_TINY6",
}
"""Name -> "module:object" of every model; a user's own pair is named by import path, `lower:upper`."""

__all__ = ["MODELS", "ModelSpec", "SplitModel"]
