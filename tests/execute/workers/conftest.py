"""Players that are closed after each test."""

import pytest

from asynctile.execute.workers.player import Player


@pytest.fixture
def players():
    made = []

    def make(threads=2, rate=None, devices=1):
        made.append(Player(threads, rate, rate, devices))
        return made[-1]

    yield make
    for player in made:
        player.close(10)
