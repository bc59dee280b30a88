# SPDX-License-Identifier: Apache-2.0

"""What can go wrong. Every error of this package is a BoxdError."""

from __future__ import annotations

from typing import List, Optional

from . import answers
from ._output import Gap


class BoxdError(Exception):
    """Any error of this package."""


class Problem(BoxdError):
    """An error that boxd answered. Its class is that of its code: NotFound, Conflict, Denied and so on."""

    #: the whole answer
    problem: answers.Problem

    #: seconds after which a retry may succeed, if boxd knows
    retry_after: Optional[int]

    #: id of the request, which boxd's log has too
    request_id: Optional[str]

    def __init__(self, problem: answers.Problem, retry_after: Optional[int] = None, request_id: Optional[str] = None) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.retry_after = retry_after
        self.request_id = request_id

    @property
    def code(self) -> str:
        """The stable word to branch on, such as not_found."""
        return self.problem.type.rpartition(":")[2]

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """One sentence for people, which may change in any release."""
        return self.problem.detail

    @property
    def field(self) -> Optional[str]:
        """Field of the request that is wrong."""
        return self.problem.field

    @property
    def value(self) -> Optional[str]:
        """Value that was given, shortened."""
        return self.problem.value

    @property
    def allowed(self) -> Optional[str]:
        """Values that are allowed."""
        return self.problem.allowed

    @property
    def hint(self) -> Optional[str]:
        """What to do next."""
        return self.problem.hint

    @property
    def denial(self) -> Optional[answers.Denial]:
        """Rule that denied the request."""
        return self.problem.denial

    @property
    def file_kind(self) -> Optional[str]:
        """For errors of files: a word such as not_found, exists or no_space."""
        return self.problem.file.kind if self.problem.file else None

    @property
    def users(self) -> List[answers.MountUser]:
        """Users of a mount that is busy."""
        return self.problem.users or []


class ConnectError(BoxdError, ConnectionError):
    """boxd was not reached: nothing was sent."""


class TLSError(BoxdError, ConnectionError):
    """One end does not accept what the other has shown by TLS. Nothing was done."""


class ConnectionLost(BoxdError, ConnectionError):
    """The connection ended too early. What became of the request is not known."""


class RequestTimeout(BoxdError, TimeoutError):
    """boxd sent nothing for too long. What became of the request is not known."""


class ProtocolError(BoxdError):
    """The other end does not speak boxd's protocol."""


class StreamEnded(ConnectionLost):
    """A stream ended without the result of its program, which is not known."""


class ProcessGone(StreamEnded):
    """boxd no longer knew a process when its stream was to go on."""


class WriterLost(BoxdError):
    """Another client writes to the process now."""


class OutputMissing(BoxdError):
    """A program has ended, and communicate has not all of its output."""

    #: the first that is missing
    gap: Gap

    #: what has come
    stdout: bytes
    stderr: bytes

    def __init__(self, gap: Gap, stdout: bytes, stderr: bytes) -> None:
        super().__init__(f"{gap.bytes} bytes of {gap.stream} are missing from byte {gap.offset} on: {gap.reason or 'they are no longer stored'}")
        self.gap = gap
        self.stdout = stdout
        self.stderr = stderr
