# SPDX-License-Identifier: Apache-2.0

# What programs do with the SDKs of E2B for Python, with and without asyncio. Each step prints "ok NAME", or "FAILED NAME" and why.
import asyncio
import os
import time
import traceback
import urllib.request

from e2b import (
    AsyncSandbox, AuthenticationException, CommandExitException, FileNotFoundException, InvalidArgumentException, PtySize, SandboxException,
    SandboxQuery, SandboxState, Template, TimeoutException,
)
from e2b_code_interpreter import AsyncSandbox as AsyncInterpreter, Sandbox

steps = []


def step(name):
    return lambda run: steps.append((name, run))


def until(what, test):
    for _ in range(1800):
        if test():
            return
        time.sleep(0.05)
    raise AssertionError("never: " + what)


def raises(kind, run):
    try:
        run()
    except kind as e:
        return e
    raise AssertionError(f"nothing has been raised, not {kind.__name__}")


sbx = None


@step('create')
def _():
    global sbx
    sbx = Sandbox.create(timeout=600, metadata={"purpose": "a b&c"}, envs={"X": "1"})
    assert sbx.sandbox_id.isalnum(), sbx.sandbox_id


@step('get_info')
def _():
    info = sbx.get_info()
    assert (info.state, info.metadata) == (SandboxState.RUNNING, {"purpose": "a b&c"}), info
    assert (info.end_at - info.started_at).total_seconds() > 500


@step('is_running')
def _():
    assert sbx.is_running()


@step('set_timeout')
def _():
    sbx.set_timeout(900)
    info = Sandbox.get_info(sbx.sandbox_id)
    assert (info.end_at - info.started_at).total_seconds() > 800


@step('list')
def _():
    pages = Sandbox.list(query=SandboxQuery(metadata={"purpose": "a b&c"}))
    assert [s.sandbox_id for s in pages.next_items()] == [sbx.sandbox_id] and not pages.has_next


@step('list pages')
def _():
    more = [Sandbox.create(metadata={"n": "page"}) for _ in range(3)]
    pages, found = Sandbox.list(query=SandboxQuery(metadata={"n": "page"}), limit=2), []
    while pages.has_next:
        found += [s.sandbox_id for s in pages.next_items()]
    assert sorted(found) == sorted(s.sandbox_id for s in more), found
    assert all(s.kill() for s in more)


@step('connect')
def _():
    assert Sandbox.connect(sbx.sandbox_id).commands.run("echo again").stdout == "again\n"


@step('get_metrics')
def _():
    assert isinstance(sbx.get_metrics(), list)


@step('get_host')
def _():
    assert sbx.get_host(8000).startswith("8000-" + sbx.sandbox_id + ".")


@step('wrong key')
def _():
    raises(AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))


@step('no sandbox')
def _():
    raises(SandboxException, lambda: Sandbox.connect("inobody"))


@step('commands.run')
def _():
    r = sbx.commands.run("echo out $X $Y; echo err >&2", envs={"Y": "2"}, cwd="/tmp")
    assert (r.exit_code, r.stdout, r.stderr) == (0, "out 1 2\n", "err\n"), r


@step('commands.run in none')
def _():
    raises(InvalidArgumentException, lambda: sbx.commands.run("pwd", cwd="/nowhere"))


@step('commands.run with a status')
def _():
    assert raises(CommandExitException, lambda: sbx.commands.run("exit 3")).exit_code == 3


@step('commands.run for too long')
def _():
    raises(TimeoutException, lambda: sbx.commands.run("sleep 100", timeout=1))


@step('commands.run callbacks')
def _():
    out = []
    sbx.commands.run("for i in 1 2 3; do echo $i; sleep 0.05; done", on_stdout=out.append)
    assert "".join(out) == "1\n2\n3\n", out


@step('commands.run as root')
def _():
    assert sbx.commands.run("echo here", user="root").stdout == "here\n"
    raises(AuthenticationException, lambda: sbx.commands.run("true", user="stranger"))


@step('commands.run without a time')
def _():
    assert sbx.commands.run("echo on", timeout=0).stdout == "on\n"


@step('commands.send_stdin')
def _():
    cat = sbx.commands.run("cat", background=True, stdin=True)
    sbx.commands.send_stdin(cat.pid, "hello\n")
    cat.close_stdin()
    assert cat.wait().stdout == "hello\n"


@step('commands.list')
def _():
    one = sbx.commands.run("sleep 100", background=True)
    assert any(p.pid == one.pid and "sleep 100" in p.args for p in sbx.commands.list())
    assert sbx.commands.kill(one.pid)
    raises(CommandExitException, one.wait)
    assert not sbx.commands.kill(one.pid)


@step('commands.connect')
def _():
    one = sbx.commands.run("read line; echo late $line; exit 4", background=True, stdin=True)
    one.disconnect()
    again, out = sbx.commands.connect(one.pid), []
    sbx.commands.send_stdin(one.pid, "1\n")
    assert raises(CommandExitException, lambda: again.wait(on_stdout=out.append)).exit_code == 4
    assert out == ["late 1\n"], out


@step('a command that is looked at piece by piece')
def _():
    pieces = [out for out, _, _ in sbx.commands.run("echo a; sleep 0.1; echo b", background=True) if out]
    assert "".join(pieces) == "a\nb\n", pieces


@step('pty')
def _():
    out = []
    pty = sbx.pty.create(PtySize(rows=30, cols=90))
    sbx.pty.send_stdin(pty.pid, b"stty size; exit 5\n")
    assert raises(CommandExitException, lambda: pty.wait(on_pty=lambda data: out.append(data.decode()))).exit_code == 5
    assert "30 90" in "".join(out), out
    pty = sbx.pty.create(PtySize(rows=30, cols=90))
    sbx.pty.resize(pty.pid, PtySize(rows=20, cols=70))
    assert sbx.pty.kill(pty.pid)


@step('files.write')
def _():
    info = sbx.files.write("dir/a.txt", "hello")
    assert (info.name, info.path) == ("a.txt", "/home/user/dir/a.txt"), info
    assert sbx.files.read("dir/a.txt") == "hello"


@step('files.write bytes')
def _():
    data = bytes(i * 7 % 256 for i in range(1_000_000))
    sbx.files.write("/tmp/bytes", data)
    assert sbx.files.read("/tmp/bytes", format="bytes") == bytearray(data)
    assert b"".join(sbx.files.read("/tmp/bytes", format="stream")) == data


@step('files.write from a file')
def _():
    with open(__file__, "rb") as source:
        sbx.files.write("/tmp/source", source)
    with open(__file__, encoding="utf-8") as source:
        assert sbx.files.read("/tmp/source") == source.read()


@step('files.write_files')
def _():
    infos = sbx.files.write_files([{"path": "many/1", "data": "a"}, {"path": "/tmp/many/2", "data": b"b"}])
    assert [i.name for i in infos] == ["1", "2"], infos
    assert sbx.commands.run("cat many/1 /tmp/many/2").stdout == "ab"


@step('files.write of all kinds')
def _():
    sbx.files.write("octets", "o", use_octet_stream=True)
    sbx.files.write("zipped", "z", gzip=True)
    assert sbx.files.read("octets", gzip=True) + sbx.files.read("zipped") == "oz"
    sbx.files.write("with", "m", metadata={"key": "value"})
    assert sbx.files.get_info("with").metadata == {"key": "value"}


@step('files.read nothing')
def _():
    raises(FileNotFoundException, lambda: sbx.files.read("nowhere"))


@step('files.exists')
def _():
    assert (sbx.files.exists("dir/a.txt"), sbx.files.exists("nowhere")) == (True, False)


@step('files.get_info')
def _():
    sbx.commands.run("ln -sfn dir/a.txt link; chmod 640 dir/a.txt")
    info = sbx.files.get_info("dir/a.txt")
    assert (info.type.value, info.size, info.mode, info.permissions) == ("file", 5, 0o640, "-rw-r-----"), info
    assert sbx.files.get_info("link").symlink_target == "/home/user/dir/a.txt"


@step('files.list')
def _():
    assert [e.name for e in sbx.files.list("dir")] == ["a.txt"]
    assert any(e.path == "/home/user/dir/a.txt" for e in sbx.files.list(".", depth=2))
    raises(FileNotFoundException, lambda: sbx.files.list("nowhere"))
    raises(InvalidArgumentException, lambda: sbx.files.list("dir/a.txt"))


@step('files.make_dir')
def _():
    assert (sbx.files.make_dir("new/dir"), sbx.files.make_dir("new/dir")) == (True, False)


@step('files.rename')
def _():
    assert sbx.files.rename("dir/a.txt", "new/dir/b.txt").name == "b.txt"
    assert sbx.files.read("new/dir/b.txt") == "hello"


@step('files.remove')
def _():
    sbx.files.remove("new")
    assert not sbx.files.exists("new")


@step('files.watch_dir')
def _():
    watch, seen = sbx.files.watch_dir("dir", recursive=True), set()
    sbx.commands.run("mkdir dir/sub")

    def has(*wanted):
        seen.update((e.type.value, e.name) for e in watch.get_new_events())
        return seen.issuperset(wanted)

    until("a directory", lambda: has(("create", "sub")))
    sbx.commands.run("echo x > dir/sub/f; rm dir/sub/f")
    until("its files", lambda: has(("create", "sub/f"), ("write", "sub/f"), ("remove", "sub/f")))
    watch.stop()


@step('download_url')
def _():
    sbx.files.write("u.txt", "by address")
    for more in {}, {"use_signature_expiration": 100}:
        with urllib.request.urlopen(sbx.download_url("u.txt", **more)) as answer:
            assert answer.read() == b"by address"


@step('git')
def _():
    at = "/tmp/repository"
    sbx.git.init(at, initial_branch="main")
    sbx.git.configure_user("A", "a@example.org")
    sbx.files.write(at + "/f", "1")
    sbx.git.add(at)
    sbx.git.commit(at, "first")
    assert sbx.git.status(at).is_clean


@step('run_code')
def _():
    r = sbx.run_code('print("out")\n1 + 1')
    assert (r.text, "".join(r.logs.stdout), r.error) == ("2", "out\n", None), r
    sbx.run_code("x = 41")
    assert sbx.run_code("x + 1").text == "42"


@step('run_code with an error')
def _():
    e = sbx.run_code("def f():\n  return 1 / 0\nf()").error
    assert e.name == "ZeroDivisionError" and "return 1 / 0" in e.traceback, e


@step('run_code callbacks')
def _():
    seen = []
    sbx.run_code('import sys\nprint("a")\nprint("b", file=sys.stderr)\n3', on_stdout=lambda m: seen.append("out " + m.line),
                 on_stderr=lambda m: seen.append("err " + m.line), on_result=lambda r: seen.append("result " + r.text))
    assert sorted(seen) == ["err b\n", "out a\n", "result 3"], seen


@step('run_code variables')
def _():
    assert sbx.run_code('import os; os.environ["X"] + os.environ["Y"]', envs={"Y": "r"}).text == "1r"
    assert sbx.run_code('os.environ.get("Y")').text is None


@step('run_code results')
def _():
    r = sbx.run_code('class T:\n  def _repr_html_(self): return "<b>x</b>"\n  def __repr__(self): return "T"\nT()')
    assert (r.results[0].html, r.text) == ("<b>x</b>", "T"), r


@step('run_code for too long')
def _():
    raises(TimeoutException, lambda: sbx.run_code("while True: pass", timeout=1.5))
    assert sbx.run_code('"alive"').text == "alive"


@step('contexts')
def _():
    context = sbx.create_code_context(cwd="/tmp")
    assert sbx.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    sbx.run_code("y = 7", context=context)
    assert sbx.run_code("y").error.name == "NameError"
    assert any(c.id == context.id for c in sbx.list_code_contexts())
    sbx.restart_code_context(context)
    assert sbx.run_code("y", context=context).error.name == "NameError"
    sbx.remove_code_context(context)
    assert not any(c.id == context.id for c in sbx.list_code_contexts())


@step('other languages')
def _():
    assert "".join(sbx.run_code("echo $((6 * 7))", language="bash").logs.stdout) == "42\n"


@step('pause')
def _():
    sbx.files.write("kept", "k")
    assert (sbx.pause(keep_memory=False), sbx.pause(keep_memory=False)) == (True, False)
    assert not sbx.is_running()
    assert len(Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()) == 1
    assert Sandbox.connect(sbx.sandbox_id).files.read("kept") == "k"


@step('templates')
def _():
    assert (Template.alias_exists("base"), Template.alias_exists("nowhere")) == (True, False)
    assert "this host has base" in str(raises(SandboxException, lambda: Sandbox.create("nowhere")))


@step('what is refused')
def _():
    for run in (
        sbx.create_snapshot,
        sbx.fork,
        lambda: Sandbox.create(network={"deny_out": ["192.0.2.1"]}),
        lambda: sbx.update_network({"allow_out": ["example.org"], "deny_out": ["0.0.0.0/0"]}),
    ):
        assert "not served by boxd" in str(raises(SandboxException, run))


@step('kill')
def _():
    assert (sbx.kill(), sbx.is_running(), Sandbox.kill(sbx.sandbox_id)) == (True, False, False)
    raises(SandboxException, lambda: sbx.files.read("kept"))


@step('with')
def _():
    with Sandbox.create() as one:
        assert one.run_code("6 * 7").text == "42"
    assert not one.is_running()


def asynchronous(run):
    return lambda: asyncio.run(run())


@step('asyncio')
@asynchronous
async def _():
    one = await AsyncSandbox.create(envs={"X": "1"})
    r = await one.commands.run("echo $X", on_stdout=lambda _: None)
    assert r.stdout == "1\n", r
    await one.files.write("f", "1")
    assert await one.files.read("f") == "1"
    seen = []
    watch = await one.files.watch_dir(".", on_event=lambda e: seen.append((e.type.value, e.name)))
    await one.files.write("g", "2")
    for _ in range(1800):
        if ("create", "g") in seen:
            break
        await asyncio.sleep(0.05)
    assert ("create", "g") in seen, seen
    await watch.stop()
    assert await one.kill()


@step('asyncio and code')
@asynchronous
async def _():
    one = await AsyncInterpreter.create()
    context = await one.create_code_context()
    texts = await asyncio.gather(one.run_code("1 + 1"), one.run_code("2 + 2", context=context))
    assert [t.text for t in texts] == ["2", "4"], texts
    assert await one.kill()


for name, run in steps:
    try:
        run()
        print("ok " + name, flush=True)
    except Exception:
        print("FAILED " + name + ": " + traceback.format_exc(), flush=True)
        if name == "create":
            break
