// SPDX-License-Identifier: Apache-2.0

// Fifty programs at a time in one box. boxd lets those wait that are more than the box may run.

import { setTimeout as sleep } from "node:timers/promises";
import { Client, ExhaustedError } from "boxd-client";

const session = await new Client().createSession({ pids: 256 });

/** @param {number} n */
async function work(n) {
  for (;;) {
    try {
      return await session.exec({ command: `echo $((${n} * ${n}))` });
    } catch (error) {
      if (!(error instanceof ExhaustedError)) {
        throw error;
      }
      await sleep(1000 * (error.retryAfter ?? 1)); // nothing was run
    }
  }
}

try {
  const results = await Promise.all(Array.from({ length: 50 }, (_, n) => work(n)));
  console.log(results.filter((result) => result.exit_code === 0).length, results.reduce((sum, result) => sum + Number(result.stdout), 0));
} finally {
  await session.delete();
}
