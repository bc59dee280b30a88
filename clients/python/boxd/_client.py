# SPDX-License-Identifier: Apache-2.0
#
# Code generated from its sibling _async_client.py by UPDATE=1 go test ./clients. DO NOT EDIT.

"""The client of boxd for programs without asyncio."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Deque, Dict, Iterable, List, Mapping, Optional, Tuple, Type, TypeVar, Union, cast

from . import answers, requests
from ._address import Address
from ._io import Condition, Connection, FdConnection, Lock, connect, connect_for_fds, iterate, now, sleep
from ._resources import Drives, Images, Skills, Workspaces
from ._decode import decode
from ._frames import BINARY, CLOSE, PING, Frames, accept_of, close_reason, encode, new_key
from ._http import MAX_ANSWER, MAX_HEAD, Head, Pace, Query, chunk_size, parse_json, problem, refusal, request_head, segment, with_query
from ._output import MAX_INPUT, WINDOW, Gap, Input, Lines, Output, Stdio
from ._tls import TLS
from ._version import VERSION
from .errors import ConnectError, ConnectionLost, OutputMissing, ProcessGone, ProtocolError, RequestTimeout, StreamEnded, WriterLost
from .problems import Conflict, Exhausted, NotFound, Unavailable

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

#: what is sent as the content of a file or an archive
Content = Union[bytes, Iterable[bytes], Iterable[bytes]]

# boxd sends a sign of life in every stream of events at least every 15 seconds, in every WebSocket every 30.
_EVENTS_SILENCE, _STREAM_SILENCE = 45.0, 90.0

# How long one request waits for the end of a process, and how much longer the answer may take.
_END_PATIENCE, _GRACE = 60, 30.0

# How long boxd may take to forget a program after its end, and to see that another connection has ended.
_FORGET_PATIENCE, _WRITER_PATIENCE = 5.0, 2.0

_SWITCHING = 101
_CHUNK = 1 << 16


class Answer:
    """An answer, whose body is read as it comes."""

    def __init__(self, conn: Connection, timeout: Optional[float]) -> None:
        self._conn = conn
        self._timeout = timeout
        self._buffer = bytearray()
        self._left: Optional[int] = None
        self._over = False
        self.head = Head(b"HTTP/1.1 000")

    def _fill(self) -> bool:
        data = self._conn.recv(self._timeout)
        self._buffer += data
        return bool(data)

    def _line(self, most: int) -> bytes:
        while True:
            at = self._buffer.find(b"\r\n")
            if at >= 0:
                line = bytes(self._buffer[:at])
                del self._buffer[: at + 2]
                return line
            if len(self._buffer) > most:
                raise ProtocolError(f"HTTP: a line has more than {most} bytes")
            if not self._fill():
                raise ConnectionLost("the connection ended within the answer")

    def read_head(self) -> None:
        """Reads status and headers."""
        while True:
            at = self._buffer.find(b"\r\n\r\n")
            if at >= 0:
                self.head = Head(bytes(self._buffer[:at]))
                del self._buffer[: at + 4]
                if self.head.status >= 200 or self.head.status == _SWITCHING:
                    self._left = None if self.head.chunked else self.head.length
                    return
            elif len(self._buffer) > MAX_HEAD:
                raise ProtocolError(f"HTTP: the headers have more than {MAX_HEAD} bytes")
            elif not self._fill():
                raise ConnectionLost("the connection ended before the answer")

    def rest(self) -> bytes:
        """What has come after the headers."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def piece(self) -> bytes:
        """The next bytes of the body; none at its end. A body that is cut off is an error."""
        while not self._over:
            if self.head.chunked and not self._left:
                self._left = chunk_size(self._line(1024))
                if self._left == 0:
                    while self._line(MAX_HEAD):
                        pass
                    break
            if self._left == 0:
                break
            if not self._buffer and not self._fill():
                if self._left is None:
                    break
                raise ConnectionLost("the connection ended within the answer")
            data = bytes(self._buffer if self._left is None else self._buffer[: self._left])
            del self._buffer[: len(data)]
            if self._left is not None:
                self._left -= len(data)
            if self.head.chunked and self._left == 0 and self._line(2):
                raise ProtocolError("HTTP: a chunk has no end")
            return data
        self._over = True
        self.close()
        return b""

    def read(self, most: int = MAX_ANSWER) -> bytes:
        """The whole body."""
        parts: List[bytes] = []
        size = 0
        while True:
            data = self.piece()
            if not data:
                return b"".join(parts)
            parts.append(data)
            size += len(data)
            if size > most:
                raise ProtocolError(f"the answer has more than {most} bytes")

    def close(self) -> None:
        """Ends the connection, which ends what boxd does for it."""
        self._conn.close()


class Download:
    """A file or an archive as it comes: an iterator of its pieces. It is whole if the iterator comes to its end."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def size(self) -> Optional[int]:
        """Bytes that will come, if that is known."""
        return self._answer.head.length

    @property
    def modified(self) -> Optional[str]:
        """Last-Modified of a file."""
        return self._answer.head.headers.get("last-modified")

    def __iter__(self) -> Download:
        return self

    def __next__(self) -> bytes:
        try:
            data = self._answer.piece()
        except BaseException:
            self._answer.close()
            raise
        if not data:
            raise StopIteration
        return data

    def read(self) -> bytes:
        """All that is left of it."""
        parts = []
        for piece in self:
            parts.append(piece)
        return b"".join(parts)

    def close(self) -> None:
        """Stops it."""
        self._answer.close()

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *exc: object) -> None:
        self._answer.close()


class _Lines:
    """The lines of an answer without end."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._buffer = bytearray()
        self._seen = 0

    def next(self) -> Optional[bytes]:
        """The next line without its end; None after the last. A line without an end is none: it has been cut."""
        while True:
            at = self._buffer.find(b"\n", self._seen)
            if at >= 0:
                line = bytes(self._buffer[:at])
                del self._buffer[: at + 1]
                self._seen = 0
                return line.rstrip(b"\r")
            self._seen = len(self._buffer)
            if self._seen > MAX_ANSWER:
                raise ProtocolError(f"a line has more than {MAX_ANSWER} bytes")
            data = self._answer.piece()
            if not data:
                return None
            self._buffer += data

    def close(self) -> None:
        self._answer.close()


class Client:
    """A boxd: at a Unix socket, at an address of the loopback such as http://127.0.0.1:5410, or by TLS at one such as
    https://boxd.example.org:5411, as the gateway of a fleet is.

    Without an address it is that of BOXD_SOCKET, or else the one of an installed boxd. Each request has a connection of
    its own, which ends with it: there is nothing to close.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        token: Optional[str] = None,
        owner: Optional[str] = None,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
        tls_ca: Optional[str] = None,
        tls_cert: Optional[str] = None,
        tls_key: Optional[str] = None,
    ) -> None:
        """token is sent as bearer, by default that of BOXD_TOKEN. owner makes requests about the sessions of another principal.

        timeout is for how many seconds boxd may send nothing, where it does not wait for a program or a box.

        tls_ca is a file (PEM) of the authorities that may have signed the certificate of an https address, by default that of
        BOXD_TLS_CA, or else those that the host trusts. tls_cert and tls_key are files of the certificate that this client
        shows and of its key, by default those of BOXD_TLS_CERT and BOXD_TLS_KEY; without tls_key it is in the same file.
        """
        self.address = Address(address, TLS(tls_ca, tls_cert, tls_key))
        self.owner = owner
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self._token = token if token is not None else os.environ.get("BOXD_TOKEN")
        #: workspaces with a name
        self.workspaces = Workspaces(self)
        #: root filesystems for sessions
        self.images = Images(self)
        #: instructions for agents, with their files
        self.skills = Skills(self)
        #: directories with versions
        self.drives = Drives(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.text!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        pass  # nothing is open that is not somebody else's to close

    # Requests.

    def _open(
        self,
        method: str,
        path: str,
        *,
        body: Union[None, bytes, Content] = None,
        headers: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = None,
        fds: bool = False,
    ) -> Answer:
        """Makes a request once, and returns its answer if that is none of an error. With fds descriptors may come with it."""
        send: Dict[str, str] = {"Host": self.address.host, "User-Agent": f"boxd-python/{VERSION}", "Connection": "close"}
        if self._token:
            send["Authorization"] = f"Bearer {self._token}"
        if isinstance(body, bytes):
            send["Content-Length"] = str(len(body))
        elif body is not None:
            send["Transfer-Encoding"] = "chunked"
        elif method in ("POST", "PUT", "PATCH"):
            send["Content-Length"] = "0"
        send.update(headers or {})
        begin = request_head(method, path, send)
        conn: Connection = (connect_for_fds if fds else connect)(self.address, self.connect_timeout)
        answer = Answer(conn, timeout)
        try:
            try:
                conn.send(begin + body if isinstance(body, bytes) else begin, timeout)
                if body is not None and not isinstance(body, bytes):
                    for piece in iterate(body):
                        for at in range(0, len(piece), _CHUNK):
                            part = piece[at : at + _CHUNK]
                            conn.send(b"%x\r\n%b\r\n" % (len(part), part), timeout)
                    conn.send(b"0\r\n\r\n", timeout)
            except ConnectionLost as lost:
                try:  # boxd may have refused the body and said why
                    answer.read_head()
                except ConnectionLost:
                    raise lost from None
            else:
                answer.read_head()
            if answer.head.status >= 300 or answer.head.status == _SWITCHING and "Upgrade" not in send:
                raise refusal(answer.read(1 << 20), answer.head)
            return answer
        except BaseException:
            conn.close()
            raise

    def _json(
        self, method: str, path: str, body: Any = None, *, safe: bool, waits: bool = False, timeout: Optional[float] = None
    ) -> Tuple[int, Any]:
        """Makes a request with a JSON answer. One that is safe to make twice is made again if its answer was lost."""
        data, headers = None, {}
        if body is not None:
            data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        if timeout is None and not waits:
            timeout = self.timeout
        pace = Pace()
        lost = False
        while True:
            try:
                answer = self._open(method, path, body=data, headers=headers, timeout=timeout)
                try:
                    text = answer.read()
                finally:
                    answer.close()
                return answer.head.status, parse_json(text) if text else None
            except NotFound:
                if lost and method == "DELETE":
                    return 204, None  # the request whose answer was lost has done it
                raise
            except (ConnectionLost, RequestTimeout, Unavailable) as error:
                delay = pace.next(now(), error) if safe else None
                if delay is None or isinstance(error, RequestTimeout) and lost:
                    raise
                lost = True
            except ConnectError as error:
                delay = pace.next(now(), error) if lost else None
                if delay is None:
                    raise
            sleep(delay)

    def _ask(
        self, answer: Type[T], method: str, path: str, body: Any = None, *, safe: bool, waits: bool = False, timeout: Optional[float] = None
    ) -> T:
        _, data = self._json(method, path, body, safe=safe, waits=waits, timeout=timeout)
        try:
            return decode(answer, data)
        except ValueError as error:
            raise ProtocolError(f"answer to {method} {path}: {error}") from error

    def request(self, method: str, path: str, body: Any = None, *, query: Query = (), safe: Optional[bool] = None, timeout: Optional[float] = None) -> Any:
        """Any other route of the API, with JSON. It is made again after a lost connection if it is safe: by default GET alone."""
        _, data = self._json(method, with_query(path, query), body, safe=method == "GET" if safe is None else safe, timeout=timeout)
        return data

    def _download(self, path: str, *, method: str = "GET", body: Any = None, headers: Optional[Mapping[str, str]] = None) -> Download:
        data = None if body is None else json.dumps(body).encode()
        return Download(self._open(method, path, body=data, headers=headers, timeout=self.timeout))

    def _upload(self, answer: Type[T], method: str, path: str, content: Content, media: str) -> T:
        """Sends a body as it comes, which nothing can send again."""
        got = self._open(method, path, body=content, headers={"Content-Type": media})
        try:
            return decode(answer, parse_json(got.read()))
        except ValueError as error:
            raise ProtocolError(f"answer to {method} {path}: {error}") from error
        finally:
            got.close()

    # boxd itself.

    def ready(self) -> None:
        """Unavailable says why boxd cannot start boxes now: it is not asked again."""
        self._json("GET", "/readyz", safe=False)

    def status(self) -> answers.Status:
        """Version, counts, and limits that are not enforced."""
        return self._ask(answers.Status, "GET", "/v1/status", safe=True)

    def run(self, *args: str, session: Optional[requests.SessionRequest] = None, **request: Unpack[requests.ExecOptions]) -> answers.ExecResult:
        """Runs a program in a new session, which is removed afterwards."""
        body: Dict[str, Any] = {"exec": _with_args(args, request)}
        if session is not None:
            body["session"] = session
        return self._ask(answers.ExecResult, "POST", "/v1/exec", body, safe=False, waits=True)

    def stream(
        self,
        *args: str,
        session: Optional[requests.SessionRequest] = None,
        stdin: bool = False,
        terminal: Optional[requests.Terminal] = None,
        **request: Unpack[requests.RunStreamOptions],
    ) -> Stream:
        """Does that with the output as it comes, and input if stdin is true. Use it in a with statement.

        The session ends with the stream. A connection that is lost is not made again.
        """
        start: Dict[str, Any] = {"exec": _with_args(args, request), "session": session or {}}
        if stdin:
            start["stdin"] = True
        if terminal is not None:
            start["terminal"] = terminal
        return Stream(self, None, "/v1/exec/stream", {"start": start}, {"write": stdin}, False)

    def instructions(self, profile: Optional[str] = None) -> str:
        """What to tell a model about a session to come."""
        path = with_query("/v1/instructions", [("profile", profile)])
        return (self._ask(answers.Instructions, "GET", path, safe=True)).instructions

    def profiles(self) -> answers.ProfileList:
        """What sessions are made from."""
        return self._ask(answers.ProfileList, "GET", "/v1/profiles", safe=True)

    def usage(self, *, days: Optional[int] = None, all: bool = False) -> answers.UsageList:
        """What the caller uses now and has used by day, and what policy allows. Operators may ask for all callers."""
        return self._ask(answers.UsageList, "GET", _owned(self, "/v1/usage", [("days", days), ("all", all)]), safe=True)

    def errors(self) -> List[answers.RecentError]:
        """What has failed recently."""
        return (self._ask(answers.ErrorList, "GET", _owned(self, "/v1/errors"), safe=True)).errors

    # For operators.

    def doctor(self) -> answers.Doctor:
        """What this host has for boxes, and what it lacks."""
        return self._ask(answers.Doctor, "GET", "/v1/doctor", safe=True, waits=True)

    def configuration(self) -> answers.Configuration:
        """The settings of boxd, and where they are from."""
        return self._ask(answers.Configuration, "GET", "/v1/config", safe=True)

    def audit(
        self, *, n: Optional[int] = None, session: Optional[str] = None, principal: Optional[str] = None, request: Optional[str] = None
    ) -> answers.AuditList:
        """The last records of the audit log that match, oldest first."""
        path = with_query("/v1/audit", [("n", n), ("session", session), ("principal", principal), ("request", request)])
        return self._ask(answers.AuditList, "GET", path, safe=True)

    def drain(self, reason: Optional[str] = None) -> answers.Drain:
        """Has boxd accept no new sessions, until undrain. Called again, it changes nothing."""
        return self._ask(answers.Drain, "POST", "/v1/drain", {} if reason is None else {"reason": reason}, safe=True)

    def undrain(self) -> None:
        """Has boxd accept new sessions again."""
        self._json("DELETE", "/v1/drain", safe=True)

    def grants(self) -> List[answers.Grant]:
        """Roles that somebody has for a time."""
        return (self._ask(answers.GrantList, "GET", "/v1/grants", safe=True)).grants

    def grant(self, principal: str, role: str, duration: Union[str, float]) -> answers.Grant:
        """Gives somebody a role for a time, instead of one that they have been granted before."""
        body = {"principal": principal, "role": role, "for": duration}
        return self._ask(answers.Grant, "POST", "/v1/grants", body, safe=False)

    def revoke(self, principal: str) -> None:
        """Takes such a role away."""
        self._json("DELETE", f"/v1/grants/{segment(principal)}", safe=True)

    # Events.

    def events(
        self, *, after: Optional[str] = None, follow: bool = True, session: Optional[str] = None, types: Iterable[str] = ()
    ) -> Events:
        """What has happened and what happens, from the event after the given id on; after="latest" is from now on."""
        return Events(self, after, follow, session, ",".join(types))

    # Sessions.

    def create_session(self, **request: Unpack[requests.SessionOptions]) -> Session:
        """Creates a session, or gets the one of that id if it has these settings.

        In a with statement it is deleted at the end. Without an id it is never asked for twice.
        """
        status, data = self._json("POST", _owned(self, "/v1/sessions"), request, safe=bool(request.get("id")), waits=True)
        if not isinstance(data, dict) or "id" not in data:
            raise ProtocolError("answer to POST /v1/sessions: a session is expected; use plan_session for dry_run")
        session = Session(self, str(data["id"]))
        session.created, session.info = status == 201, decode(answers.Session, data)
        return session

    def plan_session(self, **request: Unpack[requests.SessionOptions]) -> answers.Plan:
        """What create_session would do. Nothing is created."""
        return self._ask(answers.Plan, "POST", _owned(self, "/v1/sessions"), {**request, "dry_run": True}, safe=True)

    def session(self, id: str) -> Session:
        """A session that exists. Nothing is asked yet."""
        return Session(self, id)

    def sessions(
        self,
        *,
        labels: Optional[Mapping[str, str]] = None,
        metadata: Optional[Mapping[str, str]] = None,
        with_metadata: bool = False,
        with_usage: bool = False,
        all: bool = False,
    ) -> List[answers.Session]:
        """The sessions of the caller that have these labels and this metadata. Operators may ask for those of all owners."""
        query: List[Tuple[str, Union[str, int, bool, None]]] = [("all", all), ("metadata", with_metadata), ("usage", with_usage)]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        query += [("metadata", f"{name}={value}") for name, value in (metadata or {}).items()]
        found: List[answers.Session] = []
        after: Optional[str] = None
        while True:
            page = self._ask(answers.SessionList, "GET", _owned(self, "/v1/sessions", [*query, ("after", after)]), safe=True)
            found += page.sessions
            after = page.next
            if not after:
                return found


def _owned(client: Client, path: str, query: Query = ()) -> str:
    return with_query(path, [*query, ("owner", client.owner)])


def _with_args(args: Tuple[str, ...], request: Mapping[str, Any]) -> Dict[str, Any]:
    body = dict(request)
    if args:
        body["argv"] = list(args)
    return body


class Session:
    """A session: one box with its files and processes."""

    def __init__(self, client: Client, id: str) -> None:
        self.client = client
        #: its id
        self.id = id
        #: it is new; False if create_session found it
        self.created = False
        #: what boxd has said of it last
        self.info: Optional[answers.Session] = None
        #: its files
        self.files = Files(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _path(self, rest: str = "", query: Query = ()) -> str:
        return _owned(self.client, f"/v1/sessions/{segment(self.id)}{rest}", query)

    def _session(self, method: str, rest: str = "", body: Any = None, waits: bool = False) -> answers.Session:
        self.info = self.client._ask(answers.Session, method, self._path(rest), body, safe=True, waits=waits)
        return self.info

    def get(self) -> answers.Session:
        """Its state, with its resource usage."""
        return self._session("GET")

    def update(self, **change: Unpack[requests.SessionChange]) -> answers.Session:
        """Changes limits, timeouts, labels, metadata or network rules: all that is given, or nothing."""
        return self._session("PATCH", "", change)

    def stop(self) -> answers.Session:
        """Ends all programs and keeps what is on disk, until start."""
        return self._session("POST", "/stop", waits=True)

    def start(self, *, wait: Union[None, str, float] = None) -> answers.Session:
        """Starts it again, as soon as there is room for it."""
        return self._session("POST", "/start", None if wait is None else {"wait": wait}, waits=True)

    def freeze(self) -> answers.Session:
        """Suspends all programs. Needs cgroups."""
        return self._session("POST", "/freeze")

    def thaw(self) -> answers.Session:
        """Lets a frozen session go on."""
        return self._session("POST", "/thaw")

    def renew(self) -> answers.Session:
        """Begins its idle time anew."""
        return self._session("POST", "/renew")

    def delete(self) -> None:
        """Ends it and removes its workspace."""
        self.client._json("DELETE", self._path(), safe=True, waits=True)

    def usage_history(self, *, after: Optional[str] = None) -> answers.UsageHistory:
        """Samples of its resource usage, oldest first; those after a time as in 2026-11-21T09:30:00Z."""
        return self.client._ask(answers.UsageHistory, "GET", self._path("/usage/history", [("after", after)]), safe=True)

    def keep_workspace(self, name: str) -> answers.Workspace:
        """Ends it, and keeps its workspace under a name."""
        return self.client._ask(answers.Workspace, "POST", self._path("/keep"), {"workspace": name}, safe=False, waits=True)

    def definition(self) -> answers.SessionDefinition:
        """What another session like it is made from, with the values of its environment."""
        return self.client._ask(answers.SessionDefinition, "GET", self._path("/definition"), safe=True)

    def snapshots(self) -> List[answers.Snapshot]:
        """Snapshots of what it has on disk, the oldest first."""
        return (self.client._ask(answers.SnapshotList, "GET", self._path("/snapshots"), safe=True)).snapshots

    def create_snapshot(self, name: str) -> answers.Snapshot:
        """Takes a snapshot of what it has on disk while it is stopped."""
        return self.client._ask(answers.Snapshot, "POST", self._path("/snapshots"), {"name": name}, safe=False, waits=True)

    def restore_snapshot(self, name: str) -> answers.Session:
        """Replaces what it has on disk by a snapshot while it is stopped."""
        return self._session("POST", f"/snapshots/{segment(name)}/restore", waits=True)

    def delete_snapshot(self, name: str) -> None:
        """Removes a snapshot."""
        self.client._json("DELETE", self._path(f"/snapshots/{segment(name)}"), safe=True, waits=True)

    def instructions(self) -> str:
        """What to tell a model about it."""
        return (self.client._ask(answers.Instructions, "GET", self._path("/instructions"), safe=True)).instructions

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.delete()
        except NotFound:
            pass

    # Programs.

    def exec(self, *args: str, **request: Unpack[requests.ExecOptions]) -> answers.ExecResult:
        """Runs a program and waits for it.

        Give its arguments, a command for the shell, or code in a language. A program that fails is a result, not an error: see
        status and exit_code. With an id it never runs twice, and this call survives a restart of boxd.
        """
        if request.get("detach") or request.get("dry_run"):
            raise ValueError("detach and dry_run have other results: use start_exec and plan_exec")
        return self.client._ask(answers.ExecResult, "POST", self._path("/exec"), _with_args(args, request), safe=bool(request.get("id")), waits=True)

    def start_exec(self, id: str, *args: str, **request: Unpack[requests.DetachedOptions]) -> Process:
        """Starts a program with an id, which goes on without its caller until its timeout."""
        body = {**_with_args(args, request), "id": id, "detach": True}
        return Process(self, id, self.client._ask(answers.Process, "POST", self._path("/exec"), body, safe=True))

    def plan_exec(self, *args: str, **request: Unpack[requests.ExecOptions]) -> answers.Plan:
        """What exec would do. Nothing is run."""
        body = {**_with_args(args, request), "dry_run": True}
        return self.client._ask(answers.Plan, "POST", self._path("/exec"), body, safe=True)

    def stream(
        self,
        *args: str,
        stdin: bool = False,
        terminal: Optional[requests.Terminal] = None,
        lease: Union[None, str, float] = None,
        **request: Unpack[requests.StreamOptions],
    ) -> Stream:
        """Runs a program with its output as it comes, and its input if stdin is true. Use it in a with statement.

        lease is how long the program goes on after its client has gone; by default it ends then, or over TCP after two minutes.
        """
        exec = _with_args(args, request)
        forget = not exec.get("id")
        start: Dict[str, Any] = {"exec": exec}
        if forget:  # with an id of its own a stream can go on after a lost connection
            exec["id"] = secrets.token_hex(13)
            start["lease"] = "0s" if self.client.address.local else "2m"
        if lease is not None:
            start["lease"] = lease
        if stdin:
            start["stdin"] = True
        if terminal is not None:
            start["terminal"] = terminal
        process = Process(self, str(exec["id"]))
        attach = {"write": stdin, "take_over": stdin, "lossless": True}
        return Stream(self.client, process, self._path("/exec/stream"), {"start": start}, attach, forget)

    def start_process(self, id: str, *args: str, **request: Unpack[requests.ProcessRequest]) -> Process:
        """Starts a process, or gets the one of that id that the same request has started."""
        process = Process(self, id)
        process.info = self.client._ask(answers.Process, "PUT", process._path(), _with_args(args, request), safe=True)
        return process

    def process(self, id: str) -> Process:
        """A process that exists. Nothing is asked yet."""
        return Process(self, id)

    def processes(self) -> List[answers.Process]:
        """Processes that run, or have ended recently."""
        return (self.client._ask(answers.ProcessList, "GET", self._path("/processes"), safe=True)).processes

    # Mounts.

    def mounts(self) -> List[answers.SessionMount]:
        """Host directories that it has."""
        return (self.client._ask(answers.MountList, "GET", self._path("/mounts"), safe=True)).mounts

    def add_mount(self, source: str, target: str, **request: Unpack[requests.MountOptions]) -> answers.SessionMount:
        """Mounts a host directory while programs run."""
        body: Dict[str, Any] = {**request, "source": source, "target": target}
        return self.client._ask(answers.SessionMount, "PUT", self._path("/mounts"), body, safe=True)

    def remove_mount(self, target: str, *, force: bool = False) -> None:
        """Removes a mount. One that is in use is a Conflict, whose users say who uses it."""
        self.client._json("DELETE", self._path("/mounts", [("target", target), ("force", force)]), safe=True)

    def activate_skill(self, name: str) -> answers.SessionSkill:
        """Mounts a skill while programs run, or its newest files."""
        return self.client._ask(answers.SessionSkill, "PUT", self._path(f"/skills/{segment(name)}"), safe=True)

    def deactivate_skill(self, name: str, *, force: bool = False) -> None:
        """Removes a skill, also one in use with force."""
        self.client._json("DELETE", self._path(f"/skills/{segment(name)}", [("force", force)]), safe=True)

    def make_skill_environment(
        self, name: str, *, env: Optional[requests.Environment] = None, timeout: Union[None, str, float] = None
    ) -> answers.SkillEnvironment:
        """Makes the Python environment that an active skill asks for, unless it is there."""
        body: Dict[str, Any] = {name: value for name, value in (("env", env), ("timeout", timeout)) if value is not None}
        path = self._path(f"/skills/{segment(name)}/environment")
        return self.client._ask(answers.SkillEnvironment, "POST", path, body, safe=True, waits=True)

    def switch_drive(self, name: str, version: Optional[int] = None) -> answers.SessionDrive:
        """Mounts a version of a drive while programs run, by default the newest, instead of the one that it has."""
        return self.client._ask(answers.SessionDrive, "PUT", self._path(f"/drives/{segment(name)}", [("version", version)]), safe=True)

    def detach_drive(self, name: str, *, force: bool = False) -> None:
        """Removes a drive, also one in use with force."""
        self.client._json("DELETE", self._path(f"/drives/{segment(name)}", [("force", force)]), safe=True)

    # The root filesystem of a session of an image.

    def diff_root(self, *, limit: Optional[int] = None) -> answers.Changes:
        """What differs from the image."""
        body = {} if limit is None else {"limit": limit}
        return self.client._ask(answers.Changes, "POST", self._path("/fs/diff"), body, safe=True, waits=True)

    def discard_root(self, paths: Optional[Iterable[str]] = None) -> answers.RootDiscarded:
        """Makes paths what they are in the image; by default all."""
        body = {} if paths is None else {"paths": list(paths)}
        return self.client._ask(answers.RootDiscarded, "POST", self._path("/fs/discard"), body, safe=False, waits=True)

    def commit_image(self, name: str, **request: Unpack[requests.CommitOptions]) -> answers.Image:
        """Makes an image of what it has now."""
        body: Dict[str, Any] = {**request, "name": name}
        return self.client._ask(answers.Image, "POST", self._path("/commit"), body, safe=False, waits=True)

    # Ports.

    def open_port(self, port: int) -> Port:
        """Connects to a port at the loopback of the box, whatever its network. Use it in a with statement."""
        headers = {"Connection": "Upgrade", "Upgrade": "boxd-port"}
        answer = self.client._open("GET", self._path(f"/ports/{port}/stream"), headers=headers, timeout=self.client.timeout)
        if answer.head.status != _SWITCHING:
            answer.close()
            raise ProtocolError(f"the other end answered {answer.head.status} to a request for a port")
        return Port(answer._conn, answer.rest())

    def preview_port(self, port: int, *, lifetime: Optional[str] = None) -> answers.PortToken:
        """A token with which anybody reaches a port over HTTP for a time."""
        body = {} if lifetime is None else {"lifetime": lifetime}
        return self.client._ask(answers.PortToken, "POST", self._path(f"/ports/{port}/token"), body, safe=True)


class Port:
    """A connection to a port of a box: an iterator of what comes."""

    def __init__(self, conn: Connection, begin: bytes) -> None:
        self._conn, self._begin = conn, begin

    def recv(self, timeout: Optional[float] = None) -> bytes:
        """Some bytes; none when the box has ended its side."""
        data, self._begin = self._begin, b""
        return data or self._conn.recv(timeout)

    def send(self, data: bytes) -> None:
        """Sends all of it."""
        self._conn.send(data)

    def send_eof(self) -> None:
        """Ends this side. The box may go on."""
        self._conn.send_eof()

    def close(self) -> None:
        """Ends the connection."""
        self._conn.close()

    def __enter__(self) -> Port:
        return self

    def __exit__(self, *exc: object) -> None:
        self._conn.close()

    def __iter__(self) -> Port:
        return self

    def __next__(self) -> bytes:
        data = self.recv()
        if not data:
            raise StopIteration
        return data


class Process:
    """A program with an id, which runs without a client."""

    def __init__(self, session: Session, id: str, info: Optional[answers.Process] = None) -> None:
        self.session = session
        #: its id
        self.id = id
        #: what boxd has said of it last
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def _path(self, rest: str = "", query: Query = ()) -> str:
        return self.session._path(f"/processes/{segment(self.id)}{rest}", query)

    def get(self, *, wait: int = 0) -> answers.Process:
        """Its state: as soon as it has ended, at the latest after so many seconds."""
        path = self._path("", [("wait", f"{wait}s" if wait else None)])
        timeout = wait + _GRACE if wait else None
        self.info = self.session.client._ask(answers.Process, "GET", path, safe=True, timeout=timeout)
        return self.info

    def wait(self) -> answers.Process:
        """Waits for its end, also over restarts of boxd. The result has its output."""
        state = self.get()
        while state.state != "ended":
            state = self.get(wait=_END_PATIENCE)
        return state

    def stop(self) -> answers.Process:
        """Ends it as its request says, and waits for that."""
        self.info = self.session.client._ask(answers.Process, "POST", self._path("/stop"), safe=True, waits=True)
        return self.info

    def delete(self) -> None:
        """Ends it and forgets it."""
        self.session.client._json("DELETE", self._path(), safe=True, waits=True)

    def signal(self, signal: str) -> None:
        """Sends a signal such as SIGHUP."""
        self.session.client._json("POST", self._path("/signal"), {"signal": signal}, safe=False)

    def resize(self, rows: int, cols: int) -> None:
        """Gives its terminal another size."""
        self.session.client._json("POST", self._path("/resize"), {"rows": rows, "cols": cols}, safe=True)

    def renew(self) -> answers.Process:
        """Begins its lease anew."""
        self.info = self.session.client._ask(answers.Process, "POST", self._path("/renew"), safe=True)
        return self.info

    def logs(
        self,
        *,
        follow: bool = False,
        stdout: Optional[int] = None,
        stderr: Optional[int] = None,
        lines: Optional[int] = None,
        tail: Optional[int] = None,
        since: Optional[str] = None,
        stream: Optional[str] = None,
    ) -> Logs:
        """Its output, from the given offsets on; with follow until its end.

        Or the last lines of it, the last bytes of each stream (tail), or what has come since a time.
        """
        return Logs(self, follow, stdout, stderr, [("lines", lines), ("tail", tail), ("since", since)], stream)

    def stdio(self) -> Stdio:
        """The pipes of a process that was started with stdio="direct", over a Unix socket. boxd hands them out once."""
        client = self.session.client
        if not client.address.local:
            raise ValueError(f"address {client.address.text!r}: pipes can only be passed over a Unix socket")
        headers = {"Connection": "Upgrade", "Upgrade": "boxd-stdio"}
        answer = client._open("GET", self._path("/stdio"), headers=headers, timeout=client.timeout, fds=True)
        conn = cast(FdConnection, answer._conn)
        try:
            if answer.head.status != _SWITCHING:
                raise ProtocolError(f"the other end answered {answer.head.status} to a request for pipes")
            rest = answer.rest()
            while True:  # one byte, with which they come, and the end
                data = conn.recv(client.timeout)
                if not data:
                    break
                rest += data
            return conn.stdio(rest)
        finally:
            conn.close()

    def attach(
        self,
        *,
        stdout: Optional[int] = None,
        stderr: Optional[int] = None,
        replay: bool = False,
        write: bool = False,
        take_over: bool = False,
        lossless: Optional[bool] = None,
        lines: bool = False,
    ) -> Stream:
        """Its output as it comes, and its input if write is true. Use it in a with statement.

        stdout and stderr are the bytes that you have: it begins there, with replay at the oldest byte that is kept, and
        otherwise with what comes from now on.

        With lines every Output of stdout is one whole line, and input is sent line by line without empty ones: as protocols
        want it that have one message in each, such as MCP.
        """
        if stdout is not None or stderr is not None:
            stdout, stderr = stdout or 0, stderr or 0
        attach: Dict[str, Any] = {"write": write, "take_over": take_over, "lossless": lossless, "stdout": stdout, "stderr": stderr, "replay": replay, "lines": lines}
        attach = {name: value for name, value in attach.items() if value is not None and value is not False or name == "lossless" and value is False}
        again: Dict[str, Any] = {"write": write, "take_over": False, "lines": lines}
        if write:  # to go on after a lost connection, which boxd may notice later
            attach["writer_id"] = again["writer_id"] = secrets.token_hex(13)
        if lossless is not None:
            again["lossless"] = lossless
        return Stream(self.session.client, self, self._path("/stream"), {"attach": attach}, again, False)


class Stream:
    """A program with its output as it comes: an iterator of Output and Gap, which ends with the program.

    A connection that is lost is made again without a byte more or less. Only one that cannot be made again within half a minute
    is an error. boxd drops a client that reads nothing for ten minutes, over TCP for a minute and a half.
    """

    def __init__(
        self, client: Client, process: Optional[Process], path: str, first: Dict[str, Any], attach: Dict[str, Any], forget: bool
    ) -> None:
        #: the program; None if its session ends with the stream
        self.process = process
        #: what has become of the program, once it has ended
        self.result: Optional[answers.ExecResult] = None
        #: values that boxd has lowered
        self.clamped: List[answers.Clamp] = []
        self._client = client
        self._path, self._first, self._attach, self._forget = path, first, attach, forget
        self._conn: Optional[Connection] = None
        self._frames = Frames()
        self._sending, self._news = Lock(), Condition()
        self._round, self._advancing = 0, False
        self._items: Deque[Union[Output, Gap]] = deque()
        self._lines = Lines() if attach.get("lines") else None
        self._input = Input(self._lines is not None)
        self._controls: Deque[Dict[str, Any]] = deque()
        self._writes = bool(attach.get("write"))
        self._at = [0, 0]  # bytes that have come
        self._skip = [0, 0]  # bytes that come a second time
        self._read = [0, 0]  # bytes that the caller has taken
        self._pace = Pace()
        self._sent = self._begun = self._attached = self._closed = self._forgotten = False
        self._lost: Exception = StreamEnded("the stream has not begun")
        self._failed: Optional[Exception] = None

    # For the caller.

    @property
    def stdout(self) -> int:
        """Bytes of standard output that have been read: give it to attach to go on here later."""
        return self._read[0]

    @property
    def stderr(self) -> int:
        """Bytes of standard error that have been read."""
        return self._read[1]

    def __enter__(self) -> Stream:
        try:
            try:
                self._connect(self._path, self._first)
            except (ConnectionLost, RequestTimeout) as error:
                self._lose(error)
            while not self._begun and self.result is None:
                self._advance(self._round)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Union[Output, Gap]:
        while True:
            # asked first: another thread may take the last output and the result meanwhile
            seen, over = self._round, self.result is not None
            if self._items:
                break
            if over:
                raise StopIteration
            self._advance(seen)
        item = self._items.popleft()
        self._read[item.stream == "stderr"] = item.offset + (item.bytes if isinstance(item, Gap) else len(item.data))
        return item

    def wait(self) -> answers.ExecResult:
        """Reads the rest of the output, and returns the result."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def communicate(self, input: bytes = b"") -> Tuple[bytes, bytes]:
        """Sends all input and its end, and returns the rest of both streams. What is missing of them is an OutputMissing at the end."""
        out, err = bytearray(), bytearray()
        gap: Optional[Gap] = None
        if self._writes:
            self.write(input)
            self.close_stdin()
        for item in self:
            if isinstance(item, Output):
                (err if item.stream == "stderr" else out).extend(item.data)
            else:
                gap = gap or item
        if gap is not None:
            raise OutputMissing(gap, bytes(out), bytes(err))
        return bytes(out), bytes(err)

    def write(self, data: bytes) -> None:
        """Sends input. It waits while boxd has not taken what was sent before, and keeps output that comes meanwhile.

        What the program has not read when it ends is dropped. Of a stream of lines, one that has no end yet waits for it.
        """
        if self._lines is None:
            for at in range(0, len(data), MAX_INPUT):
                self._queue(data[at : at + MAX_INPUT])
            return
        self._check_writer()
        for line in self._lines.cut(data):
            self._queue(line)

    def _queue(self, piece: bytes) -> None:
        while True:
            seen, waiting = self._round, self._input.waiting
            # What is longer than the window has it for itself.
            if self.result is not None or not waiting or waiting + len(piece) <= WINDOW:
                break
            self._check_writer()  # boxd confirms nothing more to a writer that has been replaced
            self._advance(seen)
        self._check_writer()
        self._input.add(piece)
        self._flush()

    def close_stdin(self) -> None:
        """Ends the input."""
        self._check_writer()
        for line in self._lines.cut(b"", last=True) if self._lines is not None else ():
            self._queue(line)
        self._input.ended = True
        self._flush()

    def signal(self, signal: str) -> None:
        """Sends a signal such as SIGINT to the program."""
        self._controls.append({"signal": signal})
        self._flush()

    def resize(self, rows: int, cols: int) -> None:
        """Gives the terminal another size."""
        self._controls.append({"resize": {"rows": rows, "cols": cols}})
        self._flush()

    def close(self) -> None:
        """Ends the stream. A program of stream without an id ends with it; others are left alone."""
        if self._closed:
            return
        self._closed = True
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
        if self.process is not None and self._forget and self._sent and not self._forgotten:
            try:  # no other client knows it
                self._client._json("DELETE", self.process._path(), safe=False, timeout=_FORGET_PATIENCE)
            except (NotFound, ConnectionLost, ConnectError, RequestTimeout, Unavailable, Exhausted):
                pass  # its lease ends it

    def _check_writer(self) -> None:
        if not self._writes:
            raise WriterLost("this stream does not send input: it was not asked to, or another client writes to the process now")
        if self._input.ended:
            raise ValueError("the input has been closed")

    # Connections.

    def _connect(self, path: str, first: Dict[str, Any]) -> None:
        key = new_key()
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
        if self._forget:
            headers["Sec-WebSocket-Protocol"] = "boxd.forget"
        answer = self._client._open("GET", path, headers=headers, timeout=self._client.timeout)
        conn = answer._conn
        try:
            if answer.head.status != _SWITCHING or answer.head.headers.get("sec-websocket-accept") != accept_of(key):
                raise ProtocolError(f"the other end answered {answer.head.status} to a WebSocket, in no way of RFC 6455")
            self._can_forget = answer.head.headers.get("sec-websocket-protocol") == "boxd.forget"
            self._frames = Frames(answer.rest())
            self._sent = True
            conn.send(encode(BINARY, b"\x03" + json.dumps(first).encode()), self._client.timeout)
            with self._sending:  # nothing of the last connection is under way any more
                self._attached = False
                self._input.renew()
                self._conn = conn
            if self._closed:  # meanwhile
                self._conn = None
                raise StreamEnded("the stream is closed")
        except BaseException:
            conn.close()
            raise

    _can_forget = False

    def _lose(self, error: Exception) -> None:
        """Goes on without a connection, if it can."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
        self._lost = error
        self._input.ready = False
        # What boxd has not answered may have begun: the process of that id says it.
        if self._closed or not (self._begun or self._sent):
            raise self._fail(error)
        if self.process is None:
            raise self._fail(StreamEnded(f"the connection to boxd ended before the program did: {error}")) from error

    def _fail(self, error: Exception) -> Exception:
        if self._failed is None:
            self._failed = error
        return self._failed

    def _advance(self, seen: int) -> None:
        """Takes one message, or makes another connection, if that is not under way or done since the round that the caller has seen.

        Of several callers one does it, and the others return when it is done. The round is to be read before what the caller
        waits for: the message that brings it may be the last one for long.
        """
        with self._news:
            while self._advancing and seen == self._round:
                self._news.wait()
            if seen != self._round or self.result is not None:
                return
            self._advancing = True
        try:
            if self._failed is not None:
                raise self._failed
            if self._closed:
                raise self._fail(StreamEnded("the stream is closed"))
            conn = self._conn
            if conn is None:
                self._reconnect()
            else:
                try:
                    message = self._message(conn)
                except (ConnectionLost, RequestTimeout) as error:
                    self._lose(error)
                else:
                    self._take(message)
        finally:
            self._round += 1  # also if it was cancelled: the message may have been taken
            self._advancing = False
            with self._news:
                self._news.notify_all()

    def _message(self, conn: Connection) -> bytes:
        while True:
            frame = self._frames.next()
            if frame is None:
                data = conn.recv(_STREAM_SILENCE)
                if not data:
                    raise ConnectionLost("the connection to boxd ended before the program did")
                self._frames.feed(data)
                continue
            kind, data = frame
            if kind == BINARY and data:
                return data
            if kind == PING:
                with self._sending:
                    conn.send(encode(10, data), self._client.timeout)
            elif kind == CLOSE:
                code, reason = close_reason(data)
                if code in (1008, 1009):
                    conn.close()
                    raise self._fail(ProtocolError(f"boxd closed the stream: {reason}"))
                raise ConnectionLost("boxd closed the stream before the program ended")
            elif kind != 10:
                conn.close()
                raise self._fail(ProtocolError("boxd sent a message that is empty or text"))

    def _reconnect(self) -> None:
        assert self.process is not None  # see _lose
        delay = self._pace.next(now(), self._lost)
        if delay is None:
            raise self._fail(StreamEnded(f"the connection to boxd ended before the program did: {self._lost}")) from self._lost
        sleep(delay)
        attach = dict(self._attach)
        if self._begun or "attach" not in self._first:
            attach.update(stdout=self._at[0], stderr=self._at[1], stdin=self._input.base, write=self._writes)
        else:
            attach = dict(self._first["attach"])
        try:
            self._connect(self.process._path("/stream"), {"attach": attach})
        except (ConnectionLost, ConnectError, RequestTimeout) as error:
            self._lost = error
        except (NotFound, Conflict, Unavailable, Exhausted) as error:
            self._refuse(error)
        except Exception as error:
            raise self._fail(error)

    def _refuse(self, error: Exception) -> None:
        """boxd does not go on with the process: now, or at all."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()
        self._lost = error
        if isinstance(error, (Unavailable, Exhausted)) and (self._begun or "attach" not in self._first):
            return
        if isinstance(error, NotFound) and self._begun:
            raise self._fail(ProcessGone("the connection to boxd ended before the program did, which boxd no longer knows")) from error
        if isinstance(error, NotFound) and "start" in self._first:
            raise self._fail(StreamEnded("the connection to boxd ended before the program began")) from error
        if isinstance(error, Conflict) and self._begun and self._writes:
            # boxd may not have noticed yet that the last connection has ended.
            if self._pace.since(now()) > _WRITER_PATIENCE:
                self._writes = False
            return
        raise self._fail(error)

    # Messages.

    def _take(self, message: bytes) -> None:
        channel, data = message[0], message[1:]
        if channel in (1, 2):
            self._deliver(channel - 1, data)
            return
        if channel != 3:
            raise self._fail(ProtocolError(f"boxd sent a message on the unknown channel {channel}"))
        control = parse_json(data)
        if not isinstance(control, dict):
            raise self._fail(ProtocolError("a control message of boxd is no JSON object"))
        if "exit" in control:
            self.result = decode(answers.ExecResult, control["exit"])
            self._finish()
        elif "error" in control:
            error = problem(control["error"])
            if not self._attached and self._lost is not None and (self._begun or self._pace.since(now()) > 0):
                self._refuse(error)
            else:
                raise self._fail(error)
        elif "started" in control:
            started = decode(answers.StreamStarted, control["started"])
            self.clamped = started.clamped or []
            self._begun = self._attached = True
            self._pace.reset()
            self._input.begin(0)
            self._input.ready = self._writes
        elif "attached" in control:
            self._take_attached(decode(answers.StreamAttached, control["attached"]))
        elif "gap" in control:
            gap = decode(answers.StreamGap, control["gap"])
            self._gap(int(gap.stream == "stderr"), gap.bytes, gap.reason)
        elif "writer_lost" in control:
            self._writes = self._input.ready = False
        elif "stdin_taken" in control:
            self._input.confirm(int(control["stdin_taken"]))
        self._flush()

    def _deliver(self, stream: int, data: bytes) -> None:
        self._pace.reset()
        if self._lines is not None and stream == 0:
            data += b"\n"
        again = min(self._skip[stream], len(data))
        self._skip[stream] -= again
        data = data[again:]
        if data:
            self._items.append(Output("stderr" if stream else "stdout", data, self._at[stream]))
            self._at[stream] += len(data)

    def _gap(self, stream: int, size: int, reason: Optional[str] = None) -> None:
        self._items.append(Gap("stderr" if stream else "stdout", size, self._at[stream], reason))
        self._at[stream] += size

    def _take_attached(self, attached: answers.StreamAttached) -> None:
        if self.process is not None:
            self.process.info = attached.process
        self._attached = True
        begins = [attached.stdout, attached.stderr]
        if not self._begun and "attach" in self._first:
            self._begun = True
            self._at, self._read = list(begins), list(begins)
            if self._writes and not attached.writer:
                raise self._fail(WriterLost("another client writes to the process: use take_over"))
            self._input.begin(attached.stdin)
            self._input.ready = self._writes
            return
        if self._writes and not attached.writer:
            self._refuse(Conflict(_writer_problem()))
            return
        if not self._begun:  # the answer to the start was lost, and nothing has come
            self._begun = True
            self._input.begin(0)
        self._pace.reset()
        for stream in (0, 1):
            self._skip[stream] = max(0, self._at[stream] - begins[stream])
            if begins[stream] > self._at[stream]:
                self._gap(stream, begins[stream] - self._at[stream])
        if not self._writes:
            return
        if attached.stdin < self._input.base:
            raise self._fail(StreamEnded(f"boxd has {attached.stdin} bytes of the input, not the {self._input.base} that it had confirmed"))
        if attached.stdin > self._input.end:  # another client has written meanwhile
            self._writes = self._input.ready = False
            return
        self._input.confirm(attached.stdin)
        self._input.ready = True

    def _flush(self) -> None:
        """Sends what there is to send and boxd may be sent."""
        with self._sending:
            while True:
                conn = self._conn  # another thread may lose it
                if conn is None or not self._attached or self.result is not None:
                    return
                # Noted first: a task that is cancelled while it waits has sent it.
                control = self._controls.popleft() if self._controls else None
                if control is not None:
                    frame = b"\x03" + json.dumps(control).encode()
                else:
                    data = self._input.next()
                    if data is None:
                        return
                    frame = b"\x00" + data
                    self._input.was_sent(len(data))
                try:
                    conn.send(encode(BINARY, frame), self._client.timeout)
                except (ConnectionLost, RequestTimeout):
                    if control is not None:
                        self._controls.appendleft(control)
                    conn.close()  # who reads sees it, and makes another
                    return

    def _finish(self) -> None:
        """Ends the connection by which the result has come. boxd closes it when it has forgotten the process, and not before."""
        conn = self._conn
        if conn is None:
            return
        self._conn = None
        try:
            if self._forget and self._can_forget:
                with self._sending:  # behind a piece of input that is under way
                    conn.send(encode(BINARY, b'\x03{"forget":true}'), _FORGET_PATIENCE)
                while not self._forgotten:
                    frame = self._frames.next()
                    if frame is not None:
                        self._forgotten = frame[0] == CLOSE
                        continue
                    data = conn.recv(_FORGET_PATIENCE)
                    if not data:
                        break
                    self._frames.feed(data)
            with self._sending:
                conn.send(encode(CLOSE, b"\x03\xe8"), _FORGET_PATIENCE)
        except (ConnectionLost, RequestTimeout, ProtocolError):
            pass  # the result is there
        finally:
            conn.close()


def _writer_problem() -> answers.Problem:
    return answers.Problem(type="urn:boxd:problem:conflict", title="conflict", status=409, detail="another client writes to the process")


class Logs:
    """The output of a process: an iterator of Output and Gap. With follow, a connection that is lost is made again at its byte."""

    def __init__(
        self, process: Process, follow: bool, stdout: Optional[int], stderr: Optional[int], part: Query, stream: Optional[str]
    ) -> None:
        self._process, self._follow, self._stream = process, follow, stream
        self._part = [(name, value) for name, value in part if value is not None]
        self._from = None if stdout is None and stderr is None else [stdout or 0, stderr or 0]
        self._at = list(self._from or [0, 0])
        self._came = self._closed = self._over = False
        self._answer: Optional[_Lines] = None
        self._pace = Pace()

    def __iter__(self) -> Logs:
        return self

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops it."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def __next__(self) -> Union[Output, Gap]:
        while not self._closed and not self._over:
            try:
                if self._answer is None:
                    self._open()
                    if self._closed:  # meanwhile
                        self._drop()
                        break
                line = cast(_Lines, self._answer).next()
                if line:
                    return self._item(decode(answers.LogLine, parse_json(line)))
                if line is None:
                    self._drop()
                    self._over = not self._follow or self._is_over()
                    if not self._over:
                        raise ConnectionLost("boxd ended the output before the process did")
            except (ConnectionLost, RequestTimeout, Unavailable, Exhausted, ConnectError) as error:
                self._drop()
                if not self._came and isinstance(error, (ConnectError, Exhausted)) or not self._follow:
                    raise
                delay = self._pace.next(now(), error)
                if delay is None:
                    raise
                sleep(delay)
            except BaseException:
                self._drop()
                raise
        raise StopIteration

    def _open(self) -> None:
        query: List[Tuple[str, Union[str, int, bool, None]]] = [("format", "ndjson"), ("follow", self._follow), ("stream", self._stream)]
        if self._from is None and self._part:
            if self._follow:  # what is in neither stream now is not to come whole later
                state = self._process.get()
                self._at = [stream.bytes for stream in state.output]
            query += self._part
        elif self._from is not None:
            query += [("stdout", self._at[0]), ("stderr", self._at[1])]
        client = self._process.session.client
        timeout = None if self._follow else client.timeout
        self._answer = _Lines(client._open("GET", self._process._path("/logs", query), timeout=timeout))
        self._came = True

    def _item(self, line: answers.LogLine) -> Union[Output, Gap]:
        stream = int(line.stream == "stderr")
        self._pace.reset()
        self._from = self._at
        if line.gap:
            self._at[stream] = line.offset + line.gap
            return Gap(line.stream, line.gap, line.offset)
        data = base64.b64decode(line.data or "") if line.base64 else (line.data or "").encode()
        self._at[stream] = line.offset + len(data)
        return Output(line.stream, data, line.offset, line.time)

    def _is_over(self) -> bool:
        try:
            state = self._process.get()
        except NotFound:
            return True
        if state.state != "ended":
            return False
        return all(self._at[i] >= state.output[i].bytes or self._stream == ("stderr", "stdout")[i] for i in (0, 1))


class Events:
    """Events: an iterator, which goes on over lost connections and restarts of boxd. What is missing is an event of the type gap."""

    def __init__(self, client: Client, after: Optional[str], follow: bool, session: Optional[str], types: str) -> None:
        self._client, self._follow, self._session, self._types = client, follow, session, types
        #: after=... to go on here later: the id of the last event, or where boxd says that it is
        self.last_id = after
        self._answer: Optional[_Lines] = None
        self._came = self._closed = False
        self._since = 0.0  # when this connection was made
        self._pace = Pace()

    def __iter__(self) -> Events:
        return self

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops it."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None

    def __next__(self) -> answers.Event:
        while not self._closed:
            try:
                if self._answer is None:
                    self._open()
                    if self._closed:  # meanwhile
                        self._drop()
                        break
                event = self._next(cast(_Lines, self._answer))
                if event is not None:
                    self._pace.reset()
                    self.last_id = event.id
                    return event
                self._drop()
                if not self._follow:
                    break
                raise ConnectionLost("boxd ended the events")
            except (ConnectionLost, RequestTimeout, ConnectError, Unavailable) as error:
                self._drop()
                delay = self._pace.next(now(), error) if self._follow and self._came else None
                if delay is None:
                    raise
                sleep(delay)
            except BaseException:
                self._drop()
                raise
        raise StopIteration

    def _open(self) -> None:
        query: Query = [("after", self.last_id), ("follow", "true" if self._follow else "false"), ("session", self._session), ("type", self._types or None)]
        answer = self._client._open("GET", _owned(self._client, "/v1/events", query), timeout=_EVENTS_SILENCE)
        self._answer, self._came, self._since = _Lines(answer), True, now()

    def _next(self, lines: _Lines) -> Optional[answers.Event]:
        place = data = b""
        while True:
            line = lines.next()
            if line is None:
                return None
            if line.startswith(b"id:"):
                place = line[3:].strip()
            elif line.startswith(b"data:"):
                data = line[5:].strip()
            elif not line and data:  # only the empty line makes it one
                return decode(answers.Event, parse_json(data))
            elif not line and place:  # and without data a place
                if now() - self._since >= self._pace.most:  # boxd lives, and does not just answer
                    self._pace.reset()
                self.last_id = place.decode()
                place = b""


class Watch:
    """What happens in a directory: an iterator of FileEvent, which ends when the directory is gone.

    The first event is watching. What happens while the connection is lost is not known, so that it is not made again: that is
    an error.
    """

    def __init__(self, session: Session, path: str, query: Query) -> None:
        self._session, self._path, self._query = session, path, query
        self._answer: Optional[_Lines] = None
        self._over = False

    def __iter__(self) -> Watch:
        return self

    def __enter__(self) -> Watch:
        """Waits until boxd watches, so that nothing that happens from now on is missed."""
        self._open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops it."""
        self._over = True
        if self._answer is not None:
            self._answer.close()

    def _open(self) -> _Lines:
        if self._answer is None:
            path = self._session._path("/fs/watch", [("path", self._path), *self._query])
            self._answer = _Lines(self._session.client._open("GET", path, timeout=_EVENTS_SILENCE))
            if self._over:  # meanwhile
                self._answer.close()
        return self._answer

    def __next__(self) -> answers.FileEvent:
        try:
            while not self._over:
                lines = self._open()
                if self._over:  # meanwhile
                    break
                line = lines.next()
                if line is None:
                    break
                if not line:  # a sign of life
                    continue
                data = parse_json(line)
                event = decode(answers.FileEvent, data)
                if event.event == "error" and event.problem is not None:
                    raise problem(data["problem"])
                return event
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration


class Files:
    """The files of a session. A path that does not begin with / is below /workspace."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def _do(self, answer: Type[T], operation: str, body: Mapping[str, Any], safe: bool = False) -> T:
        given = {name: value for name, value in body.items() if value is not None}
        return self._session.client._ask(answer, "POST", self._session._path("/fs/" + operation), given, safe=safe, waits=True)

    def read(self, path: str) -> bytes:
        """The whole content of a file."""
        pace = Pace()
        while True:
            try:
                with self.open(path) as file:
                    return file.read()
            except (ConnectionLost, RequestTimeout, Unavailable) as error:
                delay = pace.next(now(), error)
                if delay is None:
                    raise
            sleep(delay)

    def read_text(self, path: str) -> str:
        """The whole content of a file in UTF-8."""
        return (self.read(path)).decode()

    def open(self, path: str, *, offset: int = 0) -> Download:
        """A file of any size as it comes, from a byte on; a negative offset is counted from the end."""
        headers = {"Range": f"bytes={offset}-" if offset > 0 else f"bytes={offset}"} if offset else None
        return self._session.client._download(self._session._path("/file", [("path", path)]), headers=headers)

    def read_part(self, path: str, **request: Unpack[requests.FileReadOptions]) -> answers.FileContent:
        """Some lines of a text file, or some bytes of a file."""
        return self._do(answers.FileContent, "read", {**request, "path": path}, safe=True)

    def write(self, path: str, content: Union[str, bytes], **request: Unpack[requests.FileWriteOptions]) -> answers.FileWritten:
        """Replaces a file as a whole; mode="append" adds to its end, mode="create" wants it not to exist."""
        body: Dict[str, Any] = {**request, "path": path}
        if isinstance(content, str):
            body["content"] = content
        else:
            body.update(content=base64.b64encode(content).decode(), encoding="base64")
        return self._do(answers.FileWritten, "write", body)

    def upload(self, path: str, content: Content, *, permissions: Optional[str] = None, no_parents: bool = False) -> answers.FileWritten:
        """Writes a file of any size as it comes. What was written before an error stays."""
        query: Query = [("path", path), ("permissions", permissions), ("no_parents", no_parents)]
        return self._session.client._upload(answers.FileWritten, "PUT", self._session._path("/file", query), content, "application/octet-stream")

    def edit(self, path: str, *edits: requests.FileReplacement, if_match: Optional[str] = None) -> answers.FileEdited:
        """Replaces texts in a file: all of them, or none."""
        return self._do(answers.FileEdited, "edit", {"path": path, "edits": list(edits), "if_match": if_match})

    def list(self, path: str = "/workspace", **request: Unpack[requests.FileListOptions]) -> answers.FileEntries:
        """The entries of a directory, by name."""
        return self._do(answers.FileEntries, "list", {**request, "path": path}, safe=True)

    def stat(self, path: str, **request: Unpack[requests.FileStatOptions]) -> answers.File:
        """What is at a path."""
        return self._do(answers.File, "stat", {**request, "path": path}, safe=True)

    def exists(self, path: str) -> bool:
        """There is something at a path."""
        try:
            self.stat(path)
            return True
        except NotFound as error:
            if error.file_kind is None:
                raise  # it is the session that does not exist
            return False

    def glob(self, pattern: str, **request: Unpack[requests.FileGlobOptions]) -> answers.FileEntries:
        """Files by a pattern of names."""
        return self._do(answers.FileEntries, "glob", {**request, "pattern": pattern}, safe=True)

    def grep(self, pattern: str, **request: Unpack[requests.FileGrepOptions]) -> answers.FileMatches:
        """Lines of files by a regular expression."""
        return self._do(answers.FileMatches, "grep", {**request, "pattern": pattern}, safe=True)

    def mkdir(self, path: str, **request: Unpack[requests.FileMkdirOptions]) -> answers.FileWritten:
        """Makes a directory."""
        return self._do(answers.FileWritten, "mkdir", {**request, "path": path})

    def move(self, source: str, target: str, *, overwrite: bool = False, no_parents: bool = False) -> None:
        """Renames a file or directory."""
        self._do(answers.FileDone, "move", {"from": source, "to": target, "overwrite": overwrite, "no_parents": no_parents})

    def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file or directory."""
        self._do(answers.FileDone, "remove", {"path": path, "recursive": recursive, "missing_ok": missing_ok})

    def chmod(self, path: str, mode: str) -> None:
        """Changes the mode of a file or directory, an octal number such as 755."""
        self._do(answers.FileDone, "chmod", {"path": path, "mode": mode})

    def watch(self, path: str = "/workspace", *, recursive: bool = False, entries: bool = False) -> Watch:
        """What happens in a directory from now on."""
        return Watch(self._session, path, [("recursive", recursive), ("entries", entries)])

    def download_archive(self, path: str = "/workspace", *, leave_out: bool = False) -> Download:
        """A directory or file as a tar archive."""
        return self._session.client._download(self._session._path("/archive", [("path", path), ("leave_out", leave_out)]))

    def collect_archive(self, paths: Iterable[str], path: str = "/workspace") -> Download:
        """Some files and directories below a directory as a tar archive. If one does not exist, nothing is sent."""
        body = {"path": path, "paths": list(paths)}
        return self._session.client._download(self._session._path("/archive"), method="POST", body=body)

    def upload_archive(
        self, content: Content, path: str = "/workspace", *, overwrite: bool = False, outward_links: bool = False
    ) -> answers.ArchiveDone:
        """Unpacks a tar archive, which may be compressed with gzip: all of it, or nothing."""
        query: Query = [("path", path), ("overwrite", overwrite), ("outward_links", outward_links)]
        return self._session.client._upload(answers.ArchiveDone, "PUT", self._session._path("/archive", query), content, "application/x-tar")
