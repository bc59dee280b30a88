# SPDX-License-Identifier: Apache-2.0

"""TLS without a connection."""

from __future__ import annotations

import os
import ssl
from typing import Optional

from .errors import ConnectionLost, TLSError


# ssl.OP_IGNORE_UNEXPECTED_EOF, which Python 3.10 to 3.11.2 set with OpenSSL 3, and 3.9 has no name for: a connection that is cut off would
# be the end of what the other side says. See SSL_CTX_set_options(3ssl).
_IGNORE_UNEXPECTED_EOF = 0x80


def _no_password() -> str:
    raise ValueError("it is encrypted")


class TLS:
    """How a server proves who it is, and how this client does. The files (PEM) are read for each connection."""

    def __init__(self, ca: Optional[str] = None, certificate: Optional[str] = None, key: Optional[str] = None) -> None:
        self.ca = ca or os.environ.get("BOXD_TLS_CA")
        self.certificate = certificate or os.environ.get("BOXD_TLS_CERT")
        self.key = key or os.environ.get("BOXD_TLS_KEY")

    def context(self) -> ssl.SSLContext:
        """What the files say now."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # as ssl.SSLError is
            raise TLSError(f"CA certificates: {self.ca}: {_reason(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options &= ~_IGNORE_UNEXPECTED_EOF
        if not self.certificate and self.key:
            raise TLSError(f"the client key {self.key} has no certificate")
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key, _no_password)
            except (OSError, ValueError) as error:
                with_key = f" with the key {self.key}" if self.key else ""
                raise TLSError(f"the client certificate {self.certificate}{with_key}: {_reason(error)}") from error
        return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Channel:
    """This end of TLS: between bytes of the connection, and what they mean. It is for one thread at a time."""

    def __init__(self, tls: TLS, host: str) -> None:
        self._files = tls
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.context().wrap_bio(self._in, self._out, server_hostname=host)
        self._early = bytearray()  # read before the end of this side was sent
        self.ended = False

    def handshake(self) -> bool:
        """Goes on with the handshake, and reports whether that is done. If not, more has to come."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise self._explained(error) from error
        return True

    def came(self, data: bytes) -> None:
        """Takes what came over the connection; nothing is its end."""
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def read(self) -> Optional[bytes]:
        """What has been said: nothing at the end, and None if more has to come first."""
        if self._early:
            data = bytes(self._early)
            self._early.clear()
            return data
        if self.ended:
            return b""
        try:
            data = self._tls.read(1 << 18)
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            data = b""
        except ssl.SSLError as error:
            raise self._explained(error) from error
        self.ended = not data
        return data

    def write(self, data: memoryview) -> None:
        """Says something."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise self._explained(error) from error

    def end(self) -> None:
        """Ends this side. What has come is read first: OpenSSL does not expect any more."""
        early = bytearray()
        while not self.ended:
            data = self.read()
            if data is None:
                break
            early += data
        self._early = early
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass  # the other side has not ended
        except ssl.SSLError as error:
            raise self._explained(error) from error

    @property
    def waiting(self) -> bool:
        """Something is to be sent over the connection."""
        return self._out.pending > 0

    def outgoing(self) -> bytes:
        """What is to be sent over the connection."""
        return self._out.read()

    def _explained(self, error: ssl.SSLError) -> Exception:
        reason = error.reason or ""
        if isinstance(error, ssl.SSLEOFError) or reason == "UNEXPECTED_EOF_WHILE_READING":  # Python 3.11.2 has the second
            return ConnectionLost("the connection ended without the end of TLS")
        if isinstance(error, ssl.SSLZeroReturnError):
            return ConnectionLost("the connection ended: the server has closed it")
        if isinstance(error, ssl.SSLCertVerificationError):
            return TLSError(f"the certificate of the server is not accepted: {_reason(error)}")
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return TLSError("the server does not speak TLS: the address must begin with http://")
        if "ALERT" in reason:
            if self._files.certificate:
                return TLSError(f"the server does not accept the client certificate {self._files.certificate}: {_reason(error)}")
            return TLSError(f"the server does not accept a client without a certificate: {_reason(error)}")
        return ConnectionLost(f"TLS failed: {_reason(error)}")
