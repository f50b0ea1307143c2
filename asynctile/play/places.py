"""Where things stand in the arrays that workers and Python share: numbers for state.py and worker.py, and nothing else."""

#: How an entry of a run stands.
PENDING, OK, FAILED, POISONED = range(4)

#: Where in `control` things stand, int64 each. The mutex and the condition come first, a cache line or two each.
MUTEX, CONDITION, COUNTERS = 0, 16, 32
(
    QUIT,  # workers return
    ASKED,  # entries before this one are released
    OPENED,  # entries before this one have been looked at since
    ARRIVED, TAKEN,  # transfers that are over: told by Python, seen by a worker
    OUT,  # transfers that are ready, told to Python
    READY,  # size of the heap of operations, and behind it those of the two directions of the link
    READY_UP, READY_DOWN,
    LINK_UP, LINK_DOWN,  # FREE, COPYING, or until when is in `times` (DUE)
    COPIED_UP, COPIED_DOWN,  # which entry that is
    MOVES,  # copies over the link and transfers that are ready or under way
    IDLE, SPINNING, PARKED, WOKEN,  # workers without work; those who look, who sleep, and of these who have been signalled
    CALLS,  # grows when there is more than one worker takes
    FINISHED,
    EVENTFD,
    MUTEX_AT, CONDITION_AT, ONE_AT, ONE,  # addresses of things in here, and a 1
) = range(COUNTERS, COUNTERS + 25)  # fmt: skip
CONTROL = COUNTERS + 32
FREE, COPYING, DUE = range(3)

#: Where in `times` things stand, float64 seconds of CLOCK_MONOTONIC.
(
    FREE_AT_UP, FREE_AT_DOWN,  # when a direction has carried all that went over it
    DUE_UP, DUE_DOWN,  # when the copy under way ends
    RATE_UP, RATE_DOWN,  # bytes a second, 0 without a limit
    STALL, COUNTED,  # idle time summed over workers while something moves, and until when it is counted
    TIMER,  # until when the first to wake of those who sleep does
) = range(9)  # fmt: skip

#: int64 of each worker, two cache lines: the entry that it runs (-1: none), room for what a call returns, and since when.
LANE = 16
RUNNING, SINCE, SCRATCH = 0, 1, 8
