# SPDX-License-Identifier: Apache-2.0

"""Descriptors that come over a Unix socket."""

from __future__ import annotations

import os
import socket
from typing import List

from ._output import Stdio
from .errors import ProtocolError

_FLAGS: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def collect(sock: socket.socket, fds: List[int]) -> bytes:
    """Reads from a socket. All reading is to be done by this: another would drop what comes with the bytes."""
    data, came, flags, _ = socket.recv_fds(sock, 4096, 3, _FLAGS)
    fds += came
    if flags & socket.MSG_CTRUNC:
        raise ProtocolError("boxd did not pass three pipes, or this process has too many files open")
    return data


def pipes(rest: bytes, fds: List[int]) -> Stdio:
    """The three descriptors, which have come with one byte."""
    if len(rest) != 1 or len(fds) != 3:
        raise ProtocolError(f"boxd passed {len(fds)} descriptors with {len(rest)} bytes, not three with one")
    for fd in fds:
        os.set_blocking(fd, True)
    made = Stdio(*fds)
    fds.clear()
    return made


def discard(fds: List[int]) -> None:
    """Closes what nobody has asked for."""
    while fds:
        os.close(fds.pop())
