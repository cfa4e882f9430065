"""F-SIM, ID and LPIPS by a network that the user names; a tiny TorchScript file stands for it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from privkit.errors import DataError, UsageError
from privkit.metrics.feature_networks import FeatureNetwork, feature_network
from privkit.metrics.perceptual import _lpips_model, f_sim, f_sim_floors, identity, lpips

PIXELS = FeatureNetwork(label="pixels", body=lambda x: x[:, 0].flatten(1))


class Means(nn.Module):
    """Mean color of the upper and of the lower half."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[2] // 2
        return torch.cat([x[:, :, :half].mean((2, 3)), x[:, :, half:].mean((2, 3))], 1)


class Sized(nn.Module):
    """The pixels of images that must be 4×4."""

    def __init__(self) -> None:
        super().__init__()
        self.image_size = 4

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], 48)


class Maps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Nan(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) / 0.0 * 0.0


def scripted(module: nn.Module, folder: Path) -> str:
    path = folder / f"{type(module).__name__}.pt"
    torch.jit.script(module).save(str(path))
    return f"file:{path}"


def images(count: int = 5, channels: int = 3, side: int = 8) -> Tensor:
    return torch.rand(count, channels, side, side, generator=Generator().manual_seed(0))


def test_a_file_of_torchscript(tmp_path: Path) -> None:
    network = feature_network(scripted(Means(), tmp_path))
    x = images()
    torch.testing.assert_close(network(x), Means()(x))
    assert not network(x.requires_grad_()).requires_grad
    name, digest = network.label.split()
    assert name == "file:Means.pt"
    assert len(digest) == 12


def test_a_file_may_name_its_size(tmp_path: Path) -> None:
    network = feature_network(scripted(Sized(), tmp_path))
    small = images(side=4)
    large = small.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert network.size == 4
    assert network(large).shape == (5, 48)
    torch.testing.assert_close(network(small), small.flatten(1))


def test_grey_images_are_repeated_and_chunks_change_nothing() -> None:
    color = FeatureNetwork(label="color", body=lambda x: x.mean((2, 3)), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 4.0))
    grey = images(count=150, channels=1)
    expected = (grey.mean((2, 3)) - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([1.0, 2.0, 4.0])
    torch.testing.assert_close(color(grey), expected)


def test_f_sim_is_one_for_a_copy_zero_for_orthogonal_features_and_blind_to_scale_and_sign() -> None:
    x = images()
    assert f_sim(x, x, PIXELS) == pytest.approx(np.ones(5), abs=1e-6)
    assert f_sim(x, 0.3 * x, PIXELS) == pytest.approx(np.ones(5), abs=1e-6)
    negative = FeatureNetwork(label="sign", body=lambda x: (x[:, 0] - 0.5).flatten(1))
    assert f_sim(x, 1 - x, negative) == pytest.approx(np.ones(5), abs=1e-5)
    left, right = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    left[..., 0], right[..., 1] = 1, 1
    assert f_sim(left, right, PIXELS).tolist() == [0.0]
    assert f_sim(left, torch.zeros(1, 1, 2, 2), PIXELS).tolist() == [0.0]


def test_f_sim_equals_its_definition() -> None:
    a, b = images(), images().flip(0)
    u, v = a[:, 0].flatten(1).double().numpy(), b[:, 0].flatten(1).double().numpy()
    by_hand = [abs(x @ y) / np.sqrt((x @ x) * (y @ y)) for x, y in zip(u, v, strict=True)]
    np.testing.assert_allclose(f_sim(a, b, PIXELS), by_hand, atol=1e-6)


def test_floors_are_means_over_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privkit.metrics.perceptual._CHUNK", 4)
    x, labels = images(count=11), torch.arange(11) % 3
    floors = f_sim_floors(x, labels, PIXELS)
    pairs: dict[bool, list[float]] = {True: [], False: []}
    for i in range(11):
        for j in range(11):
            if i != j:
                pairs[bool(labels[i] == labels[j])].append(f_sim(x[i : i + 1], x[j : j + 1], PIXELS)[0])
    assert floors["same_class"] == pytest.approx(np.mean(pairs[True]), abs=1e-6)
    assert floors["other_class"] == pytest.approx(np.mean(pairs[False]), abs=1e-6)
    assert list(f_sim_floors(x, torch.arange(11), PIXELS)) == ["other_class"]


def test_identity_by_rank() -> None:
    truth = torch.eye(4).view(4, 1, 2, 2)
    guess = truth[[0, 1, 3, 2]]
    assert identity(truth, guess, PIXELS).tolist() == [1, 1, 0, 0]
    assert identity(truth, 0.1 * guess, PIXELS).tolist() == [1, 1, 0, 0]


def test_identity_of_a_constant_guess_is_at_its_floor() -> None:
    """One guess for all finds one original."""
    truth = images(count=50)
    constant = truth.mean(0, keepdim=True).expand(50, -1, -1, -1)
    assert identity(truth, constant, PIXELS).mean() == 1 / 50


def test_bad_images() -> None:
    x = images()
    with pytest.raises(UsageError, match="NaN"):
        f_sim(x, x * float("nan"), PIXELS)
    with pytest.raises(UsageError, match="1 or 3"):
        PIXELS(x[:, :2])


def test_names_that_do_not_exist() -> None:
    for name in ("embeded", "timm", "embedded:small", "file:"):
        with pytest.raises(UsageError, match="unknown feature network"):
            feature_network(name)
    with pytest.raises(UsageError, match="near it: resnet18"):
        feature_network("timm:resnet1B")
    with pytest.raises(UsageError, match="near it: resnet18"):
        feature_network("torchvision:resnet1B")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"TorchScript \(No such file or directory\); write it with torch.jit.save"):
        feature_network(f"file:{tmp_path / 'absent.pt'}")
    (tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(DataError, match="cannot be read as TorchScript"):
        feature_network(f"file:{tmp_path / 'text.pt'}")
    for module in (Maps(), Nan()):
        with pytest.raises(UsageError, match="must give finite features"):
            feature_network(scripted(module, tmp_path))


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_weights_that_cannot_be_had(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    from torchvision import models

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto host")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(models, "get_model", offline)
    with pytest.raises(DataError, match=f"weights of {name} cannot be had: OSError: no route to host; take embedded"):
        feature_network(name)


def test_pretrained_libraries_give_the_classifiers_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same calls with random weights."""
    import timm
    from torchvision import models

    plain, own = timm.create_model, models.get_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained, num_classes: plain(name, num_classes=num_classes)
    )
    monkeypatch.setattr(models, "get_model", lambda name, weights: own(name))
    for name, size, features in (("timm:test_resnet", 160, None), ("torchvision:squeezenet1_0", 224, 0)):
        if features == 0:
            with pytest.raises(UsageError, match="no linear classifier"):
                feature_network(name)
            continue
        network = feature_network(name)
        assert network.size == size
        assert network.label.startswith(f"{name}@{size} ")
    network = feature_network("torchvision:mobilenet_v3_small")
    assert network(images(count=2)).shape == (2, 1024)
    assert network.mean == pytest.approx((0.485, 0.456, 0.406))


@pytest.mark.parametrize(("name", "package"), [("embedded", "efficientnet_lite_pytorch"), ("dlib", "dlib")])
def test_packages_that_are_not_installed(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=r"needs the packages .* pip install"):
        feature_network(name)


@pytest.mark.needs("features")
def test_the_embedded_network_tells_pictures_apart() -> None:
    """A blurred copy of a photograph is nearer to it than to any other."""
    from skimage import data

    def picture(name: str) -> Tensor:
        return torch.tensor(getattr(data, name)()[:256, :256] / 255, dtype=torch.float32).permute(2, 0, 1)

    photographs = torch.stack([picture(name) for name in ("astronaut", "coffee", "rocket")])
    blurred = nn.functional.avg_pool2d(photographs, 8)
    blurred = nn.functional.interpolate(blurred, (256, 256), mode="bilinear")
    network = feature_network("embedded")
    assert network.label.startswith("embedded:efficientnet-lite0@96 ")
    assert network(photographs[:1]).shape == (1, 1280)
    assert identity(photographs, blurred, network).tolist() == [1, 1, 1]
    assert (f_sim(photographs, blurred, network) > f_sim(photographs, blurred.roll(1, 0), network) + 0.1).all()
    assert f_sim(photographs, photographs, network) == pytest.approx(np.ones(3), abs=1e-5)


@pytest.mark.needs("faces")
def test_the_face_descriptor_finds_a_face_again() -> None:
    from skimage import data

    face = torch.tensor(data.astronaut()[0:220, 110:330] / 255, dtype=torch.float32).permute(2, 0, 1).unsqueeze(0)
    other = torch.tensor(data.chelsea()[20:240, 120:340] / 255, dtype=torch.float32).permute(2, 0, 1).unsqueeze(0)
    noisy = (face + 0.03 * torch.randn(face.shape, generator=Generator().manual_seed(0))).clamp(0, 1)
    network = feature_network("dlib")
    assert network(face).shape == (1, 128)
    near, far = ((network(face) - network(one)).norm().item() for one in (noisy, other))
    assert near <= 0.6 < far  # dlib's own threshold


def test_lpips_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    _lpips_model.cache_clear()
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(DataError, match="needs the package lpips"):
        lpips(images(), images())


@pytest.mark.needs("lpips")
def test_lpips_says_which_weights_are_missing_and_measures_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import lpips as package

    plain = package.LPIPS

    def offline(**_: Any) -> None:
        raise OSError("no route to host")

    _lpips_model.cache_clear()
    monkeypatch.setattr(package, "LPIPS", offline)
    with pytest.raises(DataError, match="trunk alex cannot be had: OSError: no route to host"):
        lpips(images(), images())
    monkeypatch.setattr(package, "LPIPS", lambda net, verbose: plain(net=net, verbose=verbose, pnet_rand=True))
    grey = images(count=3, channels=1, side=28)
    distances = lpips(grey, torch.cat([grey[:1], grey[1:].flip(3)]), "squeeze")
    _lpips_model.cache_clear()
    assert distances[0] == 0
    assert (distances[1:] > 0).all()
