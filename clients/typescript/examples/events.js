// SPDX-License-Identifier: Apache-2.0

// Hears what happens in a session, and goes on after the last event that was heard.

import { Client } from "boxd-client";

const client = new Client();
const session = await client.createSession();
try {
  await session.exec(["true"]);
  const events = client.events({ session: session.id });
  for await (const event of events) {
    console.log(event.type);
    if (event.type === "exec.started") {
      break;
    }
  }

  for await (const event of client.events({ session: session.id, after: events.lastId })) {
    console.log(event.type);
    break;
  }
} finally {
  await session.delete();
}
