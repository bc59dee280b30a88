# SPDX-License-Identifier: Apache-2.0

"""HTTP/1.1 as boxd speaks it, without a connection."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode

from . import answers
from ._decode import decode
from .errors import Problem, ProtocolError
from .problems import BY_CODE

Query = Sequence[Tuple[str, Union[str, int, bool, None]]]

MAX_HEAD = 64 << 10

#: bounds an answer that is read into memory
MAX_ANSWER = 512 << 20


def segment(text: str) -> str:
    """An id as one segment of a path. Dots alone would be taken for steps of the path."""
    if not text:
        raise ValueError("the id is empty")
    if not text.strip("."):
        return text.replace(".", "%2E")
    return quote(text, safe="")


def with_query(path: str, query: Query) -> str:
    """A path with what of the query is given. False is left out, as None is: it is the default of all switches."""
    given: List[Tuple[str, str]] = []
    for name, value in query:
        if value is None or value is False:
            continue
        given.append((name, "true" if value is True else str(value)))
    return path + "?" + urlencode(given) if given else path


def request_head(method: str, path: str, headers: Dict[str, str]) -> bytes:
    """The beginning of a request."""
    lines = [f"{method} {path} HTTP/1.1"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"header {name}: a line break is not allowed")
        lines.append(f"{name}: {value}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Head:
    """Status and headers of an answer."""

    def __init__(self, data: bytes) -> None:
        lines = data.decode("latin-1").split("\r\n")
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or len(parts[1]) != 3 or not parts[1].isdigit():
            raise ProtocolError(f"HTTP: {lines[0][:80]!r} is no status line")
        self.status = int(parts[1])
        self.headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"HTTP: {line[:80]!r} is no header")
            self.headers[name.strip().lower()] = value.strip()

    @property
    def chunked(self) -> bool:
        """The body comes in chunks."""
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def length(self) -> Optional[int]:
        """Bytes of the body, if that is known."""
        if self.status in (204, 304) or self.status < 200:
            return 0
        text = self.headers.get("content-length")
        if text is None:
            return None
        if not text.isdigit():
            raise ProtocolError(f"HTTP: Content-Length is {text[:80]!r}")
        return int(text)

    def number(self, name: str) -> Optional[int]:
        """A header that is a number."""
        text = self.headers.get(name, "")
        return int(text) if text.isdigit() else None


def chunk_size(line: bytes) -> int:
    """The size that begins a chunk."""
    text = line.partition(b";")[0].strip()
    if not 0 < len(text) <= 16 or not all(c in b"0123456789abcdefABCDEF" for c in text):
        raise ProtocolError(f"HTTP: {line[:80]!r} is no size of a chunk")
    return int(text, 16)


def parse_json(data: bytes) -> Any:
    """A JSON answer."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"the answer is no JSON: {error}") from error


def problem(data: Any, head: Optional[Head] = None) -> Problem:
    """The error that an answer is."""
    try:
        answer = decode(answers.Problem, data)
    except ValueError as error:
        raise ProtocolError(f"the error has another form: {error}") from error
    if not isinstance(answer.type, str):
        raise ProtocolError("the error has no type")
    cls = BY_CODE.get(answer.type.rpartition(":")[2], Problem)
    if head is None:
        return cls(answer)
    return cls(answer, head.number("retry-after"), head.headers.get("x-request-id"))


def refusal(data: bytes, head: Head) -> Exception:
    """The error of an answer that is not what was asked for."""
    try:
        return problem(parse_json(data), head)
    except ProtocolError:
        if data.startswith(b"Client sent an HTTP request to an HTTPS server"):  # net/http of Go
            return ProtocolError("the server speaks TLS: the address must begin with https://")
        return ProtocolError(f"the other end answered {head.status} without an error of boxd")


class Pace:
    """When a request that was cut off is made again: soon, then ever later, and for half a minute."""

    first, most, total = 0.05, 2.0, 30.0

    def __init__(self) -> None:
        self._delay = self.first
        self._begin: Optional[float] = None

    def next(self, now: float, error: Exception) -> Optional[float]:
        """Seconds to wait before the next try; None if there is none."""
        if self._begin is None:
            self._begin = now
        delay = self._delay
        if isinstance(error, Problem) and error.retry_after:
            delay = max(delay, float(error.retry_after))
        if now - self._begin + delay > self.total:
            return None
        self._delay = min(2 * self._delay, self.most)
        return delay

    def since(self, now: float) -> float:
        """Seconds since the first try."""
        return 0.0 if self._begin is None else now - self._begin

    def reset(self) -> None:
        """What was lost goes on."""
        self._delay, self._begin = self.first, None
