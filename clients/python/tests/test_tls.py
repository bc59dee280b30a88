# SPDX-License-Identifier: Apache-2.0

"""A real boxd at BOXD_HTTPS, which knows the client certificate BOXD_TEST_CERT and not BOXD_TEST_STRANGER. Each has its key in the same file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
import threading
import unittest
from typing import Dict, Iterator
from unittest import mock

import boxd
from boxd import AsyncClient, Client, ConnectionLost, TLSError

from .faults import hang_up
from .test_api import SERVER
from .test_boxd import connections, joined

ADDRESS, CA = os.environ["BOXD_HTTPS"], os.environ["BOXD_TEST_CA"]
KNOWN, STRANGER = os.environ["BOXD_TEST_CERT"], os.environ["BOXD_TEST_STRANGER"]
BIG = os.urandom(3_000_000)


class TLSTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.before = connections()

    def test_what_a_client_does(self) -> None:
        with mock.patch.dict(os.environ, {"BOXD_SOCKET": ADDRESS, "BOXD_TLS_CA": CA, "BOXD_TLS_CERT": KNOWN}):
            client = Client()
        with client.create_session() as session:
            self.assertEqual(session.get().owner, "known")
            self.assertEqual(session.exec("echo", "tls").stdout, "tls\n")
            with session.stream("cat", stdin=True) as stream:  # a thread writes while another reads
                self.assertEqual(stream.communicate(BIG)[0], BIG)
            session.files.write("f", BIG)
            self.assertEqual(session.files.read("f"), BIG)
            with session.stream(code=SERVER, language="python") as server:
                next(server)
                with session.open_port(8000) as port:
                    port.send(BIG)
                    port.send_eof()
                    self.assertEqual(b"".join(port), b"got 3000000")
            with client.events(session=session.id) as events:
                self.assertEqual(next(events).type, "session.started")
        self.assertEqual(connections(), self.before)

    async def test_what_a_client_of_asyncio_does(self) -> None:
        client = AsyncClient(ADDRESS, tls_ca=CA, tls_cert=KNOWN, tls_key=KNOWN)
        async with await client.create_session() as session:
            async with session.stream("cat", stdin=True) as stream:
                self.assertEqual((await stream.communicate(BIG))[0], BIG)
            await session.files.write("f", BIG)
            self.assertEqual(await session.files.read("f"), BIG)
            async with session.stream(code=SERVER, language="python") as server:
                await server.__anext__()
                async with await session.open_port(8000) as port:
                    await port.send(BIG)
                    await port.send_eof()
                    self.assertEqual(b"".join([piece async for piece in port]), b"got 3000000")
            results = await asyncio.gather(*(session.exec("echo", str(n)) for n in range(20)))
            self.assertEqual([r.stdout for r in results], [f"{n}\n" for n in range(20)])
            async with session.stream("echo", "once") as stream:
                self.assertEqual(joined([item async for item in stream]), b"once\n")
        await asyncio.sleep(0)
        self.assertEqual(connections(), self.before)

    async def test_what_one_end_has_against_the_other(self) -> None:
        none = os.path.join(tempfile.gettempdir(), "boxd-no-such-file.pem")
        for given, says in (
            ({"tls_ca": CA, "tls_cert": STRANGER}, f"does not accept the client certificate {STRANGER}: "),
            ({"tls_cert": KNOWN}, "the certificate of the server is not accepted: "),
            ({"tls_ca": none}, f"CA certificates: {none}: No such file"),
            ({"tls_ca": __file__}, f"CA certificates: {__file__}: "),
            ({"tls_ca": CA, "tls_cert": none}, f"the client certificate {none}: No such file"),
            ({"tls_ca": CA, "tls_cert": CA}, f"the client certificate {CA}: "),
            ({"tls_ca": CA, "tls_key": KNOWN}, f"the client key {KNOWN} has no certificate"),
        ):
            await self.fails(ADDRESS, given, says)
        with through(1 << 20, "127.0.0.2") as elsewhere:
            await self.fails(elsewhere, {"tls_ca": CA}, "not valid for '127.0.0.2'")
        with self.assertRaisesRegex(boxd.Unauthenticated, "token"):
            Client(ADDRESS, tls_ca=CA).sessions()
        with self.assertRaisesRegex(boxd.ProtocolError, "must begin with https://"):
            Client("http" + ADDRESS[5:]).sessions()
        with self.assertRaisesRegex(ValueError, "https://HOST:PORT"):
            Client("https://")
        await asyncio.sleep(0)
        self.assertEqual(connections(), self.before)

    async def fails(self, address: str, given: Dict[str, str], says: str) -> None:
        """Both clients are told."""
        told = []
        try:
            Client(address, **given).sessions()  # type: ignore[arg-type]
        except (TLSError, boxd.ConnectError) as error:
            told.append(str(error))
        try:
            await AsyncClient(address, **given).sessions()  # type: ignore[arg-type]
        except (TLSError, boxd.ConnectError) as error:
            told.append(str(error))
        await asyncio.sleep(0)  # a connection of asyncio is closed in the next turn
        self.assertEqual(len(told), 2, f"of two clients with {given}")
        for text in told:
            self.assertIn(says, text, given)

    async def test_connections_that_end_as_none_should(self) -> None:
        await self.end_as_none_should()
        usual = ssl.create_default_context

        def of_python_3_10(**given: str) -> ssl.SSLContext:
            context = usual(**given)  # type: ignore[arg-type]
            context.options |= 0x80  # OP_IGNORE_UNEXPECTED_EOF
            return context

        with mock.patch.object(ssl, "create_default_context", of_python_3_10):
            await self.end_as_none_should()

    async def end_as_none_should(self) -> None:
        await self.fails("https" + os.environ["BOXD_HTTP"][4:], {}, "does not speak TLS: the address must begin with http://")
        for most in (0, 100):  # nothing of the handshake, and a part
            with through(most) as address:
                await self.fails(address, {"tls_ca": CA}, "the connection ended")
        with closing() as address:
            await self.fails(address, {"tls_ca": CA}, "the connection ended")
        with Client(ADDRESS, tls_ca=CA, tls_cert=KNOWN).create_session() as session:
            with session.stream(code=SENDER, language="python") as server:
                next(server)
                for most in (20_000, 60_000):  # what comes by a port has no other end than that of TLS
                    with through(most) as address, self.assertRaises(ConnectionLost):
                        with Client(address, tls_ca=CA, tls_cert=KNOWN).session(session.id).open_port(8001) as port:
                            b"".join(port)
                    with through(most) as address, self.assertRaises(ConnectionLost):
                        other = AsyncClient(address, tls_ca=CA, tls_cert=KNOWN)
                        async with await other.session(session.id).open_port(8001) as async_port:
                            b"".join([piece async for piece in async_port])
        await asyncio.sleep(0)
        self.assertEqual(connections(), self.before)


# Sends more than sockets hold, and ends.
SENDER = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 8001))
def serve(conn):
    try:
        conn.sendall(bytes(100_000))
    except OSError:
        pass
    conn.close()
print("up", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept()[:1]).start()
"""


@contextlib.contextmanager
def through(most: int, host: str = "127.0.0.1") -> Iterator[str]:
    """An address that leads to boxd, and ends each connection after so many bytes of it."""
    listener = socket.create_server((host, 0))
    threads = []

    def forward(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", int(ADDRESS.rpartition(":")[2]))) as far:
            there = threading.Thread(target=copy, args=(near, far, 1 << 30))
            there.start()
            copy(far, near, most)
            there.join()

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=forward, args=(near,))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"https://{host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def closing() -> Iterator[str]:
    """An address that answers the first message of two handshakes with the end of TLS."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            conn, _ = listener.accept()
            with conn:
                conn.recv(1 << 16)
                conn.sendall(bytes.fromhex("15030300020100"))  # an alert: close_notify
                conn.recv(1 << 16)

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        serving.join()
        listener.close()


def copy(a: socket.socket, b: socket.socket, most: int) -> None:
    try:
        while most > 0 and (data := a.recv(min(most, 1 << 16))):
            b.sendall(data)
            most -= len(data)
    except OSError:
        pass
    for conn in (a, b):
        hang_up(conn)


if __name__ == "__main__":
    unittest.main()
