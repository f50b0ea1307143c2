"""The benchmark of a service: its client never waits, and latency counts from a request's due time, in every phase."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from typing import Any

import pytest

from tests.bench.shell import ROOT, clean, run
from tests.laws import law


async def test_the_client_keeps_asking_without_answers_and_then_takes_every_answer() -> None:
    waiting: list[tuple[int, asyncio.StreamWriter]] = []
    enough = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            waiting.append((json.loads(line)["index"], writer))
            if len(waiting) >= 64:  # four on each connection
                enough.set()
            await asyncio.sleep(0)
        for index, own in waiting:
            if own is writer:
                writer.write(json.dumps({"index": index, "answered": float(index)}).encode() + b"\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = str(server.sockets[0].getsockname()[1])
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(ROOT / "bench" / "open_loop.py"), port, "2000", "1", env=clean(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)  # fmt: skip
        await enough.wait()
        found, _ = await client.communicate(b"")
    asked = json.loads(found)
    assert len(asked) == len(waiting) >= 64
    assert [answered for _, _, answered in asked] == list(range(len(asked)))
    assert all(due <= sent for due, sent, _ in asked)
    assert [due for due, _, _ in asked] == sorted(due for due, _, _ in asked)


async def test_latency_counts_from_the_due_time_of_a_request_and_in_the_phase_of_that_time(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = bench("bench_service")
    marks = [(service.IDLE, 0.0, 0.0), (service.FIRST, 10.0, 1.0), (service.STEPS, 20.0, 11.0), ("end", 30.0, 31.0)]
    due = {"early": 5.0, "first": 12.0, "steps": 25.0, "after": 31.0}
    took = {"early": 0.001, "first": 9.0, "steps": 0.002, "after": 100.0}
    asked = [(at, at + 0.5 * took[name], at + took[name]) for name, at in due.items()]

    async def once(*_: Any) -> Any:
        return {"marks": marks, "steps": 4, "switch": 0.005}, asked

    side = service.Measured("asynctile, uvloop", Namespace(keep_kernels=True))
    monkeypatch.setattr(side, "once", once)
    assert await side.added() == pytest.approx(9000 - 0.09 * 1000 - 1, rel=1e-2)
    assert side.lags[service.FIRST][0][1] == pytest.approx(9000)
    assert side.lags[service.STEPS][0][1] == pytest.approx(2)
    assert side.lags[service.WHOLE][0][2] == pytest.approx(9000)
    assert side.others[service.STEPS][0] == pytest.approx((1, 1, 2, 1))  # from the socket, client late, cores, requests
    assert side.others[service.WHOLE][0][2] == pytest.approx(1.5)
    assert side.step_ms == [2500]
    added, met = service.results([side])
    assert len(added.rows) == 1 and "MISSED" in added.rows[0][4]
    assert added.rows[0][5] == pytest.approx(0.5 * (9000 - 0.09 * 1000 - 1), rel=1e-2)
    assert added.rows[0][7] == pytest.approx(1)
    assert [row[1] for row in met.rows] == [service.IDLE, service.FIRST, service.STEPS, service.WHOLE]


@pytest.mark.parametrize(
    ("side", "phases"),
    [law("asynctile, uvloop", 6), pytest.param("torch in a thread, asyncio", 5, marks=pytest.mark.reference)],
)
def test_a_service_answers_in_every_phase_of_a_training(side: str, phases: int) -> None:
    tiny = ("--rounds=1", "--idle=0.2", "--seconds=0.1", "--layers=1", "--width=32", "--length=16", "--batch=1", "--vocab=64")
    said = run(sys.executable, "bench/bench_service.py", *tiny, "--rate=1000", "--keep-kernels", "--sides", side)
    assert said.returncode == 0, said.stderr
    rows = [line for line in said.stdout.splitlines() if line.startswith(f"  {side}")]
    # What was added, and the phases; the last may be over before a request is due.
    assert len(rows) in (phases, phases + 1), said.stdout
    assert "interpreter's switch interval: 5 ms" in said.stdout
