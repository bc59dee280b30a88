# SPDX-License-Identifier: Apache-2.0

"""Connections for asyncio. A task that is cancelled while it waits loses no byte."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import AsyncIterable, AsyncIterator, Callable, Iterable, List, Optional, Union, cast

from ._address import Address
from ._fds import collect, discard, pipes
from ._output import Stdio
from ._tls import Channel
from .errors import BoxdError, ConnectError, ConnectionLost, RequestTimeout, TLSError

Lock, Condition = asyncio.Lock, asyncio.Condition
sleep = asyncio.sleep
now: Callable[[], float] = time.monotonic

# What is not read yet may have so many bytes before the other end has to wait.
_HIGH, _LOW = 1 << 20, 1 << 18
_FRAME = 17 << 20  # more than the longest one has

# connect(2) does not wait where others have filled the queue of the listener (EAGAIN).
_QUEUE_PATIENCE, _QUEUE_PAUSE = 10.0, 0.01


class Connection(asyncio.Protocol):
    """Bytes in both directions. It has no task, so that nothing is left of one that is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: Optional[asyncio.Transport] = None
        self._buffer = bytearray()
        self._ended = False
        self._paused = False
        self._full = False
        self._readable: Optional[asyncio.Future[None]] = None
        self._writable: List[asyncio.Future[None]] = []  # of several tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _HIGH and not self._paused and self._transport:
            self._transport.pause_reading()
            self._paused = True
        self._wake(self._readable)

    def eof_received(self) -> bool:
        self._ended = True
        self._wake(self._readable)
        return True  # what is being sent may still arrive

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._ended = True
        self._transport = None
        self._wake(self._readable)
        self._wake_writers()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake_writers()

    def _wake_writers(self) -> None:
        for waiter in self._writable:
            self._wake(waiter)

    @staticmethod
    def _wake(waiter: Optional[asyncio.Future[None]]) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _wait(self, waiter: asyncio.Future[None], timeout: Optional[float]) -> None:
        def late() -> None:
            if not waiter.done():
                waiter.set_exception(RequestTimeout(f"boxd sent nothing for {timeout} seconds"))

        timer = None if timeout is None else self._loop.call_later(timeout, late)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()

    async def recv(self, timeout: Optional[float] = None) -> bytes:
        """Some bytes; none at the end."""
        while not self._buffer:
            if self._ended:
                return b""
            self._readable = self._loop.create_future()
            await self._wait(self._readable, timeout)
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._paused and self._transport:
            self._transport.resume_reading()
            self._paused = False
        return data

    async def send(self, data: bytes, timeout: Optional[float] = None) -> None:
        """Sends all of it."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._transport.write(data)
        while self._full:
            if self._transport is None:
                raise ConnectionLost("the connection ended while something was sent")
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writable.append(waiter)
            try:
                await self._wait(waiter, timeout)
            finally:
                self._writable.remove(waiter)

    def send_eof(self) -> None:
        """Ends this side, behind what is being sent."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._transport.write_eof()

    def close(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._ended = True
        self._wake(self._readable)
        self._wake_writers()


class FdConnection(Connection):
    """A connection by which descriptors come too, which a transport would drop."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock
        self._fds: List[int] = []

    async def recv(self, timeout: Optional[float] = None) -> bytes:
        while not self._ended:
            try:
                return collect(self._sock, self._fds)
            except BlockingIOError:
                pass
            except OSError as error:
                raise ConnectionLost(f"the connection ended: {error.strerror or error}") from error
            self._readable = self._loop.create_future()
            self._loop.add_reader(self._sock, self._wake, self._readable)
            try:
                await self._wait(self._readable, timeout)
            finally:
                self._loop.remove_reader(self._sock)
        return b""

    async def send(self, data: bytes, timeout: Optional[float] = None) -> None:
        try:  # a request, for which a new socket has room
            await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise ConnectionLost(f"the connection ended: {error.strerror or error}") from error

    def stdio(self, rest: bytes) -> Stdio:
        """What came with the bytes that followed the answer."""
        return pipes(rest, self._fds)

    def close(self) -> None:
        super().close()
        self._sock.close()
        discard(self._fds)


class TLSConnection(Connection):
    """A connection by TLS. That of asyncio cannot end one side alone."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._ready = False
        self._failure: Optional[BoxdError] = None

    def data_received(self, data: bytes) -> None:
        self._channel.came(data)
        self._pump()

    def eof_received(self) -> bool:
        self._channel.came(b"")
        self._pump()
        return super().eof_received()

    def _pump(self) -> None:
        if not self._ready:
            self._wake(self._readable)
            return
        said = bytearray()
        try:
            while not self._channel.ended:
                data = self._channel.read()
                if data is None:
                    break
                said += data
        except BoxdError as error:
            self._failure, self._ended = error, True
        self._ended = self._ended or self._channel.ended
        self._flush()
        super().data_received(bytes(said))

    def _flush(self) -> None:
        if self._channel.waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._channel.outgoing())

    async def handshake(self, timeout: float) -> None:
        """Makes the connection ready."""
        while not self._channel.handshake():
            self._flush()
            if self._ended:
                raise ConnectionLost("the connection ended")
            self._readable = self._loop.create_future()
            await self._wait(self._readable, timeout)
        self._ready = True
        self._pump()

    async def recv(self, timeout: Optional[float] = None) -> bytes:
        data = await super().recv(timeout)
        if not data and self._failure:
            raise self._failure
        return data

    async def send(self, data: bytes, timeout: Optional[float] = None) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        view = memoryview(data)
        while view:  # a frame goes whole, or a task that is cancelled would have sent a part of it
            self._channel.write(view[:_FRAME])
            await super().send(self._channel.outgoing(), timeout)
            view = view[_FRAME:]

    def send_eof(self) -> None:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection is closed")
        self._channel.end()
        self._flush()
        self._pump()


async def connect_for_fds(address: Address, timeout: float) -> Connection:
    """A new connection to boxd by which descriptors come."""
    begin = now()
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(address.text)
            return FdConnection(sock)
        except OSError as error:
            sock.close()
            if not isinstance(error, BlockingIOError) or now() - begin > min(timeout, _QUEUE_PATIENCE):
                raise ConnectError(f"connect to {address.text}: {error.strerror or error}") from error
        await sleep(_QUEUE_PAUSE)


async def connect(address: Address, timeout: float) -> Connection:
    """A new connection to boxd."""
    loop, begin, channel = asyncio.get_running_loop(), now(), address.channel()
    while True:
        conn, sock, at = TLSConnection(channel) if channel else Connection(), None, address.at
        try:
            if isinstance(at, str):
                # Of a Unix socket this never waits; asyncio would take EAGAIN for a connection under way.
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.setblocking(False)
                sock.connect(at)
                await loop.create_unix_connection(lambda: conn, sock=sock)
            else:
                await asyncio.wait_for(loop.create_connection(lambda: conn, at[0], at[1]), timeout)
                if isinstance(conn, TLSConnection):
                    await conn.handshake(timeout)
            return conn
        except BaseException as error:
            conn.close()
            if sock is not None:
                sock.close()
            if isinstance(error, BlockingIOError) and now() - begin < min(timeout, _QUEUE_PATIENCE):
                await sleep(_QUEUE_PAUSE)
                continue
            if isinstance(error, (ConnectionLost, RequestTimeout)):
                raise ConnectError(f"connect to {address.text}: {error}") from error
            if isinstance(error, asyncio.TimeoutError):
                raise ConnectError(f"connect to {address.text}: no answer for {timeout} seconds") from error
            if isinstance(error, TLSError):
                raise
            if isinstance(error, OSError):
                raise ConnectError(f"connect to {address.text}: {error.strerror or error}") from error
            raise


async def iterate(body: Union[Iterable[bytes], AsyncIterable[bytes]]) -> AsyncIterator[bytes]:
    """The pieces of a body."""
    if isinstance(body, AsyncIterable):
        async for piece in body:
            yield piece
        return
    for piece in body:
        yield piece
