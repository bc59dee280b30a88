// SPDX-License-Identifier: Apache-2.0

// A real boxd: at BOXD_SOCKET, and at BOXD_HTTP with BOXD_HTTP_TOKEN.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { beforeEach, afterEach, describe, test } from "node:test";
import { Client, ConflictError, InvalidError, NotFoundError, UnauthenticatedError, WriterLost } from "../dist/index.js";
import { Pace } from "../dist/http.js";
import { Server, through } from "./faults.js";

Pace.writer = Pace.total; // where all is slow, boxd sees late that a connection has ended

const SOCKET = process.env.BOXD_SOCKET ?? "";
const client = new Client();

process.stdout.write("");
process.stderr.write(""); // pipes of their own, which are open from now on

/** Sockets that this process has. */
function connections() {
  return process.getActiveResourcesInfo().filter((name) => name === "PipeWrap" || name === "TCPSocketWrap").length;
}

/** @type {import("../dist/index.js").Session} */
let session;
let had = 0;

beforeEach(async () => {
  had = connections();
  session = await client.createSession({ memory: "128MiB" });
});

afterEach(async () => {
  await session[Symbol.asyncDispose]();
  for (let i = 0; i < 3000 && connections() > had; i++) { // node closes them in its own time
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.ok(connections() <= had, "connections are left open: " + process.getActiveResourcesInfo());
});

/**
 * @param {AsyncIterable<import("../dist/index.js").Output | import("../dist/index.js").Gap>} items
 * @param {string} [stream]
 */
async function joined(items, stream = "stdout") {
  const parts = [];
  for await (const item of items) {
    assert.equal(item.kind, "output");
    if (item.kind === "output" && item.stream === stream) {
      parts.push(item.data);
    }
  }
  return Buffer.concat(parts);
}

describe("sessions", () => {
  test("a session is got or created", async () => {
    const one = await client.createSession({ id: "ts/1", ttl: "1h", memory: "128MiB", metadata: { chat: "1" } });
    assert.ok(one.created);
    assert.equal((await client.createSession({ id: "ts/1", memory: "128MiB" })).created, false);
    await assert.rejects(client.createSession({ id: "ts/1", memory: "256MiB" }), (error) => error instanceof ConflictError && error.field === "memory");
    assert.equal((await one.update({ ttl: "2h", labels: { a: "ts" } })).ttl, "2h");
    assert.deepEqual((await client.sessions({ labels: { a: "ts" } })).map((s) => s.id), ["ts/1"]);
    assert.deepEqual((await client.sessions({ metadata: { chat: "1" }, withMetadata: true })).map((s) => s.metadata), [{ chat: "1" }]);
    assert.deepEqual((await one.get()).labels, { a: "ts" });
    await one.renew();
    await one.delete();
    await assert.rejects(one.get(), NotFoundError);
  });

  test("a stopped session keeps its files", async () => {
    await session.files.write("kept", "yes");
    assert.equal((await session.stop()).state, "stopped");
    assert.equal((await session.start()).state, "ready");
    assert.equal(await session.files.readText("kept"), "yes");
  });

  test("a request that is wrong says how", () => assert.rejects(client.createSession({ memory: "1KiB" }), (error) => {
    assert.ok(error instanceof InvalidError);
    assert.deepEqual([error.field, error.value], ["memory", "1KiB"]);
    assert.match(error.allowed ?? "", /MiB/);
    return true;
  }));

  test("other routes", async () => {
    assert.equal((await client.planSession({ id: "planned" })).dry_run, true);
    await assert.rejects(client.session("planned").get(), NotFoundError);
    assert.deepEqual((await session.planExec(["ls"])).exec?.argv, ["ls"]);
    assert.ok((/** @type {import("../dist/types.js").ProfileList} */ (await client.request("GET", "/v1/profiles"))).profiles.default);
    assert.match(await session.instructions(), /box/);
    assert.equal((await client.run(["echo", "once"])).stdout, "once\n");
  });
});

describe("programs", () => {
  test("results", async () => {
    const result = await session.exec({ command: "echo out; echo err >&2; exit 3" });
    assert.deepEqual([result.status, result.exit_code, result.stdout, result.stderr], ["exited", 3, "out\n", "err\n"]);
    assert.equal((await session.exec({ command: "sort", stdin: "b\na\n" })).stdout, "a\nb\n");
    assert.equal((await session.exec({ argv: ["sleep", "60"], timeout: "100ms" })).status, "timed_out");
    assert.equal((await session.exec(["nosuch"])).failure?.errno, "ENOENT");
  });

  test("an id runs once, and a detached program goes on", async () => {
    for (let i = 0; i < 2; i++) {
      assert.equal((await session.exec({ id: "once", command: "echo x >> n; wc -l < n" })).stdout, "1\n");
    }
    const process = await session.startExec("later", { command: "sleep 0.2; echo done" });
    assert.equal((await process.wait()).result?.stdout, "done\n");
  });

  test("output as it comes", async () => {
    const stream = await session.stream({ command: "echo one; read x; echo two >&2; exit 4" }, { stdin: true });
    const first = await stream.next();
    assert.ok(first?.kind === "output");
    assert.deepEqual([first.stream, first.text, first.offset], ["stdout", "one\n", 0]);
    await stream.write("\n");
    assert.equal((await joined(stream, "stderr")).toString(), "two\n");
    assert.equal(stream.result?.exit_code, 4);
    await stream.close();
    assert.deepEqual(await session.processes(), []); // it has been forgotten
  });

  test("both streams in one order", async () => {
    const command = "i=0; while [ $i -lt 1000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    const all = Array.from({ length: 1000 }, (_, n) => `out ${n}\nerr ${n}\n`).join("");
    const result = await session.exec({ command, merge_output: true });
    assert.deepEqual([result.stdout, result.stderr], [all, ""]);
    const stream = await session.stream({ command, merge_output: true });
    const { stdout, stderr } = await stream.communicate();
    await stream.close();
    assert.deepEqual([stdout.toString(), stderr.length], [all, 0]);
    const process = await session.startProcess("p", { command, merge_output: true });
    assert.equal((await process.wait()).result?.stdout, all);
    assert.equal((await joined(process.logs())).toString(), all);
    await assert.rejects(session.startProcess("t", { argv: ["sh"], merge_output: true, terminal: { rows: 24, cols: 80 } }), (error) => error instanceof InvalidError && error.field === "merge_output");
  });

  test("output on disk", async () => {
    const process = await session.startProcess("spooled", { command: "seq 400000", spool: "8MiB" });
    const info = await process.wait();
    assert.deepEqual([info.spool, info.output[0].from], [8 << 20, 0]);
    assert.equal((await joined(process.logs())).toString(), Array.from({ length: 400000 }, (_, n) => `${n + 1}\n`).join(""));
    await assert.rejects(session.exec({ command: "true", spool: "8MiB" }), (error) => error instanceof InvalidError && error.field === "spool");
  });

  test("much in both directions", async () => {
    const data = randomBytes(3_000_000);
    const stream = await session.stream(["cat"], { stdin: true });
    const { stdout, stderr } = await stream.communicate(data);
    await stream.close();
    assert.ok(stdout.equals(data));
    assert.equal(stderr.length, 0);
  });

  test("signals and terminals", async () => {
    const stream = await session.stream({ command: "trap 'stty size; exit 5' INT; echo up; while :; do sleep 0.05; done" }, { terminal: { rows: 20, cols: 70 } });
    await stream.next();
    stream.resize(30, 90);
    stream.signal("SIGINT");
    assert.match((await joined(stream)).toString(), /30 90/);
    assert.equal(stream.result?.exit_code, 5);
    await stream.close();
  });

  test("a stream is closed, or its signal aborted, while nobody reads what has come", async () => {
    const much = ["sh", "-c", "yes | head -c 5000000; exec sleep 1000"];
    const closed = await session.stream(much);
    await new Promise((resolve) => setTimeout(resolve, 500));
    await closed.close();
    const ending = new AbortController();
    const aborted = await session.stream(much, { stdin: true, signal: ending.signal });
    const writing = (async () => {
      for (;;) {
        await aborted.write("x".repeat(60000));
      }
    })();
    setTimeout(() => ending.abort(new Error("enough")), 500);
    await assert.rejects(writing, /enough/);
    await aborted.close();
  });

  test("logs and events are closed while they open", async () => {
    const process = await session.startProcess("quiet", ["sleep", "1000"]);
    for (const it of [process.logs({ follow: true }), client.events({ after: "latest" })]) {
      const opening = it.next();
      await new Promise((resolve) => setImmediate(resolve));
      it.close();
      assert.equal((await opening).done, true);
    }
  });

  test("leaving a stream ends its program", async () => {
    const controller = new AbortController();
    const streams = [await session.stream({ command: "echo up; exec sleep 1000" }), await session.stream({ command: "echo up; exec sleep 1000" }, { signal: controller.signal })];
    for (const stream of streams) {
      await stream.next();
    }
    controller.abort(new Error("enough"));
    await assert.rejects(streams[1].next(), /enough/);
    for (const stream of streams) {
      await stream.close();
    }
    assert.deepEqual(await session.processes(), []);
    assert.equal((await session.exec({ command: "pgrep -x sleep | wc -l" })).stdout, "0\n");
  });

  test("what cannot begin", async () => {
    await assert.rejects(session.stream({ command: "x", memory: "no size" }), InvalidError);
    await assert.rejects(client.session("nosuch").stream(["true"]), NotFoundError);
    const stream = await session.stream(["nosuch"]);
    assert.equal((await stream.wait()).status, "start_failed");
    await stream.close();
  });

  test("fifty at a time", async () => {
    const results = await Promise.all(Array.from({ length: 50 }, (_, n) => session.exec(["echo", String(n)])));
    assert.deepEqual(results.map((r) => r.stdout), results.map((_, n) => `${n}\n`));
  });
});

describe("connections that are cut have no effect", () => {
  test("output", async () => {
    const cuts = [600, 1, 5000, 70000, 0, 900, 40000].map((cut) => through(SOCKET, cut));
    await new Server(...cuts, through(SOCKET)).with(async (server) => {
      const stream = await new Client(server.path).session(session.id).stream({ command: "seq -f %06g 0 19999; exit 7" }, { lease: "1m" });
      const got = await joined(stream);
      await stream.close();
      assert.equal(stream.result?.exit_code, 7);
      assert.equal(got.toString(), Array.from({ length: 20000 }, (_, n) => String(n).padStart(6, "0") + "\n").join(""));
      assert.ok(server.accepted > cuts.length);
    });
  });

  test("input", async () => {
    const data = randomBytes(600_000), cuts = [700, 3000, 100000, 900, 200000].map((cut) => through(SOCKET, cut));
    await new Server(...cuts, through(SOCKET)).with(async (server) => {
      const stream = await new Client(server.path).session(session.id).stream(["cat"], { stdin: true, lease: "1m" });
      const { stdout } = await stream.communicate(data);
      await stream.close();
      assert.ok(stdout.equals(data));
      assert.ok(server.accepted > cuts.length);
    });
  });

  test("logs", async () => {
    const process = await session.startProcess("count", { command: "for i in $(seq 300); do echo $i; done; sleep 0.3; echo end" });
    await new Server(through(SOCKET, 500), through(SOCKET, 5000), through(SOCKET)).with(async (server) => {
      const logs = new Client(server.path).session(session.id).process(process.id).logs({ follow: true });
      assert.deepEqual((await joined(logs)).toString().trim().split("\n"), [...Array.from({ length: 300 }, (_, n) => String(n + 1)), "end"]);
    });
  });

  test("files and events", async () => {
    const data = randomBytes(200_000);
    await session.files.upload("big", data);
    await new Server(through(SOCKET, 50_000), through(SOCKET)).with(async (server) => {
      assert.ok((await new Client(server.path).session(session.id).files.read("big")).equals(data));
    });
    for (let i = 0; i < 5; i++) {
      await session.exec(["true"]);
    }
    await new Server(through(SOCKET, 1500), through(SOCKET)).with(async (server) => {
      const types = [];
      for await (const event of new Client(server.path).events({ session: session.id })) {
        types.push(event.type);
        if (types.length === 11) {
          break;
        }
      }
      assert.deepEqual(types, ["session.started", ...Array.from({ length: 5 }, () => ["exec.started", "exec.ended"]).flat()]);
    });
  });
});

describe("processes", () => {
  test("a process is left and found again", async () => {
    const process = await session.startProcess("cat", { argv: ["cat"], stdin: true });
    const one = await process.attach({ write: true });
    await one.write("one\n");
    assert.equal((await one.next())?.offset, 0);
    await assert.rejects(process.attach({ write: true }), WriterLost);
    await one.close();
    const other = await process.attach({ stdout: one.stdout, write: true, takeOver: true });
    await other.write("two\n");
    const item = await other.next();
    assert.ok(item?.kind === "output");
    assert.deepEqual([item.offset, item.text], [4, "two\n"]);
    await other.closeStdin();
    assert.equal((await other.wait()).exit_code, 0);
    await other.close();
    const all = await process.attach({ replay: true });
    assert.equal((await joined(all)).toString(), "one\ntwo\n");
    await all.close();
    assert.equal((await joined(process.logs({ lines: 1 }))).toString(), "two\n");
    await process.delete();
    await assert.rejects(process.get(), NotFoundError);
  });

  test("another writer takes over", async () => {
    const process = await session.startProcess("cat", { argv: ["cat"], stdin: true });
    const one = await process.attach({ write: true }), other = await process.attach({ write: true, takeOver: true });
    await other.closeStdin();
    await one.wait();
    await assert.rejects(one.write("mine\n"), WriterLost);
    await one.close();
    await other.close();
  });

  test("state and end", async () => {
    const process = await session.startProcess("s", { argv: ["sleep", "1000"], lease: "1m" });
    assert.equal((await process.get({ wait: 1 })).state, "running");
    assert.equal((await process.renew()).lease, "1m");
    await process.signal("SIGCONT");
    assert.equal((await process.stop()).reason, "stopped");
    assert.equal((await process.wait()).result?.signal, "SIGTERM");
  });
});

describe("files and mounts", () => {
  test("files", async () => {
    const { files } = session;
    assert.equal((await files.write("a/b.txt", "one\ntwo\n")).created, true);
    await files.write("a/b.bin", Buffer.of(0, 255));
    assert.deepEqual(await files.read("a/b.bin"), Buffer.of(0, 255));
    assert.equal((await files.readPart({ path: "a/b.txt", offset: 2 })).content, "two\n");
    assert.equal((await files.edit("a/b.txt", [{ old: "two", new: "three" }])).edits[0].line, 2);
    assert.deepEqual((await files.list("a")).entries.map((e) => e.path), ["b.bin", "b.txt"]);
    assert.deepEqual((await files.glob({ pattern: "**/*.txt" })).entries.map((e) => e.path), ["a/b.txt"]);
    assert.equal((await files.grep({ pattern: "^t" })).files[0].lines?.[0].text, "three");
    await files.mkdir("c");
    await files.move("a/b.txt", "c/d.txt");
    await files.chmod("c/d.txt", "600");
    assert.equal((await files.stat("c/d.txt")).mode, "0600");
    assert.deepEqual([await files.exists("a/b.txt"), await files.exists("c/d.txt")], [false, true]);
    await files.remove("a", { recursive: true });
    await assert.rejects(files.read("a/b.bin"), (error) => error instanceof NotFoundError && error.fileKind === "not_found");
    await assert.rejects(client.session("nosuch").files.exists("a"), NotFoundError);
  });

  test("files of any size, and archives", async () => {
    const { files } = session, pieces = Array.from({ length: 30 }, () => randomBytes(100_000)), whole = Buffer.concat(pieces);
    assert.equal((await files.upload("in/big", pieces)).file.size, whole.length);
    const part = await files.open("in/big", { offset: whole.length - 1000 });
    assert.equal(part.size, 1000);
    assert.ok((await part.read()).equals(whole.subarray(-1000)));
    assert.ok((await (await files.open("in/big", { offset: -5 })).read()).equals(whole.subarray(-5)));
    const archive = await (await files.downloadArchive("in")).read();
    await files.remove("in", { recursive: true });
    assert.equal((await files.uploadArchive(archive, "/workspace/out")).bytes, whole.length);
  });

  test("a directory is watched", async () => {
    await session.files.mkdir("w");
    const watch = await session.files.watch("w", { recursive: true });
    await session.files.mkdir("w/d");
    const seen = [];
    for await (const event of watch) { // to its end: it is gone
      seen.push(`${event.event} ${event.path}`);
      if (event.event === "create") {
        await session.exec(["rm", "-r", "w"]);
      }
    }
    assert.ok(seen.includes("remove d"), String(seen));
  });

  test("mounts", async () => {
    const source = process.env.BOXD_TEST_SOURCE ?? "";
    assert.equal((await session.addMount({ source, target: "/mnt/data", mode: "ro" })).live, true);
    assert.deepEqual((await session.mounts()).filter((m) => m.live).map((m) => m.source), [source]);
    const stream = await session.stream({ command: "cd /mnt/data && echo in && sleep 100" });
    await stream.next();
    await assert.rejects(session.removeMount("/mnt/data"), (error) => error instanceof ConflictError && error.users.length > 0);
    await stream.close();
    await session.removeMount("/mnt/data", { force: true });
    assert.deepEqual((await session.mounts()).filter((m) => m.live), []);
  });
});

test("events go on where they were left", async () => {
  await session.exec(["true"]);
  const events = client.events({ session: session.id });
  assert.equal((await events.next()).value?.type, "session.started");
  assert.equal((await events.next()).value?.type, "exec.started");
  events.close();
  for await (const event of client.events({ session: session.id, after: events.lastId })) {
    assert.equal(event.type, "exec.ended");
    break;
  }
  const types = [];
  for await (const event of client.events({ follow: false, session: session.id, types: ["exec.ended"] })) {
    types.push(event.type);
  }
  assert.deepEqual(types, ["exec.ended"]);
});

test("a token over TCP", async () => {
  const address = process.env.BOXD_HTTP ?? "", token = process.env.BOXD_HTTP_TOKEN ?? "";
  const other = await new Client({ address, token }).createSession();
  assert.equal((await other.exec(["echo", "tcp"])).stdout, "tcp\n");
  const process_ = await other.startProcess("p", { argv: ["cat"], stdin: true });
  const one = await process_.attach({ write: true });
  await one.write("tcp\n");
  await one.next();
  await one.close();
  const two = await process_.attach({ write: true, takeOver: true, stdout: one.stdout });
  await two.closeStdin();
  assert.equal((await two.wait()).exit_code, 0);
  await two.close();
  const stream = await other.stream(["cat"], { stdin: true });
  assert.equal((await stream.communicate("x".repeat(500_000))).stdout.length, 500_000);
  await stream.close();
  await other.delete();
  await assert.rejects(new Client({ address, token: "wrong" }).sessions(), UnauthenticatedError);
});
