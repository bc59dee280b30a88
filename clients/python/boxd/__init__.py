# SPDX-License-Identifier: Apache-2.0

"""boxd runs programs in sandboxes on this host. This package talks to it; see docs/guide/python.md."""

from . import answers, requests
from ._async_client import (
    AsyncClient,
    AsyncDownload,
    AsyncEvents,
    AsyncFiles,
    AsyncLogs,
    AsyncPort,
    AsyncProcess,
    AsyncSession,
    AsyncStream,
    AsyncWatch,
)
from ._async_resources import AsyncDrives, AsyncImages, AsyncSkills, AsyncWorkspaces
from ._client import Client, Download, Events, Files, Logs, Port, Process, Session, Stream, Watch
from ._output import Gap, Output, Stdio
from ._resources import Drives, Images, Skills, Workspaces
from ._version import VERSION as __version__
from .errors import (
    BoxdError,
    ConnectError,
    ConnectionLost,
    OutputMissing,
    Problem,
    ProcessGone,
    ProtocolError,
    RequestTimeout,
    StreamEnded,
    TLSError,
    WriterLost,
)
from .problems import Conflict, Denied, Exhausted, Internal, Invalid, NotFound, Unauthenticated, Unavailable, Unsupported

__all__ = [
    "answers", "requests", "Gap", "Output", "Stdio", "__version__",
    "AsyncClient", "AsyncDownload", "AsyncEvents", "AsyncFiles", "AsyncLogs", "AsyncPort", "AsyncProcess", "AsyncSession", "AsyncStream", "AsyncWatch",
    "AsyncDrives", "AsyncImages", "AsyncSkills", "AsyncWorkspaces",
    "Client", "Download", "Events", "Files", "Logs", "Port", "Process", "Session", "Stream", "Watch",
    "Drives", "Images", "Skills", "Workspaces",
    "BoxdError", "ConnectError", "ConnectionLost", "OutputMissing", "Problem", "ProcessGone", "ProtocolError", "RequestTimeout", "StreamEnded", "TLSError",
    "WriterLost",
    "Conflict", "Denied", "Exhausted", "Internal", "Invalid", "NotFound", "Unauthenticated", "Unavailable", "Unsupported",
]  # fmt: skip
