// SPDX-License-Identifier: Apache-2.0

// Leaves a process alone, and comes back to it at the byte that was read last.

import { Client } from "boxd-client";

const session = await new Client().createSession();
try {
  const server = await session.startProcess("server", { argv: ["cat"], stdin: true, lease: "5m" });
  let stream = await server.attach({ write: true });
  await stream.write("first\n");
  const item = await stream.next();
  if (item?.kind === "output") {
    process.stdout.write(`${item.offset} ${item.text}`);
  }
  const read = stream.stdout;
  await stream.close();

  // Here the program may do something else, or end and be started again: it only has to keep the number.

  stream = await server.attach({ write: true, takeOver: true, stdout: read });
  await stream.write("second\n");
  await stream.closeStdin();
  for await (const item of stream) {
    if (item.kind === "output") {
      process.stdout.write(`${item.offset} ${item.text}`);
    }
  }
  await stream.close();
  console.log((await server.wait()).state);
} finally {
  await session.delete();
}
