# SPDX-License-Identifier: Apache-2.0

"""Where boxd listens."""

from __future__ import annotations

import os
from typing import Optional, Tuple, Union
from urllib.parse import urlsplit

from ._tls import TLS, Channel

#: where an installed boxd listens
DEFAULT_SOCKET = "/run/boxd/boxd.sock"


class Address:
    """A Unix socket, or a host and port: of the loopback, or by TLS."""

    def __init__(self, text: Optional[str] = None, tls: Optional[TLS] = None) -> None:
        self.text = text or os.environ.get("BOXD_SOCKET") or DEFAULT_SOCKET
        self.at: Union[str, Tuple[str, int]] = self.text
        self.host = "boxd"
        self.tls: Optional[TLS] = None
        if "://" not in self.text:
            return
        url = urlsplit(self.text)
        port = url.port or (443 if url.scheme == "https" else 0)
        if url.scheme not in ("http", "https") or not url.hostname or not port or url.path not in ("", "/") or url.query:
            raise ValueError(f"address {self.text!r}: must be the path of a Unix socket, http://HOST:PORT or https://HOST:PORT")
        if url.scheme == "https":
            self.tls = tls or TLS()
        self.at = (url.hostname, port)
        self.host = url.netloc.rpartition("@")[2]

    def channel(self) -> Optional[Channel]:
        """TLS for a connection to it, if it is spoken there."""
        return Channel(self.tls, self.at[0]) if self.tls else None

    @property
    def local(self) -> bool:
        """It is a Unix socket."""
        return isinstance(self.at, str)
