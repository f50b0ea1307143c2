"""cuDNN handles that a process keeps for one GPU, so that only its first engine tries the library and waits for plans."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from asynctile.device import cudnn_trial
from asynctile.device.cudnn import WORKSPACE_NBYTES, Cudnn, load
from asynctile.device.driver import Driver


class KeptCudnn:
    """The result of the trial, and the handles that no engine uses now. A plan belongs to the handle that made it.

    load, nbytes: as for try_cudnn. Any thread may call.
    """

    def __init__(self, load: Callable[[], Any] = load, nbytes: int = WORKSPACE_NBYTES) -> None:
        self._load = load
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._is_right = False
        self._refused = ""
        self._spare: list[Cudnn] = []

    def take(self, memory: Driver, stream: int) -> tuple[Cudnn | None, str]:
        """Return cuDNN for `stream` with a workspace from `memory`, or None, and a description of what attention uses.

        The caller ends its use with `give`.
        """
        with self._lock:
            if self._refused:
                return None, self._refused
            if not self._is_right:
                found, words = cudnn_trial.try_cudnn(memory, stream, self._load, self._nbytes)
                self._is_right, self._refused = found is not None, "" if found is not None else words
                return found, words
            found = self._spare.pop() if self._spare else Cudnn(self._load(), stream, 0, self._nbytes)
            try:
                found.move(stream, memory.malloc(self._nbytes))
            except BaseException:
                self._spare.append(found)
                raise
            return found, found.words

    def give(self, cudnn: Cudnn, memory: Driver) -> None:
        """Take back a handle that an engine has finished with. Its stream may then be destroyed."""
        memory.free(cudnn.workspace)
        cudnn.move(0, 0)
        with self._lock:
            self._spare.append(cudnn)
