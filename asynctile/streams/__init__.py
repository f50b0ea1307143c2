"""Work that runs behind the loop: threads and events, how far the host runs ahead of them, and the watchdog."""
