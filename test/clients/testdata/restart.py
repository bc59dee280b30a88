# SPDX-License-Identifier: Apache-2.0

"""Works while boxd is stopped and started again: says what it has when its standard input has a line."""

import asyncio
import sys

from boxd import AsyncClient, Client, Output

COUNT = "i=0; until [ -e stop ]; do echo $i; i=$((i+1)); sleep 0.002; done; exit 5"


async def count(items, name):
    data = b""
    async for item in items:
        assert isinstance(item, Output), item
        data += item.data
        if data.count(b"\n") > 2:
            begun.add(name)
    lines = data.split()
    assert lines == [b"%d" % n for n in range(len(lines))], lines[:20]
    return len(lines)


async def stream(session):
    async with session.stream(command=COUNT, timeout="2m") as out:
        n = await count(out, "stream")
        return out.result.exit_code, n > 2


async def echo(session):
    async with session.stream("cat", stdin=True, timeout="2m") as out:
        total, got = 0, b""
        while not done.is_set():
            await out.write(b"%07d\n" % total)
            total += 1
            item = await out.__anext__()
            got += item.data
            if total > 2:
                begun.add("echo")
            await asyncio.sleep(0.002)
        await out.close_stdin()
        async for item in out:
            got += item.data
        return got == b"".join(b"%07d\n" % n for n in range(total)), total > 2


async def events(happened):
    async with happened:
        async for _ in happened:
            if done.is_set():
                return True


async def all_go_on(tasks, session, happened):
    """Waits until each task has something that it could lose, or one has failed."""
    while begun != {"stream", "echo", "logs"} or happened.last_id == "latest" or not await session.files.exists("once"):
        for task in tasks:
            if task.done():
                await task
        await asyncio.sleep(0.01)


async def main():
    client = AsyncClient()
    session = await client.create_session(id="restart")
    process = await session.start_process("count", command=COUNT)
    happened = client.events(session=session.id, after="latest", types=["exec.started", "process.started"])
    tasks = [asyncio.create_task(task) for task in (
        stream(session), echo(session), session.exec(id="once", command="touch once; " + COUNT, timeout="2m"), count(process.logs(follow=True), "logs"), process.wait(),
        events(happened),
    )]
    await all_go_on(tasks, session, happened)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    done.set()
    await session.files.write("stop", "")
    await session.start_process("after", "true")
    streamed, echoed, result, logged, ended, heard = await asyncio.wait_for(asyncio.gather(*tasks), 600)
    print(streamed, echoed, result.exit_code, logged > 2, ended.result.exit_code, heard)
    await session.delete()


begun, done = set(), asyncio.Event()
asyncio.run(main())
assert Client().sessions() == []
