# SPDX-License-Identifier: Apache-2.0

"""The rest of the API, and streams of lines, with the same boxd as test_boxd."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import unittest
import zipfile
from typing import Any, Callable, Dict, List, Optional
from unittest.mock import patch

from boxd import AsyncClient, Client, Conflict, Gap, Invalid, NotFound, Output, OutputMissing, ProtocolError, StreamEnded, Unavailable, Unsupported

from .faults import Server, says, through
from .test_boxd import SOCKET, Box, connections, joined


def tar(files: Dict[str, str]) -> bytes:
    """A tar archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content.encode()))
    return data.getvalue()


def names(archive: bytes) -> List[str]:
    """The names in a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return sorted(name[2:] if name.startswith("./") else name for name in opened.getnames())


class BoxdTest(Box):
    def test_what_boxd_says_of_itself(self) -> None:
        with Client() as client:
            client.ready()
            self.assertIn("default", client.profiles().profiles)
            self.assertIn("box", client.instructions(profile="offline_readonly"))
            self.assertTrue(client.doctor().checks)
            self.assertTrue(client.configuration().settings)
            self.assertTrue(client.usage(days=1).days)
            self.assertTrue(client.status().version)
            self.assertIsInstance(client.errors(), list)
            self.session.update(labels={"a": "b"})
            records = client.audit(n=5, session=self.session.id).records
            self.assertEqual(records[-1].route, "PATCH /v1/sessions/{id}")

    def test_no_new_sessions(self) -> None:
        self.addCleanup(self.client.undrain)
        self.assertEqual(self.client.drain("a new disk").reason, "a new disk")
        self.assertEqual(self.client.drain("another").reason, "a new disk")
        with self.assertRaises(Unavailable):
            self.client.ready()
        self.client.undrain()
        self.client.ready()

    def test_roles_for_a_time(self) -> None:
        self.assertEqual(self.client.grant("uid:4242", "operator", "1h").role, "operator")
        self.assertEqual([g.principal for g in self.client.grants()], ["uid:4242"])
        self.client.revoke("uid:4242")
        self.assertEqual(self.client.grants(), [])

    def test_freezing(self) -> None:
        for ask, state in ((self.session.freeze, "frozen"), (self.session.thaw, "ready")):
            try:
                self.assertEqual(ask().state, state)
            except Unsupported:
                pass  # on a host without cgroups

    def test_snapshots(self) -> None:
        self.session.files.write("kept", "one")
        with self.assertRaises(Conflict):
            self.session.create_snapshot("first")
        self.session.stop()
        self.assertEqual(self.session.files.read_text("kept"), "one")
        definition = self.session.definition()
        self.assertEqual((definition.paths, definition.left_out), (["/workspace"], []))
        self.assertEqual(definition.session["id"], self.session.id)
        self.assertEqual(self.session.snapshots(), [])
        try:
            made = self.session.create_snapshot("first")
        except Unsupported:  # on a filesystem without reflink
            for ask in (self.session.restore_snapshot, self.session.delete_snapshot):
                with self.assertRaises(Unsupported):
                    ask("first")
            return
        self.assertGreater(made.size, 0)
        self.assertEqual(self.session.snapshots(), [made])
        self.session.start()
        self.session.files.write("kept", "two")
        self.session.stop()
        self.assertEqual(self.session.restore_snapshot("first").state, "stopped")
        self.session.start()
        self.assertEqual(self.session.files.read_text("kept"), "one")
        self.session.delete_snapshot("first")
        with self.assertRaises(NotFound):
            self.session.delete_snapshot("first")

    def test_usage_over_time(self) -> None:
        history = self.session.usage_history(after="2026-11-21T09:30:00Z")
        self.assertTrue(history.interval)

    def test_a_program_in_a_session_of_its_own(self) -> None:
        with self.client.stream(command="read x; echo got $x; exit 3", session={"memory": "128MiB"}, stdin=True) as stream:
            out, _ = stream.communicate(b"it\n")
            self.assertEqual((out, stream.result.exit_code), (b"got it\n", 3))  # type: ignore[union-attr]
        before = len(self.client.sessions())
        with self.client.stream(command="echo up; exec sleep 1000") as stream:
            self.assertEqual(next(stream), Output("stdout", b"up\n", 0))
            self.assertEqual(len(self.client.sessions()), before + 1)
        with self.assertRaises(Invalid):
            with self.client.stream("true", session={"memory": "no size"}):
                pass

    def test_what_cannot_go_on_is_not_begun_again(self) -> None:
        with Server(through(SOCKET, 700), through(SOCKET)) as server:
            with self.assertRaises(StreamEnded):
                with Client(server.path).stream(command="for i in $(seq 1000); do echo $i; done; sleep 1000") as stream:
                    stream.wait()
            self.assertEqual(server.accepted, 1)


class KeptTest(Box):
    """What outlives sessions."""

    def test_workspaces(self) -> None:
        spaces = self.client.workspaces
        space = spaces.create("py-project", quota="8MiB", inodes=1000)
        self.addCleanup(self._gone, spaces.delete, "py-project", "py-kept")
        self.assertEqual((space.name, space.quota, space.inodes), ("py-project", 8 << 20, 1000))
        with self.assertRaises(Conflict):
            spaces.create("py-project")
        with self.client.create_session(workspace="py-project"):
            self.assertEqual(len(spaces.get("py-project").sessions), 1)
            with self.assertRaises(Conflict):
                spaces.delete("py-project")
        self.assertEqual(spaces.update("py-project", quota="16MiB").quota, 16 << 20)
        self.session.files.write("here", "yes")
        self.assertEqual(self.session.keep_workspace("py-kept").name, "py-kept")
        self.assertEqual([w.name for w in spaces.list()], ["py-kept", "py-project"])
        with self.client.create_session(workspace="py-kept") as other:
            self.assertEqual(other.files.read_text("here"), "yes")
        spaces.delete("py-project")
        with self.assertRaises(NotFound):
            spaces.get("py-project")

    def _gone(self, delete: Callable[[str], None], *made: str) -> None:
        self._remove()
        for name in made:
            try:
                delete(name)
            except NotFound:
                pass

    def test_images(self) -> None:
        images = self.client.images
        made = images.upload(tar({"etc/issue": "one"}), "py/mine:1", form="rootfs")
        self.addCleanup(self._gone, images.delete, "py/mine:1", "py/mine:2")
        self.assertEqual((made.name, made.form, made.entries), ("py/mine:1", "rootfs", 2))
        self.assertEqual(images.get(made.digest).name, "py/mine:1")
        self.assertIn("py/mine:1", [image.name for image in images.list()])
        with self.client.create_session(image="py/mine:1", read_only_root=False) as session:
            session.files.write("/etc/motd", "hello")
            session.files.remove("/etc/issue")
            diff = session.diff_root(limit=5)
            self.assertEqual(([c.path for c in diff.created], [c.path for c in diff.removed]), (["/etc/motd"], ["/etc/issue"]))
            self.assertEqual(session.discard_root(["/etc/issue"]).restored, 1)
            self.assertEqual(session.files.read_text("/etc/issue"), "one")
            second = session.commit_image("py/mine:2", env={"A": "b"}, working_dir="/srv")
            self.assertEqual((second.form, second.config.env), ("commit", ["A=b"]))
        images.delete("py/mine:2")
        self.assertIn("py/mine:1", [image.name for image in images.prune()])
        with self.assertRaises(NotFound):
            images.get("py/mine:1")

    def test_skills(self) -> None:
        skills = self.client.skills
        made = skills.create("py-report", "Makes reports.", instructions="# Do\n", metadata={"v": "1"})
        self.addCleanup(self._gone, skills.delete, "py-report", "py-one", "py-two")
        with self.assertRaises(Conflict):
            skills.create("py-report", "Makes reports.")
        self.assertIn("py-report", [skill.name for skill in skills.list()])
        better = skills.update("py-report", description="Makes better reports.", if_match=made.digest)
        with self.assertRaises(Conflict):
            skills.update("py-report", license="MIT", if_match=made.digest)
        self.assertEqual(skills.get("py-report").digest, better.digest)
        skills.write_file("py-report", "scripts/run", b"hi", executable=True, if_match=better.digest)
        skills.write_file("py-report", "requirements.txt", "# none\n")
        self.assertEqual([entry.name for entry in skills.files("py-report", "scripts").entries], ["run"])
        file = skills.read_file("py-report", "scripts/run")
        self.assertEqual((file.content, file.executable), ("hi", True))
        index = skills.index(["py-report", "gone"], location="/skills")
        self.assertIn("/skills/py-report/SKILL.md", index.text)
        self.assertEqual(index.missing, ["gone"])

        self.assertEqual(self.session.activate_skill("py-report").target, "/skills/py-report")
        self.assertEqual(self.session.exec("cat", "/skills/py-report/scripts/run").stdout, "hi")
        self.assertTrue(self.session.make_skill_environment("py-report", env={"PIP_NO_INDEX": "1"}, timeout="2m").made)
        self.assertFalse(self.session.make_skill_environment("py-report").made)
        self.session.deactivate_skill("py-report", force=True)
        skills.remove_file("py-report", "scripts")
        self.assertEqual([entry.name for entry in skills.files("py-report").entries], ["SKILL.md", "requirements.txt"])

        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as archive:
            for name in ("py-one", "py-two"):
                archive.writestr(f"all/{name}/SKILL.md", f"---\nname: {name}\ndescription: Does it.\n---\n")
        self.assertEqual([found.path for found in skills.preview(data.getvalue())], ["py-one", "py-two"])
        self.assertEqual([skill.name for skill in skills.install(data.getvalue(), select=["py-one"])], ["py-one"])
        self.session.files.write("py-two/SKILL.md", "---\nname: py-two\ndescription: Mine.\n---\n")
        self.assertEqual([skill.description for skill in skills.install(session=self.session.id, path="py-two")], ["Mine."])
        skills.delete("py-report")
        with self.assertRaises(NotFound):
            skills.get("py-report")

    def test_drives(self) -> None:
        drives = self.client.drives
        self.addCleanup(self._gone, drives.delete, "py/data")
        first = drives.fill("py/data", tar({"dir/file": "1"}), if_version=0)
        self.assertEqual((first.version, first.entries), (1, 2))
        self.session.files.write("made/file", "x")
        second = drives.fill("py/data", session=self.session.id, path="made", add=True)
        self.assertEqual((second.version, second.entries), (2, 3))
        with self.assertRaises(Conflict):
            drives.fill("py/data", tar({"other": "1"}), if_version=1)
        self.assertEqual([entry.path for entry in drives.index("py/data", version=1, prefix="dir/").entries], ["dir/file"])
        self.assertIn("dir", drives.text("py/data", bytes=2048))
        with drives.download("py/data", 1) as download:
            self.assertIn("dir/file", names(download.read()))
        self.assertEqual(drives.update("py/data", keep_versions=5).keep_versions, 5)
        self.assertTrue(drives.mark_pushed("py/data", 1).versions[0].pushed_at)
        self.assertIn("py/data", [drive.name for drive in drives.list()])
        self.assertEqual(len(drives.get("py/data").versions), 2)
        mounted = self.session.switch_drive("py/data", 1)
        self.assertEqual(mounted.version, 1)
        self.assertEqual(self.session.exec("cat", mounted.target + "/dir/file").stdout, "1")
        self.assertEqual(self.session.switch_drive("py/data").version, 2)
        self.session.detach_drive("py/data", force=True)
        self.session.delete()  # it had both
        drives.delete("py/data", 1)
        drives.delete("py/data")
        with self.assertRaises(NotFound):
            drives.get("py/data")

    def test_some_files_as_an_archive(self) -> None:
        self.session.files.write("a/one", "1")
        self.session.files.write("a/two", "2")
        self.session.files.write("b", "3")
        with self.session.files.collect_archive(["a/one", "b"]) as download:
            self.assertEqual(names(download.read()), ["a/one", "b"])
        with self.assertRaises(NotFound):
            self.session.files.collect_archive(["a/one", "nosuch"])


SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
conn, _ = listener.accept()
size = 0
while more := conn.recv(1000):
    size += len(more)
conn.sendall(b"got %d" % size)
"""


class PortsTest(Box):
    def test_a_port(self) -> None:
        with self.session.stream(code=SERVER, language="python") as server:
            next(server)
            with self.session.open_port(8000) as port:
                port.send(b"x" * 500_000)
                port.send_eof()
                self.assertEqual(b"".join(port), b"got 500000")
        with self.assertRaises(Conflict):
            self.session.open_port(8000)
        token = self.session.preview_port(8000, lifetime="5m")
        self.assertTrue(token.token)


LINES = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n"


class LinesTest(Box):
    def test_messages_of_one_line_each(self) -> None:
        process = self.session.start_process("mcp", code=LINES, language="python", stdin=True)
        with process.attach(write=True, lines=True) as stream:
            stream.write(b'{"id":1}\n\n{"id"')
            stream.write(b":2}\n" + b"x" * 400_000 + b"\n")
            self.assertEqual([next(stream).data for _ in range(2)], [b'{"id":1}\n', b'{"id":2}\n'])  # type: ignore[union-attr]
            self.assertEqual(next(stream), Output("stdout", b"x" * 400_000 + b"\n", 18))
            stream.write(b"no end")
            stream.close_stdin()
            self.assertEqual([item.data for item in stream], [b"no end\n"])  # type: ignore[union-attr]
            self.assertEqual(stream.stdout, 18 + 400_001 + 7)

    def test_a_line_without_end_is_none(self) -> None:
        process = self.session.start_process("p", command="echo whole; printf half")
        process.wait()
        with process.attach(replay=True, lines=True) as stream:
            self.assertEqual(list(stream), [Output("stdout", b"whole\n", 0), Gap("stdout", 4, 6, "unfinished_line")])

    def test_lines_that_are_cut_come_once_each(self) -> None:
        want = [b"%d %s\n" % (n, b"y" * (n * 7 % 3000)) for n in range(600)]
        process = self.session.start_process("mcp", code=LINES, language="python", stdin=True)
        cuts = [through(SOCKET, cut) for cut in (900, 5000, 70000, 1200, 200000)]
        with Server(*cuts, through(SOCKET)) as server:
            other = Client(server.path).session(self.session.id).process(process.id)
            patience = patch("boxd._client._WRITER_PATIENCE", 30.0)  # where all is slow, boxd sees late that a connection has ended
            with patience, other.attach(write=True, lines=True) as stream:
                out, _ = stream.communicate(b"".join(want))
            self.assertGreater(server.accepted, len(cuts))
        self.assertEqual(out.splitlines(keepends=True), want)

    def test_a_line_that_is_too_long(self) -> None:
        process = self.session.start_process("cat", "cat", stdin=True)
        with process.attach(write=True, lines=True) as stream:
            with self.assertRaises(ValueError):
                stream.write(b"x" * ((16 << 20) + 1))


    def test_a_line_that_is_too_long_to_come(self) -> None:
        process = self.session.start_process("p", command="read x; echo one; head -c 17000000 /dev/zero | tr '\\0' x; echo; echo two", stdin=True)
        with process.attach(write=True, lines=True) as stream:
            stream.write(b"go\n")
            want = [Output("stdout", b"one\n", 0), Gap("stdout", 17_000_001, 4, "long_line"), Output("stdout", b"two\n", 17_000_005)]
            self.assertEqual(list(stream), want)
        process = self.session.start_process("half", command="read x; echo one; echo problem >&2; printf half", stdin=True)
        with process.attach(write=True, lines=True) as stream, self.assertRaises(OutputMissing) as caught:
            stream.communicate(b"go\n")
        missing = caught.exception
        self.assertEqual((missing.gap, missing.stdout, missing.stderr), (Gap("stdout", 4, 4, "unfinished_line"), b"one\n", b"problem\n"))
        self.assertEqual(str(missing), "4 bytes of stdout are missing from byte 4 on: unfinished_line")


class TerminalTest(Box):
    def test_the_size_of_a_terminal(self) -> None:
        process = self.session.start_process("tty", command="trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.05; done", terminal={"rows": 20, "cols": 70})
        with process.attach(replay=True) as stream:
            next(stream)
            process.resize(30, 90)
            self.assertIn(b"30 90", joined(list(stream)))


class LogsTest(Box):
    def test_the_last_of_an_output(self) -> None:
        process = self.session.start_process("p", command="echo one; echo two")
        process.wait()
        self.assertEqual(joined(list(process.logs(tail=4))), b"two\n")
        self.assertEqual(joined(list(process.logs(since="2020-01-01T00:00:00Z"))), b"one\ntwo\n")


class StdioTest(Box):
    def test_the_pipes_of_a_process(self) -> None:
        process = self.session.start_process("p", command="read x; echo got $x; echo err >&2; cat", stdio="direct")
        with process.stdio() as pipes:
            pipes.stdin.write(b"it\nrest")
            pipes.stdin.close()
            self.assertEqual((pipes.stdout.readall(), pipes.stderr.readall()), (b"got it\nrest", b"err\n"))
        self.assertEqual(process.wait().result.exit_code, 0)  # type: ignore[union-attr]
        with self.assertRaises(Conflict):
            process.stdio()
        with self.assertRaises(Conflict):
            self.session.start_process("other", "cat", stdin=True).stdio()

    def test_pipes_come_over_sockets_alone(self) -> None:
        with self.assertRaises(ValueError):
            Client("http://127.0.0.1:1").session("s").process("p").stdio()

    def test_pipes_that_do_not_come(self) -> None:
        answers = (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: boxd-stdio\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        for answer in (answers[0], answers[0] + b"x", answers[0] + b"xx", answers[1]):
            with Server(says(answer)) as server, self.assertRaises(ProtocolError):
                Client(server.path).session("s").process("p").stdio()


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def test_input_is_sent_once_if_its_task_is_cancelled(self) -> None:
        async with AsyncClient() as client, client.stream("cat", stdin=True) as stream:
            assert stream._conn is not None
            send = stream._conn.send

            async def full(data: bytes, timeout: Optional[float] = None) -> None:
                await send(data, timeout)
                await asyncio.sleep(3600)  # for room

            with patch.object(stream._conn, "send", full), self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(stream.write(b"once"), 0.2)
            self.assertEqual(await stream.communicate(), (b"once", b""))

    async def test_what_is_closed_while_it_opens_ends(self) -> None:
        async with AsyncClient() as client, await client.create_session(memory="128MiB") as session:
            process = await session.start_process("quiet", "sleep", "1000", stdin=True)
            opened: List[Any] = [process.logs(follow=True), client.events(after="latest"), session.files.watch()]
            for it in opened:
                opening = asyncio.ensure_future(it.__anext__())
                await asyncio.sleep(0)
                await it.close()
                with self.assertRaises(StopAsyncIteration):
                    await asyncio.wait_for(opening, 30)
            async with process.attach(write=True) as stream:
                connect = stream._connect

                async def closing(path: str, first: Dict[str, Any]) -> None:
                    asyncio.get_running_loop().call_soon(lambda: ended.append(asyncio.ensure_future(stream.close())))
                    await asyncio.sleep(0)
                    await connect(path, first)

                ended: List[asyncio.Future[None]] = []
                assert stream._conn is not None
                stream._conn.close()
                with patch.object(stream, "_connect", closing), self.assertRaises(StreamEnded):
                    await asyncio.wait_for(stream.__anext__(), 30)
                await ended[0]
                self.assertIsNone(stream._conn)

    async def test_the_same_with_asyncio(self) -> None:
        before, fds = connections(), len(os.listdir("/proc/self/fd"))
        async with AsyncClient() as client, await client.create_session(memory="128MiB") as session:
            process = await session.start_process("mcp", code=LINES, language="python", stdin=True)
            async with process.attach(write=True, lines=True) as stream:
                await stream.write(b"one\ntwo\n")
                self.assertEqual([(await stream.__anext__()).data for _ in range(2)], [b"one\n", b"two\n"])  # type: ignore[union-attr]
            direct = await session.start_process("direct", "cat", stdio="direct")
            with await direct.stdio() as pipes:
                reader = asyncio.StreamReader()
                loop = asyncio.get_running_loop()
                transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipes.stdout)
                pipes.stdin.write(b"hello")
                pipes.stdin.close()
                self.assertEqual(await reader.read(), b"hello")
                transport.close()
            with self.assertRaises(Conflict):
                await direct.stdio()
            async with client.stream("echo", "once") as stream:
                self.assertEqual(joined([item async for item in stream]), b"once\n")
            async with session.stream(code=SERVER, language="python") as server:
                await server.__anext__()
                async with await session.open_port(8000) as port:
                    await port.send(b"x" * 500_000)
                    await port.send_eof()
                    self.assertEqual(b"".join([piece async for piece in port]), b"got 500000")
            await session.files.write("a", "1")
            async with await session.files.collect_archive(["a"]) as download:
                self.assertEqual(names(await download.read()), ["a"])
            self.assertIn("default", (await client.profiles()).profiles)
            self.assertIsInstance(await client.workspaces.list(), list)
        for answer in (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: boxd-stdio\r\n\r\n", b""):
            with Server(says(answer)) as faulty, self.assertRaises(Exception):
                await AsyncClient(faulty.path).session("s").process("p").stdio()
        await asyncio.sleep(0)
        self.assertEqual((connections(), len(os.listdir("/proc/self/fd"))), (before, fds))


if __name__ == "__main__":
    unittest.main()
