"""Work that runs behind the loop: streams and events, the bound on the host's run-ahead, and the watchdog."""
