# SPDX-License-Identifier: Apache-2.0

"""A real boxd: at BOXD_SOCKET, and at BOXD_HTTP with BOXD_HTTP_TOKEN."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import os
import tarfile
import threading
import time
import unittest
from typing import AsyncIterator, List, Optional, Union
from unittest.mock import patch

import boxd
from boxd import AsyncClient, Client, Conflict, Gap, Invalid, NotFound, Output
from boxd._output import WINDOW, Input

from .faults import Server, through

SOCKET = os.environ["BOXD_SOCKET"]


def connections() -> int:
    """Sockets that this process has."""
    gc.collect()
    n = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            n += os.readlink("/proc/self/fd/" + fd).startswith("socket:")
        except OSError:
            pass
    return n


def joined(items: List[Union[Output, Gap]], stream: str = "stdout") -> bytes:
    return b"".join(item.data for item in items if isinstance(item, Output) and item.stream == stream)


ALTERNATE = "i=0; while [ $i -lt 1000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
ALTERNATED = "".join(f"out {n}\nerr {n}\n" for n in range(1000))


class Box(unittest.TestCase):
    """A test with a session."""

    def setUp(self) -> None:
        self.before = connections()
        self.client = Client()
        self.session = self.client.create_session(memory="128MiB", labels={"test": self._testMethodName})
        self.addCleanup(self._remove)

    def _remove(self) -> None:
        try:
            self.session.delete()
        except NotFound:
            pass
        self.assertEqual(connections(), self.before)


class SessionsTest(Box):
    def test_a_session_is_got_or_created(self) -> None:
        with self.client.create_session(id="py/1", ttl="1h", memory="128MiB", metadata={"chat": "1"}) as one:
            self.assertTrue(one.created)
            again = self.client.create_session(id="py/1", memory="128MiB")
            self.assertFalse(again.created)
            with self.assertRaises(Conflict) as caught:
                self.client.create_session(id="py/1", memory="256MiB")
            self.assertEqual(caught.exception.field, "memory")
            self.assertEqual(one.update(ttl="2h", labels={"a": "b"}).ttl, "2h")
            self.assertEqual(one.get().labels, {"a": "b"})
            self.assertEqual([s.id for s in self.client.sessions(labels={"a": "b"})], ["py/1"])
            found = self.client.sessions(metadata={"chat": "1"}, with_metadata=True)
            self.assertEqual([s.metadata for s in found], [{"chat": "1"}])
            self.assertEqual(one.renew().id, "py/1")
        with self.assertRaises(NotFound) as gone:
            one.get()
        self.assertEqual((gone.exception.code, gone.exception.status), ("not_found", 404))
        self.assertTrue(gone.exception.request_id)

    def test_a_stopped_session_keeps_its_files(self) -> None:
        self.session.files.write("kept", "yes")
        self.assertEqual(self.session.stop().state, "stopped")
        self.assertEqual(self.session.start().state, "ready")
        self.assertEqual(self.session.files.read_text("kept"), "yes")

    def test_a_request_that_is_wrong_says_how(self) -> None:
        with self.assertRaises(Invalid) as caught:
            self.client.create_session(memory="1KiB")
        error = caught.exception
        self.assertEqual((error.field, error.value), ("memory", "1KiB"))
        self.assertIn("MiB", error.allowed or "")

    def test_a_plan_creates_nothing(self) -> None:
        self.assertTrue(self.client.plan_session(id="planned", memory="64MiB").dry_run)
        with self.assertRaises(NotFound):
            self.client.session("planned").get()
        self.assertEqual(self.session.plan_exec("ls").exec.argv, ["ls"])  # type: ignore[union-attr]

    def test_other_routes(self) -> None:
        self.assertIn("default", self.client.request("GET", "/v1/profiles")["profiles"])
        self.assertIn("box", self.session.instructions())
        self.assertEqual(self.client.run("echo", "once").stdout, "once\n")


class ExecTest(Box):
    def test_results(self) -> None:
        result = self.session.exec("sh", "-c", "echo out; echo err >&2; exit 3")
        self.assertEqual((result.status, result.exit_code, result.stdout, result.stderr), ("exited", 3, "out\n", "err\n"))
        self.assertEqual(self.session.exec(command="sort", stdin="b\na\n").stdout, "a\nb\n")
        self.assertEqual(self.session.exec("sleep", "60", timeout="100ms").status, "timed_out")
        failed = self.session.exec("nosuch")
        self.assertEqual((failed.status, failed.failure.errno), ("start_failed", "ENOENT"))  # type: ignore[union-attr]

    def test_an_id_runs_once(self) -> None:
        for _ in range(2):
            self.assertEqual(self.session.exec(id="once", command="echo x >> n; wc -l < n").stdout, "1\n")

    def test_a_detached_program_goes_on(self) -> None:
        process = self.session.start_exec("later", command="sleep 0.2; echo done")
        self.assertEqual(process.wait().result.stdout, "done\n")  # type: ignore[union-attr]

    def test_output_as_it_comes(self) -> None:
        with self.session.stream(command="echo one; read x; echo two >&2; exit 4", stdin=True) as stream:
            self.assertEqual(next(stream), Output("stdout", b"one\n", 0))
            stream.write(b"\n")
            self.assertEqual(joined(list(stream), "stderr"), b"two\n")
            self.assertEqual(stream.result.exit_code, 4)  # type: ignore[union-attr]
        self.assertEqual(self.session.processes(), [])  # it has been forgotten

    def test_both_streams_in_one_order(self) -> None:
        result = self.session.exec(command=ALTERNATE, merge_output=True)
        self.assertEqual((result.stdout, result.stderr), (ALTERNATED, ""))
        with self.session.stream(command=ALTERNATE, merge_output=True) as stream:
            self.assertEqual(stream.communicate(), (ALTERNATED.encode(), b""))
        process = self.session.start_process("p", command=ALTERNATE, merge_output=True)
        self.assertEqual(process.wait().result.stdout, ALTERNATED)  # type: ignore[union-attr]
        self.assertEqual(joined(list(process.logs())), ALTERNATED.encode())
        with self.assertRaises(Invalid) as refused:
            self.session.start_process("t", "sh", merge_output=True, terminal={"rows": 24, "cols": 80})
        self.assertEqual(refused.exception.field, "merge_output")

    def test_output_on_disk(self) -> None:
        process = self.session.start_process("spooled", command="seq 400000", spool="8MiB")
        self.assertEqual((process.wait().spool, process.wait().output[0].from_), (8 << 20, 0))
        self.assertEqual(joined(list(process.logs())), b"".join(b"%d\n" % n for n in range(1, 400001)))
        with self.assertRaises(Invalid) as refused:
            self.session.exec(command="true", spool="8MiB")
        self.assertEqual(refused.exception.field, "spool")

    def test_much_in_both_directions(self) -> None:
        data = os.urandom(3_000_000)
        with self.session.stream("cat", stdin=True) as stream:
            out, err = stream.communicate(data)
        self.assertEqual((hashlib.sha256(out).hexdigest(), err), (hashlib.sha256(data).hexdigest(), b""))

    def test_one_thread_writes_and_another_reads(self) -> None:
        self.echoed(os.urandom(1_000_000), "cat")

    def test_a_confirmation_comes_before_a_writer_waits_for_it(self) -> None:
        waiting, late = Input.waiting.fget, []  # type: ignore[attr-defined]

        def asked(input: Input) -> int:
            n: int = waiting(input)
            if n > WINDOW - 999:
                self.session.files.write("full", b"")
                end = time.monotonic() + 5
                while waiting(input) and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(0.1)  # the reader has taken the last confirmation, and waits for a message
                late.append(waiting(input))
            return n

        with patch.object(Input, "waiting", property(asked)):
            self.echoed(os.urandom(2 * WINDOW), "until [ -e full ]; do sleep 0.01; done; exec cat")
        self.assertIn(0, late)

    def echoed(self, data: bytes, command: str) -> None:
        """One thread writes it to a program that repeats it, and another reads it."""
        with self.session.stream(command=command, stdin=True, timeout="2m") as stream:

            def write() -> None:
                for at in range(0, len(data), 999):
                    stream.write(data[at : at + 999])
                stream.close_stdin()

            thread = threading.Thread(target=write)
            thread.start()
            items = list(stream)
            thread.join()
            self.assertEqual(stream.result.exit_code, 0)  # type: ignore[union-attr]
        self.assertEqual([item for item in items if isinstance(item, Gap)], [])
        self.assertEqual(joined(items), data)

    def test_a_program_ends_while_a_thread_writes(self) -> None:
        following = Input.next
        failed: List[Exception] = []

        def late(input: Input) -> Optional[bytes]:
            data = following(input)
            end = time.monotonic() + 5
            while data and stream._conn is not None and time.monotonic() < end:
                time.sleep(0.01)
            return data

        def write() -> None:
            try:
                stream.write(b"x")
            except Exception as error:
                failed.append(error)

        with self.session.stream("sleep", "0.5", stdin=True) as stream, patch.object(Input, "next", late):
            thread = threading.Thread(target=write)
            thread.start()
            self.assertEqual(stream.wait().exit_code, 0)
            thread.join()
        self.assertEqual(failed, [])

    def test_signals_and_terminals(self) -> None:
        with self.session.stream(command="trap 'stty size; exit 5' INT; echo up; while :; do sleep 0.05; done", terminal={"rows": 20, "cols": 70}) as stream:
            said = b""
            while len(said) < len(b"up\r\n"):  # a terminal may give the end of a line separately
                said += next(stream).data  # type: ignore[union-attr]
            self.assertEqual(said, b"up\r\n")
            stream.resize(30, 90)
            stream.signal("SIGINT")
            self.assertIn(b"30 90", joined(list(stream)))
            self.assertEqual(stream.result.exit_code, 5)  # type: ignore[union-attr]

    def test_leaving_a_stream_ends_its_program(self) -> None:
        with self.session.stream(command="echo $$; exec sleep 1000") as stream:
            next(stream)
        self.assertEqual(self.session.processes(), [])
        self.assertEqual(self.session.exec(command="pgrep -x sleep | wc -l").stdout, "0\n")

    def test_what_cannot_begin(self) -> None:
        with self.assertRaises(Invalid):
            with self.session.stream(command="x", memory="no size"):
                pass
        with self.session.stream("nosuch") as stream:
            self.assertEqual(stream.wait().status, "start_failed")
        with self.assertRaises(NotFound):
            with self.client.session("nosuch").stream("true"):
                pass


class CutTest(Box):
    """Connections that are cut at every place have no effect."""

    def test_output_that_is_cut_is_whole(self) -> None:
        want = b"".join(b"%06d\n" % n for n in range(20000))
        cuts = [through(SOCKET, cut) for cut in (600, 1, 5000, 70000, 0, 900, 40000)]
        with Server(*cuts, through(SOCKET)) as server:
            session = Client(server.path).session(self.session.id)
            with session.stream(command="seq -f %06g 0 19999; exit 7", lease="1m") as stream:
                items = list(stream)
                self.assertEqual(stream.result.exit_code, 7)  # type: ignore[union-attr]
            self.assertGreater(server.accepted, len(cuts))
        self.assertEqual(joined(items), want)
        self.assertFalse([item for item in items if isinstance(item, Gap)])

    def test_input_that_is_cut_arrives_once(self) -> None:
        data = os.urandom(600_000)
        cuts = [through(SOCKET, cut) for cut in (700, 3000, 100000, 900, 200000)]
        with Server(*cuts, through(SOCKET)) as server:
            session = Client(server.path).session(self.session.id)
            patience = patch("boxd._client._WRITER_PATIENCE", 30.0)  # where all is slow, boxd sees late that a connection has ended
            with patience, session.stream("cat", stdin=True, lease="1m") as stream:
                out, _ = stream.communicate(data)
            self.assertGreater(server.accepted, len(cuts))
        self.assertEqual(out, data)

    def test_logs_that_are_cut_are_whole(self) -> None:
        process = self.session.start_process("count", command="for i in $(seq 300); do echo $i; done; sleep 0.3; echo end")
        with Server(through(SOCKET, 500), through(SOCKET, 5000), through(SOCKET)) as server:
            logs = Client(server.path).session(self.session.id).process(process.id).logs(follow=True)
            self.assertEqual(joined(list(logs)).split(), [b"%d" % n for n in range(1, 301)] + [b"end"])


class ProcessesTest(Box):
    def test_a_process_is_left_and_found_again(self) -> None:
        process = self.session.start_process("cat", "cat", stdin=True, restart={"policy": "no"})
        self.assertEqual(self.session.start_process("cat", "cat", stdin=True, restart={"policy": "no"}).info.starts, 1)  # type: ignore[union-attr]
        with process.attach(write=True) as stream:
            stream.write(b"one\n")
            self.assertEqual(next(stream), Output("stdout", b"one\n", 0))
            at = stream.stdout
            with self.assertRaises(boxd.WriterLost), process.attach(write=True):
                pass
        with process.attach(stdout=at, write=True, take_over=True) as stream:
            stream.write(b"two\n")
            self.assertEqual(next(stream), Output("stdout", b"two\n", 4))
            stream.close_stdin()
            self.assertEqual(stream.wait().exit_code, 0)
        with process.attach(replay=True) as stream:
            self.assertEqual(joined(list(stream)), b"one\ntwo\n")
        self.assertEqual(joined(list(process.logs(lines=1))), b"two\n")
        process.delete()
        with self.assertRaises(NotFound):
            process.get()

    def test_another_writer_takes_over(self) -> None:
        process = self.session.start_process("cat", "cat", stdin=True)
        with process.attach(write=True) as one, process.attach(write=True, take_over=True) as other:
            other.write(b"hello\n")
            self.assertEqual(next(one).data, b"hello\n")  # type: ignore[union-attr]
            other.close_stdin()
            self.assertEqual(one.wait().exit_code, 0)
            with self.assertRaises(boxd.WriterLost):
                one.write(b"mine\n")

    def test_a_writer_that_waits_is_replaced(self) -> None:
        process = self.session.start_process("s", "sleep", "1000", stdin=True)
        with process.attach(write=True) as one:
            other = threading.Timer(0.5, lambda: process.attach(write=True, take_over=True).__enter__().close())
            other.start()
            with self.assertRaises(boxd.WriterLost):
                one.write(bytes(4 * WINDOW))
            other.join()
        process.delete()

    def test_state_and_end(self) -> None:
        process = self.session.start_process("s", "sleep", "1000", stop={"signal": "SIGTERM", "grace": "5s"}, lease="1m")
        self.assertEqual(process.get(wait=1).state, "running")
        self.assertEqual(process.renew().lease, "1m")
        process.signal("SIGCONT")
        self.assertEqual([p.id for p in self.session.processes()], ["s"])
        self.assertEqual(process.stop().reason, "stopped")
        self.assertEqual(process.wait().result.signal, "SIGTERM")  # type: ignore[union-attr]


class FilesTest(Box):
    def test_files(self) -> None:
        files = self.session.files
        self.assertTrue(files.write("a/b.txt", "one\ntwo\n").created)
        files.write("a/b.bin", b"\x00\xff")
        self.assertEqual((files.read("a/b.bin"), files.read_text("a/b.txt")), (b"\x00\xff", "one\ntwo\n"))
        self.assertEqual(files.read_part("a/b.txt", offset=2).content, "two\n")
        self.assertEqual(files.edit("a/b.txt", {"old": "two", "new": "three"}).edits[0].line, 2)
        self.assertEqual([e.path for e in files.list("a").entries], ["b.bin", "b.txt"])
        self.assertEqual([e.path for e in files.glob("**/*.txt").entries], ["a/b.txt"])
        self.assertEqual(files.grep("^t").files[0].lines[0].text, "three")  # type: ignore[index]
        files.mkdir("c")
        files.move("a/b.txt", "c/d.txt")
        files.chmod("c/d.txt", "600")
        self.assertEqual(files.stat("c/d.txt").mode, "0600")
        self.assertEqual((files.exists("a/b.txt"), files.exists("c/d.txt")), (False, True))
        files.remove("a", recursive=True)
        with self.assertRaises(NotFound) as caught:
            files.read("a/b.bin")
        self.assertEqual(caught.exception.file_kind, "not_found")
        with self.assertRaises(NotFound):
            self.client.session("nosuch").files.exists("a")

    def test_files_of_any_size(self) -> None:
        files = self.session.files
        pieces = [os.urandom(100_000) for _ in range(30)]
        self.assertEqual(files.upload("big", iter(pieces)).file.size, 3_000_000)
        with files.open("big", offset=2_999_000) as part:
            self.assertEqual((part.size, part.read()), (1000, pieces[-1][-1000:]))
        self.assertEqual(files.open("big", offset=-5).read(), pieces[-1][-5:])
        with Server(through(SOCKET, 50_000), through(SOCKET)) as server:
            self.assertEqual(Client(server.path).session(self.session.id).files.read("big"), b"".join(pieces))

    def test_archives(self) -> None:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            info = tarfile.TarInfo("dir/file")
            info.size = 5
            archive.addfile(info, io.BytesIO(b"hello"))
        self.assertEqual(self.session.files.upload_archive(data.getvalue(), "/workspace/in").bytes, 5)
        with self.session.files.download_archive("/workspace/in") as download:
            with tarfile.open(fileobj=io.BytesIO(download.read())) as archive:
                self.assertIn("dir/file", [name.lstrip("./") for name in archive.getnames()])

    def test_a_directory_is_watched(self) -> None:
        self.session.files.mkdir("w")
        with self.session.files.watch("w", recursive=True) as watch:
            self.assertEqual(next(watch).event, "watching")
            self.session.files.mkdir("w/d")
            self.assertEqual((next(watch).event), "create")
            self.session.exec("rm", "-r", "w")
            events = [(event.event, event.path) for event in watch]  # to its end: it is gone
            self.assertIn(("remove", "d"), events)


class MountsTest(Box):
    def test_mounts(self) -> None:
        source = os.environ["BOXD_TEST_SOURCE"]
        mount = self.session.add_mount(source, "/mnt/data", mode="ro")
        self.assertEqual((mount.target, mount.mode, mount.live), ("/mnt/data", "ro", True))
        self.assertEqual([m.source for m in self.session.mounts() if m.live], [source])
        with self.session.stream(command="cd /mnt/data && echo in && sleep 100") as stream:
            next(stream)
            with self.assertRaises(Conflict) as caught:
                self.session.remove_mount("/mnt/data")
            self.assertTrue(caught.exception.users)
        self.session.remove_mount("/mnt/data", force=True)
        self.assertEqual([m for m in self.session.mounts() if m.live], [])


class EventsTest(Box):
    def test_events_go_on_where_they_were_left(self) -> None:
        self.session.exec("true")
        with self.client.events(session=self.session.id) as events:
            self.assertEqual([next(events).type, next(events).type], ["session.started", "exec.started"])
        with self.client.events(session=self.session.id, after=events.last_id) as more:
            self.assertEqual(next(more).type, "exec.ended")
        types = [e.type for e in self.client.events(follow=False, session=self.session.id, types=["exec.ended"])]
        self.assertEqual(types, ["exec.ended"])

    def test_events_that_are_cut_are_whole(self) -> None:
        for _ in range(10):
            self.session.exec("true")
        with Server(through(SOCKET, 1500), through(SOCKET, 2500), through(SOCKET)) as server:
            with Client(server.path).events(session=self.session.id) as events:
                types = [next(events).type for _ in range(21)]
        self.assertEqual(types, ["session.started"] + ["exec.started", "exec.ended"] * 10)


class TCPTest(unittest.TestCase):
    def test_a_token_over_tcp(self) -> None:
        address, token = os.environ["BOXD_HTTP"], os.environ["BOXD_HTTP_TOKEN"]
        with Client(address, token=token).create_session() as session:
            self.assertEqual(session.exec("echo", "tcp").stdout, "tcp\n")
            process = session.start_process("p", "cat", stdin=True)
            with process.attach(write=True) as stream:
                stream.write(b"tcp\n")
                self.assertEqual(next(stream).data, b"tcp\n")  # type: ignore[union-attr]
                at = stream.stdout
            with process.attach(stdout=at, write=True, take_over=True) as stream:  # boxd may see later that the first has gone
                stream.close_stdin()
                self.assertEqual(stream.wait().exit_code, 0)
            with session.stream("cat", stdin=True) as stream:
                self.assertEqual(stream.communicate(b"x" * 500_000)[0], b"x" * 500_000)
        with self.assertRaises(boxd.Unauthenticated):
            Client(address, token="wrong").sessions()


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.before = connections()
        self.client = AsyncClient()
        self.session = await self.client.create_session(memory="128MiB")

    async def asyncTearDown(self) -> None:
        await self.session.delete()
        await asyncio.sleep(0)
        self.assertEqual(connections(), self.before)

    async def test_all_of_it(self) -> None:
        self.assertEqual((await self.session.exec("echo", "hi")).stdout, "hi\n")
        self.assertEqual((await self.session.exec(command=ALTERNATE, merge_output=True)).stdout, ALTERNATED)
        async with self.session.stream(command=ALTERNATE, merge_output=True) as stream:
            self.assertEqual(await stream.communicate(), (ALTERNATED.encode(), b""))
        async with self.session.stream("cat", stdin=True) as stream:
            out, _ = await stream.communicate(b"x" * 1_000_000)
        self.assertEqual(len(out), 1_000_000)
        await self.session.files.upload("f", self.pieces())
        self.assertEqual(await self.session.files.read("f"), b"012")
        process = await self.session.start_process("p", command="echo a; echo b >&2")
        self.assertEqual(sorted([o.data async for o in process.logs(follow=True)]), [b"a\n", b"b\n"])  # type: ignore[union-attr]
        async with self.session.files.watch() as watch:
            self.assertEqual((await watch.__anext__()).event, "watching")
        async with self.client.events(session=self.session.id) as events:
            self.assertEqual((await events.__anext__()).type, "session.started")
        with self.assertRaises(NotFound):
            await self.client.session("nosuch").get()

    @staticmethod
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(3):
            yield b"%d" % n

    async def test_fifty_at_a_time(self) -> None:
        results = await asyncio.gather(*(self.session.exec("echo", str(n)) for n in range(50)))
        self.assertEqual([r.stdout for r in results], [f"{n}\n" for n in range(50)])

    async def test_cancelled_tasks_leave_nothing(self) -> None:
        async def look() -> None:
            async with self.session.stream(command="echo up; exec sleep 1000") as stream:
                async for _ in stream:
                    up.release()

        up = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(look()) for _ in range(10)] + [asyncio.create_task(self.session.exec("sleep", "1000", timeout="10m")) for _ in range(10)]
        for _ in range(10):
            await up.acquire()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.assertEqual(connections(), self.before)
        end = time.monotonic() + 90
        while (await self.session.get()).running and time.monotonic() < end:
            await asyncio.sleep(0.05)
        self.assertEqual((await self.session.get()).running, 0)
        self.assertEqual(await self.session.processes(), [])
        self.assertEqual((await self.session.exec(command="pgrep -x sleep | wc -l")).stdout, "0\n")


if __name__ == "__main__":
    unittest.main()
