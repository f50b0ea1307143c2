"""The layout of the arrays that workers and Python share: index constants for state.py and worker.py, nothing else."""

#: Status of an entry in a run.
PENDING, OK, FAILED, POISONED = range(4)

#: Indices into `control`, int64 each, eight to a cache line. The mutex has two lines. Two more have what every entry needs.
MUTEX = 0
(
    QUIT,  # 1 once workers are to return
    ASKED,  # entries before this one are released
    OPENED,  # of these, entries before this one have been looked at
    ARRIVED, TAKEN,  # numbers of transfers that are over: reported by Python, seen by a worker
    OVER,  # size of the stack of entries that are over, whose successors do not know yet
    FINISHED,  # number of entries that are over, in all runs
    MOVES,  # number of copies over links and transfers that are ready or under way
    DUES,  # number of copies that are DUE
    IDLE,  # number of workers without work
    HELD, HELD_COPIES,  # 1 while workers may begin no operation; while not even a copy over a link
    MUTEX_AT,  # addresses of items in here: the mutex, and a 1
    OUT,  # number of ready transfers reported to Python
    BEFORE,  # number of entries that are over in earlier runs
    EVENTFD, ONE_AT, ONE,
) = range(16, 34)  # fmt: skip
CONTROL = 40

#: Number of queues of each device: its operations, copies up, down, and from other devices. Queue QUEUES * device + kind is the
#: one of an UPLOAD, a DOWNLOAD or a PASS. The last queue, behind those of all devices, has the operations of the host.
QUEUES = 4
#: Indices into `queues`, int64 each, for every queue.
(
    SIZE,  # of the heap of ready entries
    LINK,  # FREE, COPYING, or DUE: copied, until the link would have carried it
    COPIED,  # entry that is DUE
) = range(3)  # fmt: skip
FREE, COPYING, DUE = range(3)
#: Indices into `links`, float64 each, for every queue.
(
    FREE_AT,  # when a direction will have carried everything that went over it, in seconds of CLOCK_MONOTONIC
    RATE,  # bytes per second, 0 without a limit
) = range(2)  # fmt: skip

#: int64 words of a post, where the workers of one device rest. The condition has two lines. CALLS has one to itself, because
#: idle workers look at it again and again.
CONDITION, CALLS = 0, 16  # CALLS grows when there is work for another worker of the device
(
    SPINNING, PARKED, WOKEN,  # numbers of workers that look; that sleep; of these, that are signalled
    CONDITION_AT,  # address of the condition
) = range(24, 28)  # fmt: skip
POST = 32

#: Indices into `times`, float64 seconds of CLOCK_MONOTONIC.
(
    STALL, COUNTED,  # idle seconds of all workers while bytes move; time up to which they are counted
    TIMER,  # when the first sleeping worker wakes by its timer
) = range(3)  # fmt: skip
TIMES = 8

#: int64 words of each worker, on cache lines of its own: the entry that it runs (-1: none), since when, room for what a call
#: returns, and how many workers of each device it is about to signal.
RUNNING, SINCE, SCRATCH, SIGNALS = 0, 1, 8, 16
