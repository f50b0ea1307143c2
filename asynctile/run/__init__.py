"""How a program runs: the tile coroutine, the lanes that it goes through, jobs."""
