"""The transfers of one direction: their order, their pieces, and how they fail."""

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from asynctile.errors import NodeError
from asynctile.nodes import boxes
from asynctile.nodes import precedence as precedences
from asynctile.nodes.boxes import Inbox, Outbox, Track
from asynctile.nodes.precedence import Precedence
from asynctile.nodes.wire import PieceHeader
from tests.settle import HANG_S


def outbox_of(track=Track.TEMPORARY, precedence=None):
    return Outbox(track, precedence or Precedence())


def view(nbytes):
    return memoryview(bytearray(nbytes))


def taken(outbox, count):
    return [tuple(outbox.take()[1]) for _ in range(count)]


def test_transfers_go_out_in_the_order_of_their_numbers():
    outbox = outbox_of()
    outbox.begin(3)
    for index in (2, 0):
        outbox.add(index, view(8), pytest.fail)
    assert taken(outbox, 1) == [(0, 8, 0, 8)]
    found = []
    thread = threading.Thread(target=lambda: found.extend(taken(outbox, 2)))
    thread.start()
    outbox.add(1, view(4), pytest.fail)
    thread.join(HANG_S)
    assert found == [(1, 4, 0, 4), (2, 8, 0, 8)]


def test_a_piece_of_a_weight_waits_for_the_pieces_of_sums_to_all_nodes(monkeypatch):
    monkeypatch.setattr(precedences, "STALL_S", HANG_S)
    precedence, found = Precedence(), []
    sums = [outbox_of(Track.TEMPORARY, precedence) for _ in range(2)]
    weights = outbox_of(Track.PERSISTENT, precedence)
    for outbox in (*sums, weights):
        outbox.begin(1)
        outbox.add(0, view(8), found.append)
    held = [outbox.take() for outbox in sums]
    thread = threading.Thread(target=lambda: found.append(weights.take()[1].number))
    thread.start()
    sums[0].put_back(held[0][0], 8)
    assert found == [None]
    sums[1].put_back(held[1][0], 8)
    thread.join(HANG_S)
    assert found == [None, None, 0]


def test_a_thread_that_another_one_forestalled_gives_way_to_sums_again(monkeypatch):
    monkeypatch.setattr(precedences, "STALL_S", HANG_S)
    precedence = Precedence()
    sums, weights = outbox_of(Track.TEMPORARY, precedence), outbox_of(Track.PERSISTENT, precedence)
    for outbox in (sums, weights):
        outbox.begin(2)
        outbox.add(0, view(8), lambda error: None)
    held = sums.take()
    with ThreadPoolExecutor(2) as pool:
        taking = [pool.submit(weights.take) for _ in range(2)]
        sums.put_back(held[0], 8)
        wait(taking, HANG_S, FIRST_COMPLETED)
        sums.add(1, view(8), lambda error: None)
        held = sums.take()
        weights.add(1, view(8), lambda error: None)
        assert len(wait(taking, 0.05).done) == 1
        sums.put_back(held[0], 8)
        assert sorted(one.result(HANG_S)[1].number for one in taking) == [0, 1]


def test_a_transfer_goes_in_pieces_and_is_over_with_the_last_one(monkeypatch):
    monkeypatch.setattr(boxes, "PIECE_NBYTES", 4)
    outbox, told = outbox_of(), []
    outbox.begin(1)
    outbox.add(0, view(10), told.append)
    pieces = [outbox.take() for _ in range(3)]
    assert [tuple(piece) for _, piece in pieces] == [(0, 10, 0, 4), (0, 10, 4, 4), (0, 10, 8, 2)]
    for moving, piece in reversed(pieces):
        assert not told
        outbox.put_back(moving, piece.nbytes)
    assert told == [None]


def test_numbers_go_on_in_the_next_run_whatever_was_left_out():
    outbox, inbox = outbox_of(), Inbox()
    for box in (outbox, inbox):
        box.begin(5)
        box.begin(2)
        box.add(0, view(1), pytest.fail)
    assert outbox.take()[1].number == 5
    assert inbox.place(PieceHeader(5, 1, 0, 1)).number == 5


def test_a_run_begins_after_the_last_one():
    inbox = Inbox()
    inbox.begin(1)
    inbox.add(0, view(1), pytest.fail)
    with pytest.raises(RuntimeError, match="1 transfers of the last run are under way"):
        inbox.begin(1)


@pytest.mark.parametrize("index", [-1, 2, 0])
def test_a_transfer_that_is_not_of_the_run_or_was_added_is_refused(index):
    inbox = Inbox()
    inbox.begin(2)
    inbox.add(0, view(1), pytest.fail)
    with pytest.raises(ValueError, match=f"transfer {index} is not one of the 2"):
        inbox.add(index, view(1), pytest.fail)


@pytest.mark.parametrize("piece", [(0, 9, 0, 4), (0, 8, 6, 4), (0, 8, 0, 0), (0, 8, 0, 9)])
def test_a_piece_that_does_not_fit_is_refused(piece):
    inbox = Inbox()
    inbox.begin(1)
    inbox.add(0, view(8), pytest.fail)
    with pytest.raises(NodeError, match="start all nodes with the same options"):
        inbox.place(PieceHeader(*piece))


def test_a_failure_reaches_each_transfer_once_also_later_ones():
    box, told = Inbox(), []
    box.begin(3)
    box.add(0, view(4), told.append)
    box.fail(NodeError("first"))
    box.fail(NodeError("second"))
    box.add(1, view(4), told.append)
    assert list(map(str, told)) == ["first", "first"]
    assert box.place(PieceHeader(0, 4, 0, 4)) is None


def test_memory_that_a_thread_still_writes_is_given_back_when_it_is_done():
    box, told = Inbox(), []
    box.begin(1)
    box.add(0, view(8), told.append)
    held = [box.place(PieceHeader(0, 8, offset, 4)) for offset in (0, 4)]
    box.fail(NodeError("lost"))
    assert not told
    box.put_back(held[0], 4)
    assert not told
    box.put_back(held[1], 0)
    assert list(map(str, told)) == ["lost"]


def test_a_transfer_whose_last_byte_came_before_the_failure_is_fine():
    box, told = Inbox(), []
    box.begin(1)
    box.add(0, view(4), told.append)
    held = box.place(PieceHeader(0, 4, 0, 4))
    box.fail(NodeError("lost"))
    box.put_back(held, 4)
    assert told == [None]


def test_threads_that_wait_leave_at_a_failure():
    outbox, inbox, found = outbox_of(), Inbox(), []
    threads = [threading.Thread(target=lambda: found.append(outbox.take())),
               threading.Thread(target=lambda: found.append(inbox.place(PieceHeader(0, 1, 0, 1))))]  # fmt: skip
    for thread in threads:
        thread.start()
    for box in (outbox, inbox):
        box.fail(NodeError("over"))
    for thread in threads:
        thread.join(HANG_S)
    assert found == [None, None]
