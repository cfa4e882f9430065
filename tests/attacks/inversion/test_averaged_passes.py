"""Several passes of texts and of table rows are averaged, so that noise hides less, and shuffled ones are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from privkit.attacks.base import NotApplicable, View
from privkit.attacks.goals.reconstruct import ImageAttack, ImageObservation
from privkit.attacks.inversion.adaptive import Adaptive
from privkit.attacks.inversion.black_box import BlackBox
from privkit.attacks.inversion.rounds import averaged_passes
from privkit.attacks.inversion.token_decoder import TokenDecoder
from privkit.attacks.inversion.token_search import TokenSearch
from tests.attacks.inversion import test_token_search as searched
from tests.attacks.inversion import test_vocabulary as queried
from tests.attacks.order.test_field_order import CARS
from tests.attacks.victims import answering

BATCH = 20
Release = Callable[[Tensor, Generator], Tensor]


def noisy(clean: Callable[[Tensor], Tensor], sigma: float) -> Release:
    def release(records: Tensor, draws: Generator) -> Tensor:
        tokens = clean(records)
        return tokens + sigma * torch.randn(tokens.shape, generator=draws)

    return release


def seen(private: Tensor, own: Tensor, release: Release, passes: int) -> ImageObservation:
    draws = Generator().manual_seed(9)
    parts = [part for _ in range(passes) for part in private.split(BATCH)]
    return ImageObservation(
        image_shape=tuple(private.shape[1:]),  # type: ignore[arg-type]
        batch_size=BATCH,
        views=[View(round=number, smashed=release(part, draws)) for number, part in enumerate(parts)],
        auxiliary=own,
        query=answering(release),
    )


def guessed(attack: ImageAttack, observation: ImageObservation) -> Tensor:
    return attack.run(observation, Generator().manual_seed(0)).images


def test_a_search_reads_more_of_eight_passes_than_of_one() -> None:
    private, own, lower = searched.texts(40, 5), searched.texts(300, 3), searched.TwoBlocks()
    release = noisy(lower, 1.6 * float(lower(private).std()))
    one, eight = (
        float((guessed(attack, replace(seen(private, own, release, count), lower=lower)) == private).double().mean())
        for count, attack in ((1, TokenSearch(epochs=1)), (8, TokenSearch(epochs=1, passes=8)))
    )
    assert eight > one + 0.2


def test_a_decoder_reads_more_of_eight_passes_than_of_one() -> None:
    private, own = queried.texts(40, 5), queried.texts(300, 3)
    release = noisy(queried.Embedding(), 2.0)
    one, eight = (
        float((guessed(attack, seen(private, own, release, count)) == private).double().mean())
        for count, attack in ((1, TokenDecoder(epochs=0)), (8, TokenDecoder(epochs=0, passes=8)))
    )
    assert eight > one + 0.2


def test_a_decoder_of_table_rows_reads_more_of_eight_passes_than_of_one() -> None:
    own, private = (CARS.random(count, Generator().manual_seed(count)) for count in (400, 100))
    turn = torch.randn(4, 16, generator=Generator().manual_seed(3))
    release = noisy(lambda rows: rows.float() @ turn, 1.0)
    one, eight = (
        float(CARS.scores(private, guessed(attack, known))["cells"].mean())
        for attack, known in (
            (attack, replace(seen(private, own, release, count), columns=CARS.column_sizes))
            for count, attack in ((1, BlackBox(epochs=16)), (8, Adaptive(epochs=16)))
        )
    )
    assert eight > one + 0.08


def test_the_mean_of_passes_is_that_of_the_rows_that_were_sent() -> None:
    private, own = queried.texts(40, 5), queried.texts(60, 3)
    release = noisy(queried.Embedding(), 1.0)
    observation = seen(private, own, release, 8)
    mean = averaged_passes(observation, 8, "token_decoder")
    sent = torch.stack([view.smashed for view in observation.views]).unflatten(0, (8, -1)).mean(0)
    assert torch.allclose(torch.stack([view.smashed for view in mean.views]), sent)
    assert mean.query is not None
    answer = mean.query(own[:BATCH], Generator().manual_seed(1)).view.smashed
    error = answer - queried.Embedding()(own[:BATCH])
    assert 0.3 < float(error.std()) < 0.4  # 1/√8
    assert averaged_passes(observation, 1, "token_decoder") is observation


@pytest.mark.parametrize("attack", [TokenSearch(passes=4), TokenDecoder(passes=4)])
def test_passes_with_other_orders_are_refused(attack: ImageAttack) -> None:
    private, own, lower = searched.texts(40, 5), searched.texts(300, 3), searched.TwoBlocks()

    def release(texts: Tensor, draws: Generator) -> Tensor:
        tokens = lower(texts)
        order = torch.rand(tokens.shape[:2], generator=draws).argsort(1)
        return tokens.gather(1, order.unsqueeze(2).expand_as(tokens))

    with pytest.raises(NotApplicable, match="averages passes whose tokens are in the same places, and these are not"):
        guessed(attack, replace(seen(private, own, release, 4), lower=lower))


def test_table_rows_have_no_other_ways_to_combine() -> None:
    own, private = (CARS.random(count, Generator().manual_seed(count)) for count in (200, 40))
    known = replace(seen(private, own, noisy(lambda rows: rows.float(), 1.0), 8), columns=CARS.column_sizes)
    with pytest.raises(NotApplicable, match="leave out combine, decoder, augment and align"):
        guessed(Adaptive(epochs=1, combine="concatenate"), known)
