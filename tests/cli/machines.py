"""Two machines in one: each has a network and mounts of its own, and a cable joins them.

Anybody may make them whom the system lets make namespaces of users. `unshare`, `nsenter` and `ip` do the work.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The addresses of both machines at their ends of the cable.
IPV4, IPV6 = ("10.9.0.1", "10.9.0.2"), ("fd00:9::1", "fd00:9::2")


class Machine:
    """Namespaces, held by a process that waits. command: starts a program in new ones. OSError if the system refuses."""

    def __init__(self, *command: str) -> None:
        self._holder = subprocess.Popen(
            [*command, "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise OSError(self._holder.communicate()[1].decode())

    @property
    def process(self) -> int:
        """The process that holds the namespaces."""
        return self._holder.pid

    def enter(self, folder: Path, *spaces: str) -> list[str]:
        """Return the words in front of a command that runs on this machine, in a folder as the machine sees it.

        spaces: the namespaces to enter, if not all of them.
        """
        entered = spaces or ("-U", "-n", "-m")
        return ["nsenter", "-t", str(self.process), *entered, "--preserve-credentials", f"--wdns={folder}"]

    def do(self, *commands: str) -> None:
        """Run commands of a shell on this machine."""
        subprocess.run([*self.enter(Path("/")), "sh", "-ec", "\n".join(commands)], check=True)

    def close(self) -> None:
        self._holder.communicate()


@contextmanager
def two_machines(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """Give two machines that share `folder`/shared: the first one sees it at `folder`/here, the other one at `folder`/there.

    OSError if the system makes none.
    """
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        raise OSError(f"no {missing[0]}")
    for name in ("shared", "here", "there"):
        (folder / name).mkdir()
    first = Machine("unshare", "-Urnm")
    try:
        other = Machine(*first.enter(folder, "-U"), "unshare", "-nm")
        try:
            first.do(f"ip link add cable type veth peer name cable netns {other.process}")
            for machine, place, *addresses in ((first, "here", IPV4[0], IPV6[0]), (other, "there", IPV4[1], IPV6[1])):
                machine.do("ip link set lo up", f"ip addr add {addresses[0]}/24 dev cable",
                           f"ip addr add {addresses[1]}/64 dev cable nodad", "ip link set cable up",
                           f"mount --bind {folder}/shared {folder}/{place}")
            yield first, other
        finally:
            other.close()
    finally:
        first.close()
