// SPDX-License-Identifier: Apache-2.0

// Shows output as it comes, and answers the program.

import { Client } from "boxd-client";

const session = await new Client().createSession({ memory: "256MiB" });
try {
  const stream = await session.stream({ command: "echo name?; read name; for i in 1 2 3; do echo hello $name $i; done; exit 3" }, { stdin: true });
  try {
    for await (const item of stream) {
      if (item.kind === "output") {
        process.stdout.write(item.text);
        if (item.text === "name?\n") {
          await stream.write("world\n");
        }
      }
    }
    console.log(stream.result?.status, stream.result?.exit_code);
  } finally {
    await stream.close();
  }
} finally {
  await session.delete();
}
