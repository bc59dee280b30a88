# SPDX-License-Identifier: Apache-2.0

"""Output and input of programs, without a connection."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from io import FileIO
from typing import Deque, Iterator, Optional

#: so many bytes of input may be under way that boxd has not confirmed
WINDOW = 256 << 10

#: so many bytes of input may be in one message
MAX_INPUT = 64 << 10

#: so many bytes may be in one line, where lines are asked for
MAX_LINE = 16 << 20

_MAX_FLIGHT = 512


@dataclass(frozen=True)
class Output:
    """A piece of output."""

    #: stdout or stderr
    stream: str

    data: bytes

    #: offset of its first byte in the stream
    offset: int

    #: about when it was written, in logs
    time: Optional[str] = None

    @property
    def text(self) -> str:
        """The data as text. A piece may begin or end within a character, which is replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Gap:
    """Output that is missing."""

    #: stdout or stderr
    stream: str

    #: bytes that are missing
    bytes: int

    #: offset of the first of them in the stream
    offset: int

    #: why, in a stream of lines: long_line is one of more than 16 MiB, unfinished_line one that the program has not finished;
    #: None: the bytes are not kept any more
    reason: Optional[str] = None


class Stdio:
    """The pipes of a process, which are no longer boxd's: they go on when boxd is restarted, and are yours to close.

    A task of asyncio reads and writes them by connect_read_pipe and connect_write_pipe of its loop.
    """

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        #: what the program reads
        self.stdin = FileIO(stdin, "w")
        #: what it writes
        self.stdout = FileIO(stdout)
        #: and its errors
        self.stderr = FileIO(stderr)

    def close(self) -> None:
        """Closes those that are open."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def __enter__(self) -> Stdio:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Lines:
    """Cuts what is written into lines that can be sent: with an end, and not empty."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def cut(self, data: bytes, last: bool = False) -> Iterator[bytes]:
        """The lines that are whole now; the last one also without its end."""
        begun, self._begun = self._begun, bytearray()
        seen, at = len(begun), 0
        begun += data
        while True:
            end = begun.find(b"\n", max(seen, at))
            if end < 0:
                break
            if end > at:
                self._check(end - at)
                yield bytes(begun[at : end + 1])
            at = end + 1
        del begun[:at]
        self._check(len(begun))
        if not last:
            self._begun = begun
        elif begun:
            yield bytes(begun) + b"\n"

    @staticmethod
    def _check(size: int) -> None:
        if size > MAX_LINE:
            raise ValueError(f"a line of the input has {size} bytes, of at most {MAX_LINE}")


class Input:
    """Standard input until boxd has confirmed it, so that it can be sent again. Offsets are those of the process.

    On a new connection all that is kept is sent again, also what boxd confirms meanwhile: it counts on what it is sent from the
    offset that it was told, and takes what the program has not had. One thread may send while another reads what boxd confirms.

    Lines are sent one by one, without their ends. The one that boxd has begun to take is kept: only whole ones can be sent again.
    """

    def __init__(self, lines: bool = False) -> None:
        self._lines = lines
        self._lock = threading.Lock()
        self.base = 0  # offset of what is kept
        self.ready = False  # boxd takes input on this connection
        self.ended = False  # there is no more than what is kept
        self._kept = bytearray()
        self._sent = 0
        self._taken = 0
        self._end_sent = False
        self._flight: Deque[int] = deque()

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.base + len(self._kept)

    @property
    def waiting(self) -> int:
        """Bytes that boxd has not confirmed."""
        with self._lock:
            return self.end - self._taken

    def begin(self, offset: int) -> None:
        """The process has had so many bytes from others."""
        self.base = self._sent = self._taken = offset

    def renew(self) -> None:
        """A new connection begins."""
        with self._lock:
            self.ready = self._end_sent = False
            self._sent = self.base
            self._flight.clear()

    def add(self, data: bytes) -> None:
        """More input."""
        with self._lock:
            self._kept += data

    def confirm(self, offset: int) -> None:
        """boxd has what is before an offset."""
        with self._lock:
            self._taken = max(self._taken, min(offset, self.end))
            while self._flight and self._flight[0] <= self._taken:
                self._flight.popleft()
            self._trim()

    def _trim(self) -> None:
        done = min(self._taken, self._sent) - self.base
        if done > 0 and self._lines:
            done = self._kept.rfind(b"\n", 0, done) + 1
        if done > 0:
            del self._kept[:done]
            self.base += done

    def next(self) -> Optional[bytes]:
        """What to send next: some bytes, none as the end of the input, or nothing now."""
        with self._lock:
            if not self.ready or len(self._flight) >= _MAX_FLIGHT:
                return None
            if self._sent < self.end:
                at = self._sent - self.base
                return bytes(self._kept[at : self._kept.index(b"\n", at) if self._lines else at + MAX_INPUT])
            return b"" if self.ended and not self._end_sent else None

    def was_sent(self, size: int) -> None:
        """What next has returned has been sent."""
        with self._lock:
            if size == 0:
                self._end_sent = True
                return
            self._sent += size + self._lines
            if self._sent > self._taken:
                self._flight.append(self._sent)
            self._trim()
