# SPDX-License-Identifier: Apache-2.0

"""Fifty programs at a time in one box. boxd lets those wait that are more than the box may run."""

import asyncio

from boxd import AsyncClient, Exhausted
from boxd.answers import ExecResult


async def main() -> None:
    async with await AsyncClient().create_session(pids=256) as session:

        async def work(n: int) -> ExecResult:
            while True:
                try:
                    return await session.exec("sh", "-c", f"echo $(({n} * {n}))")
                except Exhausted as error:  # nothing was run
                    await asyncio.sleep(error.retry_after or 1)

        results = await asyncio.gather(*(work(n) for n in range(50)))
        print(sum(result.exit_code == 0 for result in results), sum(int(result.stdout) for result in results))


asyncio.run(main())
