"""The layout of the arrays that workers and Python share: index constants for state.py and worker.py, nothing else."""

#: Status of an entry in a run.
PENDING, OK, FAILED, POISONED = range(4)

#: Indices into `control`, int64 each, eight to a cache line. Mutex and condition have two lines each. CALLS has one to itself,
#: because idle workers look at it again and again.
MUTEX, CONDITION, CALLS = 0, 16, 32  # CALLS grows when there is work for another worker
(
    QUIT,  # 1 once workers are to return
    ASKED,  # entries before this one are released
    OPENED,  # of these, entries before this one have been looked at
    ARRIVED, TAKEN,  # numbers of transfers that are over: reported by Python, seen by a worker
    OUT,  # number of ready transfers reported to Python
    OVER,  # size of the stack of entries that are over, whose successors do not know yet
    READY,  # size of the heap of operations; next, of the heaps of the two directions of the link
    READY_UP, READY_DOWN,
    LINK_UP, LINK_DOWN,  # FREE, COPYING, or DUE: copied, until the link would have carried it
    COPIED_UP, COPIED_DOWN,  # entry that is DUE
    MOVES,  # number of copies over the link and transfers that are ready or under way
    IDLE, SPINNING, PARKED, WOKEN,  # numbers of workers without work; that look; that sleep; of these, that are signalled
    FINISHED, BEFORE,  # number of entries that are over, in all runs; in earlier runs alone
    EVENTFD,
    MUTEX_AT, CONDITION_AT, ONE_AT, ONE,  # addresses of items in here, and a 1
    HELD, HELD_COPIES,  # 1 while workers may begin no operation; while not even a copy over the link
) = range(40, 68)  # fmt: skip
CONTROL = 72
FREE, COPYING, DUE = range(3)

#: Indices into `times`, float64 seconds of CLOCK_MONOTONIC.
(
    FREE_AT_UP, FREE_AT_DOWN,  # when a direction will have carried everything that went over it
    RATE_UP, RATE_DOWN,  # bytes per second, 0 without a limit
    STALL, COUNTED,  # idle seconds of all workers while bytes move; time up to which they are counted
    TIMER,  # when the first sleeping worker wakes by its timer
) = range(7)  # fmt: skip

#: int64 words of each worker, two cache lines: the entry that it runs (-1: none), since when, and room for what a call returns.
LANE = 16
RUNNING, SINCE, SCRATCH = 0, 1, 8
