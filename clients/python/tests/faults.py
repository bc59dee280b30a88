# SPDX-License-Identifier: Apache-2.0

"""Servers that do what they should not: cut connections, send half frames, say nothing."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from types import TracebackType
from typing import Callable, List, Optional, Type

from boxd._frames import accept_of

Serve = Callable[[socket.socket], None]


class Server:
    """Serves each connection by the next of some functions, the last one again and again."""

    def __init__(self, *serve: Serve) -> None:
        self._serve = list(serve)
        self._dir = tempfile.TemporaryDirectory(prefix="boxd")
        self.path = os.path.join(self._dir.name, "s")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._conns: List[socket.socket] = []
        self._threads: List[threading.Thread] = []
        self._over = False
        self.accepted = 0
        self._run(self._accept)

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            if self._over:
                conn.close()
                return
            self._conns.append(conn)
            serve = self._serve[min(self.accepted, len(self._serve) - 1)]
            self.accepted += 1
            self._run(self._one, serve, conn)

    @staticmethod
    def _one(serve: Serve, conn: socket.socket) -> None:
        try:
            serve(conn)
        except OSError:
            pass
        finally:
            hang_up(conn)
            conn.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._over = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        for conn in self._conns:
            hang_up(conn)
        for thread in self._threads:
            thread.join()
        self._dir.cleanup()


def hang_up(conn: socket.socket) -> None:
    """Ends a connection for both sides, whoever else holds it."""
    try:
        conn.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def head(conn: socket.socket) -> bytes:
    """Reads a request up to its empty line."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(1)
        if not more:
            raise ConnectionError
        data += more
    return data


def one_frame(conn: socket.socket) -> bytes:
    """Reads a frame of a client, which is masked, and returns it as it is."""

    def read(n: int) -> bytes:
        data = b""
        while len(data) < n:
            more = conn.recv(n - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    begin = read(2)
    size = begin[1] & 0x7F
    if size >= 126:
        size = int.from_bytes(read(2 if size == 126 else 8), "big")
    return read(4 + size)


def says(*pieces: bytes) -> Serve:
    """Reads a request, and sends some bytes, piece by piece."""

    def serve(conn: socket.socket) -> None:
        head(conn)
        for piece in pieces:
            conn.sendall(piece)

    return serve


def upgraded(*pieces: bytes, then: Optional[Serve] = None) -> Serve:
    """Answers a WebSocket, reads its first message, and sends some bytes."""

    def serve(conn: socket.socket) -> None:
        key = head(conn).partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0].decode()
        conn.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept_of(key).encode() + b"\r\n\r\n"
        )
        one_frame(conn)
        for piece in pieces:
            conn.sendall(piece)
        if then:
            then(conn)

    return serve


def silent(conn: socket.socket) -> None:
    """Reads all there is, and says nothing."""
    while conn.recv(1 << 16):
        pass


def through(upstream: str, cut: Optional[int] = None) -> Serve:
    """Forwards to another socket, and cuts the connection after so many bytes of what comes back."""

    def serve(conn: socket.socket) -> None:
        other = socket.socket(socket.AF_UNIX)
        other.connect(upstream)

        def up() -> None:
            try:
                while True:
                    data = conn.recv(1 << 16)
                    if not data:
                        break
                    other.sendall(data)
            except OSError:
                pass
            hang_up(other)

        thread = threading.Thread(target=up)
        thread.start()
        try:
            left = cut
            while left is None or left > 0:
                data = other.recv(1 << 16 if left is None else min(left, 1 << 16))
                if not data:
                    break
                conn.sendall(data)
                if left is not None:
                    left -= len(data)
        except OSError:
            pass
        finally:
            hang_up(conn)
            hang_up(other)
            thread.join()
            other.close()

    return serve
