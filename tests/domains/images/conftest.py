"""No test of images reaches the network."""

import socket
import urllib.error
import urllib.request
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every attempt to reach the network; none gets there."""
    attempts: list[str] = []

    def refuse(*arguments: object, **_: object) -> NoReturn:
        attempts.append(str(arguments[0]))
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return attempts
