"""Spectral shuffling: the transform against numpy's, its layout against a loop, and what a server can undo."""

import numpy as np
import pytest
import torch

from privkit.defenses.base import ReleaseCount
from privkit.defenses.spectral_shuffle import SpectralShuffle
from privkit.torch_utils.patches import patchify, unpatchify
from privkit.wire.channel import shared_lower
from tests.small import built, digits, generator

Y = torch.zeros(2, 3)


def unshuffled(released: torch.Tensor, permutation: torch.Tensor) -> torch.Tensor:
    """What was permuted: the owner's view, with the receipt in hand."""
    return released.gather(2, permutation.argsort(2).unsqueeze(-1).expand_as(released))


def test_tokens_are_the_patches_of_numpys_spectrum() -> None:
    p, c, grid = 4, 2, 3
    z = torch.randn(2, 3, grid * grid, p * p * c, dtype=torch.float64, generator=generator())
    release, receipt = SpectralShuffle().apply(z, Y, generator(1))
    tokens = unshuffled(release.smashed, receipt.permutation).numpy()
    assert tokens.shape == (2, 3, 9, 64)
    for m, b in np.ndindex(2, 3):
        picture = np.zeros((c, grid * p, grid * p))
        for t in range(grid * grid):
            row, column = p * (t // grid), p * (t % grid)
            picture[:, row : row + p, column : column + p] = z[m, b, t].numpy().reshape(p, p, c).transpose(2, 0, 1)
        spectrum = np.fft.fftshift(np.fft.fft2(picture), axes=(1, 2))
        channels = np.concatenate([spectrum.real, spectrum.imag])
        for t in range(grid * grid):
            row, column = p * (t // grid), p * (t % grid)
            cell = channels[:, row : row + p, column : column + p].transpose(1, 2, 0).reshape(-1)
            np.testing.assert_allclose(tokens[m, b, t], cell, atol=1e-11)


@pytest.mark.parametrize(("dim", "patch"), [(768, 16), (192, 8), (96, 4), (512, 16), (7, 1)])
def test_the_largest_square_patch_is_taken_and_energy_is_kept(dim: int, patch: int) -> None:
    z = torch.randn(2, 3, 4, dim, dtype=torch.float64, generator=generator())
    released = SpectralShuffle().apply(z, Y, generator())[0].smashed
    pixels = (2 * patch) ** 2  # Parseval, without the orthonormal scale
    energies = released.square().sum((2, 3)), pixels * z.square().sum((2, 3))
    torch.testing.assert_close(*energies, rtol=1e-12, atol=0)
    same = SpectralShuffle(patch=patch).apply(z, Y, generator())[0].smashed
    assert torch.equal(released, same)


def test_the_paper_has_196_tokens_of_1536() -> None:
    defense = SpectralShuffle()
    release, receipt = defense.apply(torch.rand(1, 1, 196, 768), torch.zeros(1, 1), generator())
    assert release.smashed.shape == (1, 1, 196, 1536)
    assert defense.level == "smashed"
    adapter = defense.adapter((196, 768), 0)
    assert adapter is not None
    assert [tuple(p.shape) for p in adapter.parameters() if p.ndim == 2] == [(1536, 1536), (768, 1536)]
    assert all(p.requires_grad for p in adapter.parameters())
    certificate = receipt.certificate(ReleaseCount(epochs=3))
    assert certificate.kind == "permutation_count"
    assert certificate.quantities["log10_permutations"] == pytest.approx(365.70, abs=0.01)  # 196!
    assert any("symmetric" in sentence for sentence in certificate.assumptions)
    assert any("makes 3 of every image" in sentence for sentence in certificate.assumptions)


def test_without_the_order_the_transform_hides_nothing() -> None:
    z = torch.randn(2, 3, 16, 48, dtype=torch.float64, generator=generator())
    release, receipt = SpectralShuffle().apply(z, Y, generator(1))
    real, imag = unpatchify(unshuffled(release.smashed, receipt.permutation), 4, (6, 16, 16)).chunk(2, dim=2)
    picture = torch.fft.ifft2(torch.fft.ifftshift(torch.complex(real, imag), dim=(-2, -1))).real
    torch.testing.assert_close(patchify(picture, 4), z)


def test_before_the_embedding_an_image_stays_an_image() -> None:
    images = torch.rand(2, 3, 3, 12, 16, dtype=torch.float64, generator=generator())
    defense = SpectralShuffle(where="image", patch=4)
    release, receipt = defense.apply(images, Y, generator(1))
    assert (defense.level, defense.adapter((12, 9), 0)) == ("input", None)
    assert release.smashed.shape == images.shape
    torch.testing.assert_close(release.smashed.square().sum((2, 3, 4)), images.square().sum((2, 3, 4)))
    patches = unshuffled(patchify(release.smashed, 4), receipt.permutation)
    spectrum = unpatchify(patches, 4, (3, 12, 16))
    expected = np.fft.fftshift(np.fft.fft2(images.numpy(), norm="ortho"), axes=(-2, -1))
    np.testing.assert_allclose(spectrum.numpy(), expected.real - expected.imag, atol=1e-12)
    back = torch.fft.fft2(torch.fft.ifftshift(spectrum, dim=(-2, -1)), norm="ortho")  # Hartley is its own inverse
    torch.testing.assert_close(back.real - back.imag, images)
    assert receipt.permutation.shape == (2, 3, 12)


@pytest.mark.parametrize("defense", [SpectralShuffle(), SpectralShuffle(where="image", patch=4)])
def test_the_form_is_the_release_before_its_order(defense: SpectralShuffle) -> None:
    given = torch.rand(2, 3, 16, 12) if defense.where == "embedding" else torch.rand(2, 3, 1, 16, 16)
    release, receipt = defense.apply(given, Y, generator())
    form = defense.public_transform(given.flatten(0, 1)).view_as(release.smashed)
    tokens, released = (x if defense.where == "embedding" else patchify(x, 4) for x in (form, release.smashed))
    assert torch.equal(unshuffled(released, receipt.permutation), tokens)


def test_a_white_box_holds_the_transform_of_images() -> None:
    defense, x = SpectralShuffle(where="image", patch=2), digits(4).x
    edge, _ = built(defense)
    known = shared_lower(edge)
    assert known is not None
    torch.testing.assert_close(known(x), edge.lowers(defense.public_transform(x).unsqueeze(0))[0])


def test_bf16_smashed_data_are_transformed_in_float32() -> None:
    z = torch.randn(2, 3, 4, 12, generator=generator()).bfloat16()
    assert SpectralShuffle().apply(z, Y, generator())[0].smashed.dtype == torch.float32


def test_orders_are_uniform_and_fresh_for_every_image() -> None:
    _, receipt = SpectralShuffle().apply(torch.zeros(2, 3_000, 4, 1), torch.zeros(2, 3_000), generator())
    counts = torch.stack([(receipt.permutation == t).sum((0, 1)) for t in range(4)])
    assert (counts - 1500).abs().max() < 4.5 * (6_000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize(
    ("defense", "shape", "match"),
    [
        (SpectralShuffle(), (1, 2, 5, 12), "square picture, got 5 tokens"),
        (SpectralShuffle(), (1, 2, 3, 8, 8), "needs tokens"),
        (SpectralShuffle(patch=8), (1, 2, 4, 12), r"patch=8.*allowed: \[1, 2\]"),
        (SpectralShuffle(where="image", patch=8), (1, 2, 4, 12), "needs images"),
        (SpectralShuffle(where="image", patch=3), (1, 2, 3, 8, 8), r"patch=3.*allowed: \[1, 2, 4\]"),
        (SpectralShuffle(where="image", patch=8), (1, 2, 3, 8, 8), "no two whole patches"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(defense: SpectralShuffle, shape: tuple[int, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        defense.apply(torch.zeros(shape), torch.zeros(1, 2), generator())


def test_bad_specifications_are_refused() -> None:
    with pytest.raises(ValueError, match="where must be one of embedding, image"):
        SpectralShuffle(where="pixels")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give patch="):
        SpectralShuffle(where="image")
    with pytest.raises(ValueError, match="patch must be a whole number >= 1"):
        SpectralShuffle(patch=0)
    with pytest.raises(ValueError, match="needs tokens"):
        SpectralShuffle().adapter((3, 8, 8), 0)
