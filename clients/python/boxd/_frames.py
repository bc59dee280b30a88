# SPDX-License-Identifier: Apache-2.0

"""The frames of a WebSocket (RFC 6455), without a connection."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import Optional, Tuple

from .errors import ProtocolError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

#: a message of boxd may have so many bytes: output comes in pieces of 256 KiB, a result has no output
MAX_MESSAGE = 64 << 20

_MAX_CONTROL = 125


def new_key() -> str:
    """The Sec-WebSocket-Key of a handshake."""
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: str) -> str:
    """The Sec-WebSocket-Accept that answers a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()


def _mask(key: bytes, data: bytes) -> bytes:
    n = len(data)
    pad = (key * (n // 4 + 1))[:n]
    return (int.from_bytes(data, "little") ^ int.from_bytes(pad, "little")).to_bytes(n, "little")


def encode(opcode: int, data: bytes) -> bytes:
    """A frame as a client sends it: whole, and masked."""
    n, key = len(data), os.urandom(4)
    if n < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | n)
    elif n < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, n)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, n)
    return head + key + _mask(key, data)


class Frames:
    """Makes messages of the bytes that come."""

    def __init__(self, data: bytes = b"") -> None:
        self._buffer = bytearray(data)
        self._kind = 0
        self._parts = bytearray()

    def feed(self, data: bytes) -> None:
        """Adds bytes, cut anywhere."""
        self._buffer += data

    def next(self) -> Optional[Tuple[int, bytes]]:
        """The next message or control frame, as opcode and data; None if more bytes have to come."""
        while True:
            frame = self._frame()
            if frame is None:
                return None
            last, opcode, data = frame
            if opcode >= CLOSE:
                return opcode, data
            if opcode == CONTINUATION:
                if not self._kind:
                    raise ProtocolError("WebSocket: a continuation of no message")
            elif self._kind:
                raise ProtocolError("WebSocket: a message begins within another")
            else:
                self._kind = opcode
                if last:
                    self._kind = 0
                    return opcode, data
            self._parts += data
            if len(self._parts) > MAX_MESSAGE:
                raise ProtocolError(f"WebSocket: a message has more than {MAX_MESSAGE} bytes")
            if last:
                kind, whole = self._kind, bytes(self._parts)
                self._kind, self._parts = 0, bytearray()
                return kind, whole

    def _frame(self) -> Optional[Tuple[bool, int, bytes]]:
        b = self._buffer
        if len(b) < 2:
            return None
        opcode, n, at = b[0] & 0x0F, b[1] & 0x7F, 2
        if b[0] & 0x70:
            raise ProtocolError("WebSocket: reserved bits are set")
        if opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise ProtocolError(f"WebSocket: unknown opcode {opcode}")
        if b[1] & 0x80:
            raise ProtocolError("WebSocket: a server must not mask")
        if opcode >= CLOSE and (n > _MAX_CONTROL or not b[0] & 0x80):
            raise ProtocolError("WebSocket: a control frame is long or fragmented")
        if n == 126:
            if len(b) < 4:
                return None
            n, at = struct.unpack_from("!H", b, 2)[0], 4
        elif n == 127:
            if len(b) < 10:
                return None
            n, at = struct.unpack_from("!Q", b, 2)[0], 10
        if n > MAX_MESSAGE:
            raise ProtocolError(f"WebSocket: a frame has {n} bytes, at most {MAX_MESSAGE} are expected")
        if len(b) < at + n:
            return None
        data = bytes(b[at : at + n])
        last = bool(b[0] & 0x80)
        del b[: at + n]
        return last, opcode, data


def close_reason(data: bytes) -> Tuple[int, str]:
    """Code and reason of a close frame; 1005 if there is none."""
    if len(data) < 2:
        return 1005, ""
    return struct.unpack_from("!H", data)[0], data[2:].decode("utf-8", "replace")
