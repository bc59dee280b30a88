# SPDX-License-Identifier: Apache-2.0

"""Where boxd listens."""

from __future__ import annotations

import os
from typing import Optional, Tuple, Union
from urllib.parse import urlsplit

#: where an installed boxd listens
DEFAULT_SOCKET = "/run/boxd/boxd.sock"


class Address:
    """A Unix socket, or a host and port of the loopback."""

    def __init__(self, text: Optional[str] = None) -> None:
        self.text = text or os.environ.get("BOXD_SOCKET") or DEFAULT_SOCKET
        self.at: Union[str, Tuple[str, int]] = self.text
        self.host = "boxd"
        if "://" not in self.text:
            return
        url = urlsplit(self.text)
        if url.scheme != "http" or not url.hostname or not url.port or url.path not in ("", "/") or url.query:
            raise ValueError(f"address {self.text!r}: must be the path of a Unix socket or http://HOST:PORT")
        self.at = (url.hostname, url.port)
        self.host = url.netloc.rpartition("@")[2]

    @property
    def local(self) -> bool:
        """It is a Unix socket."""
        return isinstance(self.at, str)
