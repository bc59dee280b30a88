# SPDX-License-Identifier: Apache-2.0

"""A server that breaks the rules, or off."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import unittest
from typing import Any, Callable, Deque, List, Union

from boxd import (
    AsyncClient,
    Client,
    ConnectError,
    ConnectionLost,
    Exhausted,
    Gap,
    NotFound,
    Output,
    ProtocolError,
    RequestTimeout,
    Stream,
    StreamEnded,
    answers,
)
from boxd._address import Address
from boxd._aio import connect
from boxd._decode import decode
from boxd._frames import BINARY, CLOSE
from boxd._http import Pace
from boxd._tls import TLS

from .faults import Server, head, says, silent, upgraded
from .test_frames import frame

STATUS = b'{"version":"v1"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(STATUS) + STATUS
EXIT = {"exit": {"session": "s", "status": "exited", "exit_code": 0}}


def control(message: Any) -> bytes:
    return frame(BINARY, b"\x03" + json.dumps(message).encode())


class Quick(unittest.TestCase):
    """Tests in which a lost connection is tried again sooner, and given up late: a slow host may need long for two tries."""

    def setUp(self) -> None:
        self._pace = Pace.first, Pace.most, Pace.total
        Pace.first, Pace.most, Pace.total = 0.01, 0.05, 300.0

    @staticmethod
    def gives_up() -> None:
        """A lost connection is given up, and soon."""
        Pace.total = 0.5

    def tearDown(self) -> None:
        Pace.first, Pace.most, Pace.total = self._pace


class RequestsTest(Quick):
    def test_a_get_is_made_again_wherever_it_was_cut(self) -> None:
        for cut in range(0, len(ANSWER), 7):
            with Server(says(ANSWER[:cut]), says(ANSWER)) as server:
                self.assertEqual(Client(server.path).status().version, "v1")
                self.assertEqual(server.accepted, 2)

    def test_a_get_is_given_up(self) -> None:
        self.gives_up()
        with Server(says(ANSWER[:-1])) as server:
            begin = time.monotonic()
            with self.assertRaises(ConnectionLost):
                Client(server.path).status()
            self.assertLess(time.monotonic() - begin, 200)
            self.assertGreater(server.accepted, 1)

    def test_what_is_not_safe_is_made_once(self) -> None:
        with Server(says(b"")) as server:
            client = Client(server.path)
            session = client.session("s")
            calls: List[Callable[[], Any]] = [
                lambda: session.exec("true"),
                lambda: Client(server.path).create_session(),
                lambda: Client(server.path).run("true"),
                lambda: session.process("p").signal("SIGHUP"),
                lambda: session.files.write("a", "b"),
                lambda: session.files.upload("a", b"b"),
                lambda: session.files.edit("a", {"old": "a", "new": "b"}),
                lambda: session.files.remove("a"),
                lambda: session.files.move("a", "b"),
                lambda: session.files.upload_archive(b""),
                lambda: Client(server.path).request("POST", "/v1/skills", {}),
                lambda: session.keep_workspace("w"),
                lambda: session.create_snapshot("s"),
                lambda: session.discard_root(),
                lambda: session.commit_image("i"),
                lambda: session.files.collect_archive(["a"]),
                lambda: client.workspaces.create("w"),
                lambda: client.images.upload(b""),
                lambda: client.images.prune(),
                lambda: client.skills.create("s", "d"),
                lambda: client.skills.update("s", license="MIT", if_match="sha256:0"),
                lambda: client.skills.write_file("s", "a", "b", if_match="sha256:0"),
                lambda: client.skills.remove_file("s", "a"),
                lambda: client.skills.install(url="https://example.org/a.zip"),
                lambda: client.skills.preview(b""),
                lambda: client.drives.fill("d", b""),
                lambda: client.drives.fill("d", session="s", path="a"),
                lambda: client.grant("uid:1", "operator", "1h"),
                lambda: client.ready(),
                lambda: session.open_port(80),
                lambda: session.process("p").stdio(),
            ]
            for call in calls:
                before = server.accepted
                with self.assertRaises(ConnectionLost):
                    call()
                self.assertEqual(server.accepted, before + 1)

    def test_what_has_an_id_is_made_again(self) -> None:
        done = json.dumps({"id": "x", "session": "s", "status": "exited", "state": "running"}).encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(done) + done
        calls: List[Callable[[Client], Any]] = [
            lambda c: c.session("s").exec("true", id="x"),
            lambda c: c.session("s").start_exec("x", "true"),
            lambda c: c.create_session(id="x"),
            lambda c: c.session("s").start_process("x", "true"),
            lambda c: c.session("s").update(ttl="1h"),
            lambda c: c.session("s").stop(),
            lambda c: c.session("s").delete(),
            lambda c: c.workspaces.update("w", quota="1GiB"),
            lambda c: c.workspaces.delete("w"),
            lambda c: c.images.delete("i"),
            lambda c: c.skills.update("s", license="MIT"),
            lambda c: c.skills.write_file("s", "a", "b"),
            lambda c: c.skills.index(),
            lambda c: c.drives.update("d", push=True),
            lambda c: c.drives.mark_pushed("d", 1),
            lambda c: c.session("s").activate_skill("s"),
            lambda c: c.session("s").make_skill_environment("s"),
            lambda c: c.session("s").switch_drive("d"),
            lambda c: c.session("s").detach_drive("d"),
            lambda c: c.session("s").diff_root(),
            lambda c: c.session("s").preview_port(80),
            lambda c: c.drain(),
            lambda c: c.undrain(),
        ]
        for call in calls:
            with Server(says(b""), says(answer)) as server:
                try:
                    call(Client(server.path))
                except ProtocolError:
                    pass  # the answer is one of something else
                self.assertEqual(server.accepted, 2)

    def test_a_delete_whose_answer_was_lost_is_done(self) -> None:
        gone = b'{"type":"urn:boxd:problem:not_found","title":"","status":404,"detail":"no"}'
        answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(gone) + gone
        with Server(says(b""), says(answer)) as server:
            Client(server.path).session("s").delete()
        with Server(says(answer)) as server, self.assertRaises(NotFound):
            Client(server.path).session("s").delete()

    def test_unavailable_is_asked_again_when_that_is_safe(self) -> None:
        text = b'{"type":"urn:boxd:problem:unavailable","title":"","status":503,"detail":"no"}'
        answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        with Server(says(answer), says(ANSWER)) as server:
            self.assertEqual(Client(server.path).status().version, "v1")

    def test_a_list_has_all_pages(self) -> None:
        seen: List[bytes] = []

        def page(text: bytes) -> Callable[[socket.socket], None]:
            def serve(conn: socket.socket) -> None:
                seen.append(head(conn).partition(b" HTTP")[0])
                conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)

            return serve

        with Server(page(b'{"sessions":[{"id":"a"}],"next":"x&y"}'), page(b'{"sessions":[{"id":"b"}]}')) as server:
            self.assertEqual([s.id for s in Client(server.path).sessions(labels={"a": "b"})], ["a", "b"])
        self.assertEqual(seen, [b"GET /v1/sessions?label=a%3Db", b"GET /v1/sessions?label=a%3Db&after=x%26y"])

    def test_nobody_is_there(self) -> None:
        with self.assertRaises(ConnectError):
            Client("/nowhere/boxd.sock").status()
        with Server(silent) as server:
            path = server.path
        with self.assertRaises(ConnectError):
            Client(path).status()

    def test_a_silent_server(self) -> None:
        with Server(silent) as server:
            begin = time.monotonic()
            with self.assertRaises(RequestTimeout):
                Client(server.path, timeout=0.1).status()
            with self.assertRaises(RequestTimeout):
                Client(server.path, timeout=0.1).request("POST", "/v1/x", {})
            self.assertLess(time.monotonic() - begin, 200)

    def test_another_server(self) -> None:
        for answer in (
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\noops",
            b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17),
        ):
            with self.subTest(answer[:60]), Server(says(answer)) as server, self.assertRaises(ProtocolError):
                Client(server.path).status()

    def test_a_download_that_is_cut_is_no_file(self) -> None:
        for answer in (
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
        ):
            with Server(says(answer)) as server, self.assertRaises(ConnectionLost):
                for _ in Client(server.path).session("s").files.download_archive():
                    pass

    def test_a_refused_upload_says_why(self) -> None:
        text = b'{"type":"urn:boxd:problem:invalid","title":"","status":400,"detail":"no such thing"}'

        def serve(conn: socket.socket) -> None:
            head(conn)
            conn.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            conn.shutdown(socket.SHUT_RD)

        with Server(serve) as server, self.assertRaisesRegex(Exception, "no such thing"):
            Client(server.path).session("s").files.upload("a", (b"x" * 100000 for _ in range(1000)))


class Overtaken(Deque[Union[Output, Gap]]):
    """What has come, of which another thread takes the last and the result right after it was found to be empty."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def __len__(self) -> int:
        n = super().__len__()
        if self._stream.result is None:
            self.append(Output("stdout", b"last", 0))
            self._stream.result = decode(answers.ExecResult, EXIT["exit"])
        return n


class StreamsTest(Quick):
    def test_a_thread_that_writes_takes_the_last_output(self) -> None:
        stream = Stream(Client("/nonexistent"), None, "/", {}, {}, False)
        stream._items = Overtaken(stream)
        self.assertEqual([item.data for item in stream if isinstance(item, Output)], [b"last"])

    def test_half_frames(self) -> None:
        whole = control({"started": {"session": "s"}}) + frame(BINARY, b"\x01hello") + control(EXIT)
        for cut in range(0, len(whole), 3):

            def gone(conn: socket.socket) -> None:
                head(conn)
                text = b'{"type":"urn:boxd:problem:not_found","title":"","status":404,"detail":"no"}'
                conn.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(text) + text)

            with self.subTest(cut), Server(upgraded(whole[:cut]), gone) as server:
                with self.assertRaises(StreamEnded):
                    with Client(server.path).session("s").stream("true") as stream:
                        for _ in stream:
                            pass
                    self.fail("it has ended well")

    def test_a_program_that_has_not_begun_is_not_begun_twice(self) -> None:
        # Only attaching may follow: a second start might run the program again.
        seen: List[bytes] = []

        def note(conn: socket.socket) -> None:
            seen.append(head(conn))
            if len(seen) > 1:
                self.gives_up()

        with Server(upgraded(), note) as server, self.assertRaises(StreamEnded):
            with Client(server.path).session("s").stream("true"):
                pass
        attached = [request for request in seen if not request.startswith(b"DELETE ")]
        self.assertGreater(len(attached), 1)
        for request in attached:
            self.assertRegex(request, rb"^GET /v1/sessions/s/processes/[0-9a-f]{26}/stream ")

    def test_a_start_that_is_refused_is_not_tried_again(self) -> None:
        refused = control({"error": {"type": "urn:boxd:problem:exhausted", "title": "", "status": 429, "detail": "too many"}})
        with Server(upgraded(refused, then=silent)) as server:
            session = Client(server.path).session("s")
            with self.assertRaises(Exhausted), session.stream("true", id="x"):
                pass
            with self.assertRaises(Exhausted), session.process("p").attach():
                pass
            self.assertEqual(server.accepted, 2)

    def test_a_stream_goes_on_at_its_byte(self) -> None:
        process = {"id": "p", "session": "s"}
        first = control({"attached": {"process": process, "stdout": 0, "stderr": 0, "stdin": 0, "writer": False}}) + frame(BINARY, b"\x01hello")
        again = control({"attached": {"process": process, "stdout": 3, "stderr": 0, "stdin": 0, "writer": False}})
        again += frame(BINARY, b"\x01lo, wo", False) + frame(9, b"ping") + frame(0, b"rld") + control({"gap": {"stream": "stdout", "bytes": 4}}) + control(EXIT)
        with Server(upgraded(first), upgraded(again)) as server:
            with Client(server.path).session("s").process("p").attach(replay=True) as stream:
                items = list(stream)
        self.assertEqual([getattr(item, "data", None) for item in items], [b"hello", b", world", None])
        self.assertEqual([item.offset for item in items], [0, 5, 12])
        self.assertEqual((items[2].bytes, stream.stdout), (4, 16))  # type: ignore[union-attr]

    def test_a_stream_is_given_up(self) -> None:
        self.gives_up()
        started = control({"started": {"session": "s"}})
        with Server(upgraded(started), says(b"")) as server, self.assertRaises(StreamEnded):
            with Client(server.path).session("s").stream("true") as stream:
                stream.wait()

    def test_rules_that_are_broken(self) -> None:
        started = control({"started": {"session": "s"}})
        for name, data in {
            "text": frame(1, b"hello"),
            "empty": frame(BINARY, b""),
            "unknown channel": frame(BINARY, b"\x07hello"),
            "no JSON": frame(BINARY, b"\x03{"),
            "no object": frame(BINARY, b"\x03[]"),
            "masked": b"\x82\x81abcd1",
            "policy": frame(CLOSE, b"\x03\xf0you have broken the rules"),
        }.items():
            with self.subTest(name), Server(upgraded(started + data, then=silent)) as server, self.assertRaises(ProtocolError):
                with Client(server.path).session("s").stream("true") as stream:
                    stream.wait()

    def test_no_websocket(self) -> None:
        for answer in (ANSWER, b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: wrong\r\n\r\n"):
            with Server(says(answer)) as server, self.assertRaises(ProtocolError):
                with Client(server.path).session("s").stream("true"):
                    pass

    def test_events_go_on_after_the_last_one(self) -> None:
        seen: List[bytes] = []
        event = b'id: %d\ndata: {"id":"e%d","time":"","type":"oom"}\n\n'
        begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

        def chunk(data: bytes) -> bytes:
            return b"%x\r\n%b\r\n" % (len(data), data)

        def serve(data: bytes) -> Any:
            def one(conn: socket.socket) -> None:
                seen.append(head(conn).partition(b" HTTP")[0])
                conn.sendall(data)

            return one

        half = begin + chunk(b": comment\n\n" + event % (1, 1) + b"data: {half")
        with Server(serve(half), serve(b""), serve(begin + chunk(event % (2, 2)))) as server:
            with Client(server.path).events() as events:
                self.assertEqual([next(events).id, next(events).id], ["e1", "e2"])
        self.assertEqual(seen[0], b"GET /v1/events?follow=true")
        self.assertEqual(seen[1:], [b"GET /v1/events?after=e1&follow=true"] * 2)
        seen.clear()
        with Server(serve(begin + chunk(b"id: p1\n\n")), serve(begin + chunk(b"id: p2\n\nid: half\n")), serve(begin + chunk(event % (3, 3)))) as server:
            with Client(server.path).events(after="latest") as events:
                self.assertEqual(next(events).id, "e3")
        self.assertEqual(seen, [b"GET /v1/events?after=%b&follow=true" % after for after in (b"latest", b"p1", b"p2")])
        self.gives_up()
        Pace.most = 60.0  # no connection lasts so long
        with Server(serve(begin + chunk(b"id: p1\n\n"))) as server:  # which says where it is and ends, each time
            with self.assertRaises(ConnectionLost):
                next(Client(server.path).events(after="latest"))

    def test_a_watch_that_is_cut_is_an_error(self) -> None:
        line = b'{"event":"watching"}\n'
        with Server(says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n" + line + b"\r\n")) as server:
            with self.assertRaises(ConnectionLost), Client(server.path).session("s").files.watch() as watch:
                self.assertEqual(next(watch).event, "watching")
                next(watch)
            self.assertEqual(server.accepted, 1)


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def test_a_task_that_is_cancelled_ends_its_connection(self) -> None:
        ended: List[bool] = []

        def serve(conn: socket.socket) -> None:
            try:
                silent(conn)
            finally:
                ended.append(True)

        with Server(serve) as server:
            client = AsyncClient(server.path)
            task = asyncio.create_task(client.session("s").exec("true"))
            while not server.accepted:
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            for _ in range(30_000):
                if ended:
                    break
                await asyncio.sleep(0.01)
            self.assertEqual(ended, [True])

    async def test_a_timeout_of_the_caller_loses_no_byte(self) -> None:
        started = control({"started": {"session": "s"}})

        late = threading.Semaphore(0)

        def slowly(conn: socket.socket) -> None:
            data = frame(BINARY, b"\x01" + bytes(range(200))) + control(EXIT)
            for at in range(len(data)):
                conn.sendall(data[at : at + 1])
                if at % 50 == 0:  # nor anywhere else in a frame
                    late.acquire(timeout=60)
            silent(conn)

        with Server(upgraded(started, then=slowly)) as server:
            got, tries = b"", 0
            async with AsyncClient(server.path).session("s").stream("true", id="x") as stream:
                while stream.result is None:
                    try:
                        item = await asyncio.wait_for(stream.__anext__(), 0.005)
                        got += item.data  # type: ignore[union-attr]
                    except asyncio.TimeoutError:
                        tries += 1
                        late.release()
                    except StopAsyncIteration:
                        break
            self.assertEqual(got, bytes(range(200)))
            self.assertGreater(tries, 4)

    async def test_tasks_that_send_at_once_all_end(self) -> None:
        size, came, go = 4_000_000, [0], threading.Event()

        def late(conn: socket.socket) -> None:
            go.wait(60)
            while came[0] < 2 * size:
                came[0] += len(conn.recv(1 << 16)) or 2 * size

        with Server(late) as server:
            conn = await connect(Address(server.path, TLS(None, None, None)), 60)
            sending = [asyncio.ensure_future(conn.send(bytes(size), 60)) for _ in range(2)]
            await asyncio.sleep(0.1)
            go.set()
            await asyncio.wait_for(asyncio.gather(*sending), 60)
            conn.close()
        self.assertEqual(came, [2 * size])

    async def test_a_silent_server(self) -> None:
        with Server(silent) as server:
            with self.assertRaises(RequestTimeout):
                await AsyncClient(server.path, timeout=0.1).request("POST", "/v1/x", {})


if __name__ == "__main__":
    unittest.main()
