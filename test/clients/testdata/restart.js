// SPDX-License-Identifier: Apache-2.0

// Works while boxd is stopped and started again: says what it has when its standard input has a line.

import assert from "node:assert/strict";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "boxd-client";

const COUNT = "i=0; until [ -e stop ]; do echo $i; i=$((i+1)); sleep 0.002; done; exit 5";
const client = new Client(), session = await client.createSession({ id: "restart" });
const begun = new Set();
let done = false;

async function count(items, name) {
  let text = "";
  for await (const item of items) {
    assert.equal(item.kind, "output");
    text += item.text;
    if (text.split("\n").length > 3) {
      begun.add(name);
    }
  }
  const lines = text.trim().split("\n");
  assert.deepEqual(lines, lines.map((_, n) => String(n)));
  return lines.length > 2;
}

async function stream() {
  const out = await session.stream({ command: COUNT, timeout: "2m" });
  const much = await count(out, "stream");
  await out.close();
  return [out.result.exit_code, much];
}

async function echo() {
  const out = await session.stream({ argv: ["cat"], timeout: "2m" }, { stdin: true });
  let got = "", want = "", total = 0;
  while (!done) {
    const line = String(total++).padStart(7, "0") + "\n";
    want += line;
    await out.write(line);
    got += (await out.next()).text;
    if (total > 2) {
      begun.add("echo");
    }
    await sleep(2);
  }
  await out.closeStdin();
  for await (const item of out) {
    got += item.text;
  }
  await out.close();
  return [got === want, total > 2];
}

const happened = client.events({ session: session.id, after: "latest", types: ["exec.started", "process.started"] });

async function events() {
  for await (const _ of happened) {
    if (done) {
      return true;
    }
  }
}

const process_ = await session.startProcess("count", { command: COUNT });
const tasks = [stream(), echo(), session.exec({ id: "once", command: "touch once; " + COUNT, timeout: "2m" }), count(process_.logs({ follow: true }), "logs"), process_.wait(), events()];
// Until each has something that it could lose; one that fails ends this.
while (begun.size < 3 || happened.lastId === "latest" || !(await session.files.exists("once"))) {
  await sleep(10);
}
console.log("ready");
await once(process.stdin, "data");
process.stdin.pause();
done = true;
await session.files.write("stop", "");
await session.startProcess("after", ["true"]);
const [streamed, echoed, result, logged, ended, heard] = await Promise.all(tasks);
console.log(streamed.join(), echoed.join(), result.exit_code, logged, ended.result.exit_code, heard);
await session.delete();
assert.deepEqual(await client.sessions(), []);
