"""Pretrained weights from a file, never unpickled."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from privkit.errors import UsageError
from privkit.torch_utils.out_of_memory import ran_out


def read_weights(path: str) -> dict[str, Tensor]:
    """A state dict from .safetensors, or from a .pth of plain tensors; a `UsageError` if it cannot be read so.

    What training scripts put around a state dict ("state_dict_ema", "state_dict", "model") is taken off.
    """
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if ran_out(error):
            raise
        raise UsageError(f"checkpoint {path} cannot be read as safetensors or plain tensors: {error}") from None
    for wrapper in ("state_dict_ema", "state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
        raise UsageError(f"checkpoint {path} cannot be read as safetensors or plain tensors: it holds no state dict")
    return state


def load_fitting(model: nn.Module, state: Mapping[str, Tensor], path: str, needed: tuple[str, ...], fit: str) -> None:
    """Load what fits; a classifier of another size is left as it is.

    Args:
        model: the whole network.
        state: names -> tensors.
        path: of the file, for the error.
        needed: prefixes of names that must be there in the model's shape; a `UsageError` otherwise.
        fit: what the file must fit, for the error, such as "width=96, depth=4".
    """
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    absent = sorted(name for name in own if name.startswith(needed) and name not in fitting)
    if absent:
        raise UsageError(f"checkpoint {path} does not fit {fit}: {absent[0]} is missing or has another shape")
    model.load_state_dict(fitting, strict=False)
