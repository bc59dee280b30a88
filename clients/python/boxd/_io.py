# SPDX-License-Identifier: Apache-2.0

"""Connections for programs without asyncio."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import Callable, Iterable, Iterator, List, Optional

from ._address import Address
from ._fds import collect, discard, pipes
from ._output import Stdio
from ._tls import Channel
from .errors import ConnectError, ConnectionLost, RequestTimeout

Lock, Condition = threading.Lock, threading.Condition
sleep = time.sleep
now: Callable[[], float] = time.monotonic

# connect(2) does not wait where others have filled the queue of the listener (EAGAIN).
_QUEUE_PATIENCE, _QUEUE_PAUSE = 10.0, 0.01

_PIECE = 1 << 18


class Connection:
    """Bytes in both directions. One thread may read while another writes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # a timeout of its own for each direction is poll's
        self._sock = sock
        self._closed = False

    def _wait(self, event: int, timeout: Optional[float]) -> bool:
        poll = select.poll()
        poll.register(self._sock, event)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _take(self) -> bytes:
        return self._sock.recv(_PIECE)

    def recv(self, timeout: Optional[float] = None) -> bytes:
        """Some bytes; none at the end."""
        while not self._closed:
            try:
                return self._take()
            except BlockingIOError:
                pass
            except OSError as error:
                if self._closed:
                    return b""
                raise ConnectionLost(f"the connection ended: {error.strerror or error}") from error
            try:
                ready = self._wait(select.POLLIN, timeout)
            except (OSError, ValueError):
                return b""  # another thread has closed it
            if not ready:
                raise RequestTimeout(f"boxd sent nothing for {timeout} seconds")
        return b""

    def send(self, data: bytes, timeout: Optional[float] = None) -> None:
        """Sends all of it."""
        view = memoryview(data)
        while view:
            if self._closed:
                raise ConnectionLost("the connection is closed")
            try:
                view = view[self._sock.send(view) :]
                continue
            except BlockingIOError:
                pass
            except OSError as error:
                raise ConnectionLost(f"the connection ended: {error.strerror or error}") from error
            try:
                ready = self._wait(select.POLLOUT, timeout)
            except (OSError, ValueError) as error:
                raise ConnectionLost("the connection is closed") from error
            if not ready:
                raise RequestTimeout(f"boxd took nothing for {timeout} seconds")

    def send_eof(self) -> None:
        """Ends this side."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ConnectionLost(f"the connection ended: {error.strerror or error}") from error

    def close(self) -> None:
        """Ends the connection at once, also for another thread that waits in recv."""
        if self._closed:
            return
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already
        self._sock.close()


class FdConnection(Connection):
    """A connection by which descriptors come too."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._fds: List[int] = []

    def _take(self) -> bytes:
        return collect(self._sock, self._fds)

    def stdio(self, rest: bytes) -> Stdio:
        """What came with the bytes that followed the answer."""
        return pipes(rest, self._fds)

    def close(self) -> None:
        super().close()
        discard(self._fds)


class TLSConnection(Connection):
    """A connection by TLS. OpenSSL is used by one thread at a time, so that one may still wait for bytes while another sends."""

    def __init__(self, sock: socket.socket, channel: Channel) -> None:
        super().__init__(sock)
        self._channel = channel
        self._using = threading.Lock()
        self._sending = threading.Lock()  # taken first: what TLS says has an order

    def _flush(self, timeout: Optional[float]) -> None:
        with self._sending:
            with self._using:
                data = self._channel.outgoing()
            super().send(data, timeout)

    def handshake(self, timeout: float) -> None:
        """Makes the connection ready."""
        while not self._channel.handshake():
            self._flush(timeout)
            self._channel.came(super().recv(timeout))
        self._flush(timeout)

    def recv(self, timeout: Optional[float] = None) -> bytes:
        while True:
            with self._using:
                data, waiting = self._channel.read(), self._channel.waiting
            if waiting:
                self._flush(timeout)
            if data is not None:
                return data
            came = super().recv(timeout)
            if self._closed:
                return b""
            with self._using:
                self._channel.came(came)

    def send(self, data: bytes, timeout: Optional[float] = None) -> None:
        view = memoryview(data)
        while view:
            with self._sending:
                with self._using:
                    self._channel.write(view[:_PIECE])
                    sealed = self._channel.outgoing()
                super().send(sealed, timeout)
            view = view[_PIECE:]

    def send_eof(self) -> None:
        with self._using:
            self._channel.end()
        self._flush(None)


def connect_for_fds(address: Address, timeout: float) -> Connection:
    """A new connection to boxd by which descriptors come."""
    return FdConnection(_connect(address, timeout))


def connect(address: Address, timeout: float) -> Connection:
    """A new connection to boxd."""
    channel = address.channel()
    sock = _connect(address, timeout)
    if channel is None:
        return Connection(sock)
    conn = TLSConnection(sock, channel)
    try:
        conn.handshake(timeout)
    except BaseException as error:
        conn.close()
        if isinstance(error, (ConnectionLost, RequestTimeout)):
            raise ConnectError(f"connect to {address.text}: {error}") from error
        raise
    return conn


def _connect(address: Address, timeout: float) -> socket.socket:
    end = now() + min(timeout, _QUEUE_PATIENCE)
    while True:
        sock = None
        try:
            at = address.at
            if isinstance(at, str):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(timeout)
                sock.connect(at)
            else:
                sock = socket.create_connection(at, timeout)
            return sock
        except BlockingIOError as error:
            if sock is not None:
                sock.close()
            if now() > end:
                raise ConnectError(f"connect to {address.text}: {error.strerror}") from error
            sleep(_QUEUE_PAUSE)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, socket.timeout):
                raise ConnectError(f"connect to {address.text}: no answer for {timeout} seconds") from error
            if isinstance(error, OSError):
                raise ConnectError(f"connect to {address.text}: {error.strerror or error}") from error
            raise


def iterate(body: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of a body."""
    return iter(body)
