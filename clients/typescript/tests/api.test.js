// SPDX-License-Identifier: Apache-2.0

// The rest of the API, and streams of lines, with the same boxd as boxd.test.js. They do not run at the same time.

import assert from "node:assert/strict";
import { request } from "node:http";
import { beforeEach, afterEach, describe, test } from "node:test";
import { Client, ConflictError, InvalidError, NotFoundError, OutputMissing, StreamEnded, UnavailableError, UnsupportedError } from "../dist/index.js";
import { Pace } from "../dist/http.js";
import { Server, through } from "./faults.js";

Pace.writer = Pace.total; // where all is slow, boxd sees late that a connection has ended

const SOCKET = process.env.BOXD_SOCKET ?? "";
const client = new Client();

/** @type {import("../dist/index.js").Session} */
let session;

beforeEach(async () => {
  session = await client.createSession({ memory: "128MiB" });
});

afterEach(() => session[Symbol.asyncDispose]());

/**
 * A tar archive of files.
 * @param {Record<string, string>} files
 */
function tar(files) {
  const blocks = [];
  for (const [name, content] of Object.entries(files)) {
    const head = Buffer.alloc(512);
    head.write(name, 0);
    head.write("0000644\0" + "0000000\0".repeat(2), 100);
    head.write(content.length.toString(8).padStart(11, "0") + "\0" + "0".repeat(11) + "\0        0", 124);
    head.write("ustar\x0000", 257);
    head.write(head.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0") + "\0 ", 148);
    const data = Buffer.alloc(512 * Math.ceil(content.length / 512));
    data.write(content);
    blocks.push(head, data);
  }
  return Buffer.concat([...blocks, Buffer.alloc(1024)]);
}

/**
 * Removes what a test has made, if it is there.
 * @param {{ delete(name: string): Promise<void> }} of
 * @param {string[]} names
 */
async function gone(of, ...names) {
  await session[Symbol.asyncDispose]();
  for (const name of names) {
    await of.delete(name).catch((error) => assert.ok(error instanceof NotFoundError, error));
  }
}

/**
 * @param {AsyncIterable<import("../dist/index.js").Output | import("../dist/index.js").Gap>} items
 * @returns {Promise<string[]>} each of them
 */
async function texts(items) {
  const list = [];
  for await (const item of items) {
    list.push(item.kind === "output" ? item.text : `gap of ${item.bytes}`);
  }
  return list;
}

describe("boxd", () => {
  test("what it says of itself", async () => {
    assert.ok((await client.profiles()).profiles.default);
    assert.match(await client.instructions("offline_readonly"), /box/);
    assert.ok((await client.status()).version);
    assert.ok((await client.doctor()).checks.length);
    assert.ok((await client.configuration()).settings.length);
    assert.ok((await client.usage({ days: 1 })).days.length);
    assert.ok(Array.isArray(await client.errors()));
    await session.update({ labels: { a: "b" } });
    assert.equal((await client.audit({ n: 5, session: session.id })).records.at(-1)?.route, "PATCH /v1/sessions/{id}");
    assert.ok((await session.usageHistory({ after: "2026-11-21T09:30:00Z" })).interval);
  });

  test("no new sessions", async (t) => {
    t.after(() => client.undrain());
    assert.equal((await client.drain("a new disk")).reason, "a new disk");
    assert.equal((await client.drain("another")).reason, "a new disk");
    await assert.rejects(client.ready(), UnavailableError);
    await client.undrain();
    await client.ready();
  });

  test("roles for a time", async () => {
    assert.equal((await client.grant({ principal: "uid:4343", role: "operator", for: "1h" })).role, "operator");
    assert.deepEqual((await client.grants()).map((grant) => grant.principal), ["uid:4343"]);
    await client.revoke("uid:4343");
    assert.deepEqual(await client.grants(), []);
  });

  test("freezing", async () => {
    for (const [ask, state] of /** @type {const} */ ([["freeze", "frozen"], ["thaw", "ready"]])) {
      const got = await session[ask]().catch((error) => error);
      assert.ok(got instanceof UnsupportedError || got.state === state, got); // on a host without cgroups
    }
  });

  test("snapshots", async () => {
    await session.files.write("kept", "one");
    await assert.rejects(session.createSnapshot("first"), ConflictError);
    await session.stop();
    assert.equal(await session.files.readText("kept"), "one");
    const definition = await session.definition();
    assert.deepEqual([definition.paths, definition.left_out, definition.session.id], [["/workspace"], [], session.id]);
    assert.deepEqual(await session.snapshots(), []);
    const made = await session.createSnapshot("first").catch((error) => error);
    if (made instanceof UnsupportedError) { // on a filesystem without reflink
      await assert.rejects(session.restoreSnapshot("first"), UnsupportedError);
      await assert.rejects(session.deleteSnapshot("first"), UnsupportedError);
      return;
    }
    assert.ok(made.size > 0, made);
    assert.deepEqual(await session.snapshots(), [made]);
    await session.start();
    await session.files.write("kept", "two");
    await session.stop();
    assert.equal((await session.restoreSnapshot("first")).state, "stopped");
    await session.start();
    assert.equal(await session.files.readText("kept"), "one");
    await session.deleteSnapshot("first");
    await assert.rejects(session.deleteSnapshot("first"), NotFoundError);
  });

  test("a program in a session of its own", async () => {
    const stream = await client.stream({ command: "read x; echo got $x; exit 3" }, { session: { memory: "128MiB" }, stdin: true });
    const { stdout, result } = await stream.communicate("it\n");
    await stream.close();
    assert.deepEqual([stdout.toString(), result.exit_code], ["got it\n", 3]);
    await assert.rejects(client.stream(["true"], { session: { memory: "no size" } }), InvalidError);
    await new Server(through(SOCKET, 700), through(SOCKET)).with(async (server) => {
      const cut = new Client(server.path).stream({ command: "for i in $(seq 1000); do echo $i; done; sleep 1000" });
      await assert.rejects(cut.then((one) => one.wait().finally(() => one.close())), StreamEnded);
      assert.equal(server.accepted, 1);
    });
  });
});

describe("what outlives sessions", () => {
  test("workspaces", async (t) => {
    const { workspaces } = client;
    t.after(() => gone(workspaces, "ts-project", "ts-kept"));
    assert.deepEqual((({ name, quota, inodes }) => [name, quota, inodes])(await workspaces.create({ name: "ts-project", quota: "8MiB", inodes: 1000 })), ["ts-project", 8 << 20, 1000]);
    await assert.rejects(workspaces.create({ name: "ts-project" }), ConflictError);
    const user = await client.createSession({ workspace: "ts-project" });
    assert.equal((await workspaces.get("ts-project")).sessions.length, 1);
    await assert.rejects(workspaces.delete("ts-project"), ConflictError);
    await user.delete();
    assert.equal((await workspaces.update("ts-project", { quota: "16MiB" })).quota, 16 << 20);
    await session.files.write("here", "yes");
    assert.equal((await session.keepWorkspace("ts-kept")).name, "ts-kept");
    assert.deepEqual((await workspaces.list()).map((w) => w.name), ["ts-kept", "ts-project"]);
    await workspaces.delete("ts-project");
    await assert.rejects(workspaces.get("ts-project"), NotFoundError);
  });

  test("images", async (t) => {
    const { images } = client;
    t.after(() => gone(images, "ts/mine:1", "ts/mine:2"));
    const made = await images.upload(tar({ "etc/issue": "one" }), { name: "ts/mine:1", form: "rootfs" });
    assert.deepEqual([made.name, made.form, made.entries], ["ts/mine:1", "rootfs", 2]);
    assert.equal((await images.get(made.digest)).name, "ts/mine:1");
    assert.ok((await images.list()).some((image) => image.name === "ts/mine:1"));
    const of = await client.createSession({ image: "ts/mine:1", read_only_root: false });
    await of.files.write("/etc/motd", "hello");
    await of.files.remove("/etc/issue");
    const diff = await of.diffRoot({ limit: 5 });
    assert.deepEqual([diff.created.map((c) => c.path), diff.removed.map((c) => c.path)], [["/etc/motd"], ["/etc/issue"]]);
    assert.equal((await of.discardRoot(["/etc/issue"])).restored, 1);
    assert.equal(await of.files.readText("/etc/issue"), "one");
    const second = await of.commitImage({ name: "ts/mine:2", env: { A: "b" }, working_dir: "/srv" });
    assert.deepEqual([second.form, second.config.env], ["commit", ["A=b"]]);
    await of.delete();
    await images.delete("ts/mine:2");
    assert.ok((await images.prune()).some((image) => image.name === "ts/mine:1"));
    await assert.rejects(images.get("ts/mine:1"), NotFoundError);
  });

  test("skills", async (t) => {
    const { skills } = client;
    t.after(() => gone(skills, "ts-report", "ts-one", "ts-two"));
    const made = await skills.create({ name: "ts-report", description: "Makes reports.", instructions: "# Do\n", metadata: { v: "1" } });
    await assert.rejects(skills.create({ name: "ts-report", description: "Makes reports." }), ConflictError);
    assert.ok((await skills.list()).some((skill) => skill.name === "ts-report"));
    const better = await skills.update("ts-report", { description: "Makes better reports.", if_match: made.digest });
    await assert.rejects(skills.update("ts-report", { license: "MIT", if_match: made.digest }), ConflictError);
    assert.equal((await skills.get("ts-report")).digest, better.digest);
    await skills.writeFile("ts-report", "scripts/run", Buffer.from("hi"), { executable: true, if_match: better.digest });
    await skills.writeFile("ts-report", "requirements.txt", "# none\n");
    assert.deepEqual((await skills.files("ts-report", "scripts")).entries.map((entry) => entry.name), ["run"]);
    const file = await skills.readFile("ts-report", "scripts/run");
    assert.deepEqual([file.content, file.executable], ["hi", true]);
    const index = await skills.index({ names: ["ts-report", "gone"], location: "/skills" });
    assert.match(index.text, /\/skills\/ts-report\/SKILL.md/);
    assert.deepEqual(index.missing, ["gone"]);

    assert.equal((await session.activateSkill("ts-report")).target, "/skills/ts-report");
    assert.equal((await session.exec(["cat", "/skills/ts-report/scripts/run"])).stdout, "hi");
    assert.equal((await session.makeSkillEnvironment("ts-report", { env: { PIP_NO_INDEX: "1" }, timeout: "2m" })).made, true);
    assert.equal((await session.makeSkillEnvironment("ts-report")).made, false);
    await session.deactivateSkill("ts-report", { force: true });
    await skills.removeFile("ts-report", "scripts");
    assert.deepEqual((await skills.files("ts-report")).entries.map((entry) => entry.name), ["SKILL.md", "requirements.txt"]);

    const content = tar(Object.fromEntries(["ts-one", "ts-two"].map((name) => [`all/${name}/SKILL.md`, `---\nname: ${name}\ndescription: Does it.\n---\n`])));
    assert.deepEqual((await skills.preview({ content })).map((found) => found.path), ["ts-one", "ts-two"]);
    assert.deepEqual((await skills.install({ content, select: ["ts-one"] })).map((skill) => skill.name), ["ts-one"]);
    await session.files.write("ts-two/SKILL.md", "---\nname: ts-two\ndescription: Mine.\n---\n");
    assert.deepEqual((await skills.install({ session: session.id, path: "ts-two" })).map((skill) => skill.description), ["Mine."]);
    await skills.delete("ts-report");
    await assert.rejects(skills.get("ts-report"), NotFoundError);
  });

  test("drives", async (t) => {
    const { drives } = client, name = "ts/data";
    t.after(() => gone(drives, name));
    const first = await drives.fill(name, { content: tar({ "dir/file": "1" }), ifVersion: 0 });
    assert.deepEqual([first.version, first.entries], [1, 2]);
    await session.files.write("made/file", "x");
    const second = await drives.fill(name, { session: session.id, path: "made", add: true });
    assert.deepEqual([second.version, second.entries], [2, 3]);
    await assert.rejects(drives.fill(name, { content: tar({ other: "1" }), ifVersion: 1 }), ConflictError);
    assert.deepEqual((await drives.index(name, { version: 1, prefix: "dir/" })).entries.map((entry) => entry.path), ["dir/file"]);
    assert.match(await drives.text(name, { bytes: 2048 }), /dir/);
    assert.ok((await (await drives.download(name, { version: 1 })).read()).includes("dir/file"));
    assert.equal((await drives.update(name, { keep_versions: 5 })).keep_versions, 5);
    assert.ok((await drives.markPushed(name, 1)).versions[0].pushed_at);
    assert.ok((await drives.list()).some((drive) => drive.name === name));
    assert.equal((await drives.get(name)).versions.length, 2);
    const mounted = await session.switchDrive(name, { version: 1 });
    assert.equal(mounted.version, 1);
    assert.equal((await session.exec(["cat", mounted.target + "/dir/file"])).stdout, "1");
    assert.equal((await session.switchDrive(name)).version, 2);
    await session.detachDrive(name, { force: true });
    await session.delete(); // it had both
    await drives.delete(name, { version: 1 });
    await drives.delete(name);
    await assert.rejects(drives.get(name), NotFoundError);
  });
});

test("some files as an archive", async () => {
  await session.files.write("a/one", "1");
  await session.files.write("a/two", "2");
  const archive = await (await session.files.collectArchive(["a/one"])).read();
  assert.deepEqual([archive.includes("a/one"), archive.includes("a/two")], [true, false]);
  await assert.rejects(session.files.collectArchive(["a/one", "nosuch"]), NotFoundError);
});

test("a port", async () => {
  const server = await session.stream(["python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]);
  await server.next(); // it says that it serves
  await session.files.write("page", "hello");
  const socket = await session.openPort(8000);
  const body = await new Promise((resolve, reject) => {
    const asked = request({ createConnection: () => socket, path: "/page", headers: { Connection: "close" } }, (answer) => {
      answer.setEncoding("utf8").on("data", resolve).on("error", reject);
    });
    asked.on("error", reject).end();
  });
  assert.equal(body, "hello");
  socket.destroy();
  await server.close();
  await assert.rejects(session.openPort(8000), ConflictError);
  assert.ok((await session.previewPort(8000, { lifetime: "5m" })).token);
});

const LINES = "import sys\nfor line in sys.stdin:\n    sys.stdout.write(line)\n    sys.stdout.flush()\n";

describe("lines", () => {
  test("messages of one line each", async () => {
    const process = await session.startProcess("mcp", { code: LINES, language: "python", stdin: true });
    const stream = await process.attach({ write: true, lines: true });
    await stream.write('{"id":1}\n\n{"id"');
    await stream.write(":2}\n" + "x".repeat(400_000) + "\n");
    await stream.write("no end");
    await stream.closeStdin();
    assert.deepEqual(await texts(stream), ['{"id":1}\n', '{"id":2}\n', "x".repeat(400_000) + "\n", "no end\n"]);
    assert.equal(stream.stdout, 18 + 400_001 + 7);
    await stream.close();
  });

  test("a line without an end is none", async () => {
    const process = await session.startProcess("p", { command: "echo whole; printf half" });
    await process.wait();
    const stream = await process.attach({ replay: true, lines: true });
    assert.deepEqual(await texts(stream), ["whole\n", "gap of 4"]);
    await stream.close();
  });

  test("connections that are cut", async () => {
    const want = Array.from({ length: 600 }, (_, n) => `${n} ${"y".repeat((n * 7) % 3000)}\n`);
    const process = await session.startProcess("mcp", { code: LINES, language: "python", stdin: true });
    const cuts = [900, 5000, 70000, 1200, 200000].map((cut) => through(SOCKET, cut));
    await new Server(...cuts, through(SOCKET)).with(async (server) => {
      const stream = await new Client(server.path).session(session.id).process(process.id).attach({ write: true, lines: true });
      const sending = stream.write(want.join("")).then(() => stream.closeStdin());
      assert.deepEqual(await texts(stream), want);
      await sending;
      await stream.close();
      assert.ok(server.accepted > cuts.length);
    });
  });

  test("a line that is too long", async () => {
    const process = await session.startProcess("cat", { argv: ["cat"], stdin: true });
    const stream = await process.attach({ write: true, lines: true });
    await assert.rejects(stream.write("x".repeat((16 << 20) + 1)), RangeError);
    await stream.close();
  });

  test("a line that is too long to come", async () => {
    const process = await session.startProcess("p", { command: "read x; echo one; head -c 17000000 /dev/zero | tr '\\0' x; echo; echo two", stdin: true });
    const stream = await process.attach({ write: true, lines: true });
    await stream.write("go\n");
    const pieces = [];
    for await (const piece of stream) {
      pieces.push(piece.kind === "gap" ? piece : piece.text);
    }
    assert.deepEqual(pieces, ["one\n", { kind: "gap", stream: "stdout", bytes: 17_000_001, offset: 4, reason: "long_line" }, "two\n"]);
    assert.equal(stream.stdout, 17_000_009);
    await stream.close();
    const half = await session.startProcess("half", { command: "read x; echo one; echo problem >&2; printf half", stdin: true });
    const rest = await half.attach({ write: true, lines: true });
    await assert.rejects(rest.communicate("go\n"), (error) => {
      assert.ok(error instanceof OutputMissing);
      assert.deepEqual(error.gap, { kind: "gap", stream: "stdout", bytes: 4, offset: 4, reason: "unfinished_line" });
      assert.deepEqual([`${error.stdout}`, `${error.stderr}`], ["one\n", "problem\n"]);
      return true;
    });
    await rest.close();
  });
});

test("the size of a terminal", async () => {
  const process = await session.startProcess("tty", { command: "trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.05; done", terminal: { rows: 20, cols: 70 } });
  const stream = await process.attach({ replay: true });
  await stream.next();
  await process.resize(30, 90);
  assert.match((await texts(stream)).join(""), /30 90/);
  await stream.close();
});

test("the last of an output", async () => {
  const process = await session.startProcess("p", { command: "echo one; echo two" });
  await process.wait();
  assert.deepEqual(await texts(process.logs({ tail: 4 })), ["two\n"]);
  assert.deepEqual((await texts(process.logs({ since: "2020-01-01T00:00:00Z" }))).join(""), "one\ntwo\n");
});
