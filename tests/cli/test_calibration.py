"""The command that searches a parameter for a target: noise, δ, or an attack's rates."""

import json
import subprocess
from collections.abc import Callable

import pytest

from privkit.accountants import answer
from privkit.accountants.bounds import gaussian
from privkit.accountants.table import mechanism_of

CLI = Callable[..., subprocess.CompletedProcess[str]]


def test_calibration_reaches_its_target(privkit_cli: CLI) -> None:
    flags = ("--mechanism", "gaussian", "--sensitivity", "1")
    done = privkit_cli("calibrate", "sigma", "--epsilon", "1", "--delta", "1e-5", *flags)
    assert done.returncode == 0, done.stderr
    sigma = float(done.stdout.split("=")[1].split()[0])
    assert sigma == pytest.approx(3.7306316348159374, rel=1e-5)
    printed = done.stdout.partition("sigma = ")[2].split()[0]
    assert f"standard deviation {printed} is added" in done.stdout  # the same digits
    done = privkit_cli("calibrate", "rounds", "--epsilon", "1", "--delta", "1e-5", "--sigma", "100", *flags)
    rounds = int(done.stdout.split("=")[1].split()[0].replace(",", ""))
    for more, fits in ((0, True), (1, False)):
        mechanism = mechanism_of({"mechanism": "gaussian", "sensitivity": 1, "sigma": 100, "rounds": rounds + more})
        assert (answer.epsilon(mechanism, 1e-5).epsilon <= 1) is fits
    done = privkit_cli("calibrate", "sgima", "--epsilon", "1", "--delta", "1e-5", *flags)
    assert (done.returncode, "sigma" in done.stderr) == (2, True)


def test_calibrating_delta_gives_the_smallest(privkit_cli: CLI) -> None:
    flags = ("--mechanism", "gaussian", "--sensitivity", "1", "--sigma", "2", "--json")
    done = privkit_cli("calibrate", "delta", "--epsilon", "1.9930913687", *flags)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["value"] == pytest.approx(1e-5, rel=1e-4)
    done = privkit_cli("calibrate", "delta", "--epsilon", "1", "--delta", "1e-5", *flags)
    assert (done.returncode, "leave --delta out" in done.stderr) == (2, True)
    done = privkit_cli("calibrate", "sigma", "--epsilon", "1", *flags)
    assert (done.returncode, "give --delta" in done.stderr) == (2, True)


def test_calibrating_to_an_attacks_rates(privkit_cli: CLI) -> None:
    flags = ("--mechanism", "gaussian", "--sensitivity", "1", "--json")
    done = privkit_cli("calibrate", "sigma", "--advantage", ".1", *flags)
    assert json.loads(done.stdout)["value"] == pytest.approx(3.97895, rel=1e-5)
    assert json.loads(done.stdout)["limits"] == {"advantage": pytest.approx(0.1, rel=1e-4)}
    done = privkit_cli("calibrate", "sigma", "--tpr", ".05@.01", *flags)
    assert json.loads(done.stdout)["value"] == pytest.approx(1.46741, rel=1e-4)
    done = privkit_cli("calibrate", "sigma", "--tpr", ".05@.01", *flags[:-1])
    assert done.stdout.splitlines()[1] == (
        "no attack has an advantage above 0.2667, or a true positive rate above 0.05 at a false positive rate of 0.01"
    )
    done = privkit_cli("calibrate", "sigma", "--advantage", ".1", *flags[:-1])
    assert done.stdout.splitlines()[1] == "no attack has an advantage above 0.1"
    refused = {
        ("--tpr", ".05"): "--tpr is TPR@FPR",
        ("--tpr", ".01@.05"): "less than guessing gives",
        ("--advantage", "2"): "advantage must",
        ("--advantage", ".1", "--epsilon", "1", "--delta", "1e-5"): "give one target",
        ("--advantage", ".1", "--delta", "1e-5"): "have no δ",
    }
    for target, sentence in refused.items():
        done = privkit_cli("calibrate", "sigma", *target, *flags)
        assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (
            "sigma --advantage .5 --relation add_or_remove_one --sampling poisson --rate .01 --fast",
            "even very little noise",
        ),
        ("rounds --epsilon 1 --delta .5 --sigma 1e9", "every number of rounds up to 1,099,511,627,776"),
        ("group --epsilon 1 --delta 1e-5 --sigma 1", "group needs mixing"),
        ("noise_parameter --epsilon 1 --delta 1e-5", "for other noise calibrate sigma"),
        ("sigma --epsilon 1 --delta 1e-5 --rate .01", "rate would be ignored"),
    ],
)
def test_a_search_without_an_answer_says_why(privkit_cli: CLI, command: str, sentence: str) -> None:
    done = privkit_cli("calibrate", *command.split(), "--mechanism", "gaussian", "--sensitivity", "1")
    assert (done.returncode, sentence in done.stderr, done.stdout) == (2, True, "")


def test_the_noise_that_is_printed_reaches_the_target(privkit_cli: CLI) -> None:
    """3.73063 was printed where 3.7306316 is needed: rounded down, below the noise of the claim."""
    done = privkit_cli(
        *("calibrate", "sigma", "--epsilon", "1", "--delta", "1e-5", "--mechanism", "gaussian", "--sensitivity", "1")
    )
    sigma = float(done.stdout.split("=")[1].split()[0])
    assert gaussian.epsilon(1e-5, 1 / sigma) <= 1
