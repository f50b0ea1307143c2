"""Where things stand in the arrays that workers and Python share: numbers for state.py and worker.py, and nothing else."""

#: How an entry of a run stands.
PENDING, OK, FAILED, POISONED = range(4)

#: Where in `control` things stand, int64 each, eight a cache line. Mutex and condition have two lines each, and CALLS has one:
#: idle workers look at it again and again.
MUTEX, CONDITION, CALLS = 0, 16, 32  # CALLS grows when there is more than one worker takes
(
    QUIT,  # workers return
    ASKED,  # entries before this one are released
    OPENED,  # entries before this one have been looked at since
    ARRIVED, TAKEN,  # transfers that are over: told by Python, seen by a worker
    OUT,  # transfers that are ready, told to Python
    OVER,  # entries on the stack: they are over, and those that wait for them do not know yet
    READY,  # size of the heap of operations, and behind it those of the two directions of the link
    READY_UP, READY_DOWN,
    LINK_UP, LINK_DOWN,  # FREE, COPYING, or DUE when it will have carried all that went over it
    COPIED_UP, COPIED_DOWN,  # which entry is due then
    MOVES,  # copies over the link and transfers that are ready or under way
    IDLE, SPINNING, PARKED, WOKEN,  # workers without work; those who look, who sleep, and of these who have been signalled
    FINISHED, BEFORE,  # entries that are over, those of runs before included; and of these alone
    EVENTFD,
    MUTEX_AT, CONDITION_AT, ONE_AT, ONE,  # addresses of things in here, and a 1
    HELD, HELD_COPIES,  # 1 while workers may begin no operation; and not even a copy over the link
) = range(40, 68)  # fmt: skip
CONTROL = 72
FREE, COPYING, DUE = range(3)

#: Where in `times` things stand, float64 seconds of CLOCK_MONOTONIC.
(
    FREE_AT_UP, FREE_AT_DOWN,  # when a direction has carried all that went over it
    RATE_UP, RATE_DOWN,  # bytes a second, 0 without a limit
    STALL, COUNTED,  # idle time summed over workers while something moves, and until when it is counted
    TIMER,  # until when the first to wake of those who sleep does
) = range(7)  # fmt: skip

#: int64 of each worker, two cache lines: the entry that it runs (-1: none), room for what a call returns, and since when.
LANE = 16
RUNNING, SINCE, SCRATCH = 0, 1, 8
