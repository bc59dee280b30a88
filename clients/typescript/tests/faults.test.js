// SPDX-License-Identifier: Apache-2.0

// A server that breaks the rules, or off.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client, ConnectError, ConnectionLost, ExhaustedError, NotFoundError, ProblemError, ProtocolError, RequestTimeout, StreamEnded } from "../dist/index.js";
import { Pace } from "../dist/http.js";
import { control, frame, head, says, Server, silent, upgraded } from "./faults.js";

Pace.first = 10;
Pace.most = 50;
Pace.total = 300_000; // a slow host may need long for two tries

/** Has a lost connection be given up, and soon, while something is done. */
async function givesUp(/** @type {() => Promise<void>} */ while_) {
  const { total } = Pace;
  Pace.total = 500;
  try {
    await while_();
  } finally {
    Pace.total = total;
  }
}

const STATUS = '{"version":"v1"}';
const ANSWER = `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${STATUS.length}\r\n\r\n${STATUS}`;
const EXIT = { exit: { session: "s", status: "exited", exit_code: 0 } };

/**
 * @param {number} status
 * @param {string} code
 */
function refused(status, code, detail = "no") {
  const text = JSON.stringify({ type: "urn:boxd:problem:" + code, title: "", status, detail });
  return `HTTP/1.1 ${status} No\r\nContent-Length: ${text.length}\r\nX-Request-Id: abc\r\n\r\n${text}`;
}

test("a get is made again wherever it was cut", async () => {
  for (let cut = 0; cut < ANSWER.length; cut += 7) {
    await new Server(says(ANSWER.slice(0, cut)), says(ANSWER)).with(async (server) => {
      assert.equal((await new Client(server.path).status()).version, "v1", `cut at ${cut}`);
      assert.equal(server.accepted, 2);
    });
  }
});

test("a get is given up", () => new Server(says(ANSWER.slice(0, -1))).with(async (server) => {
  await givesUp(() => assert.rejects(new Client(server.path).status(), ConnectionLost));
  assert.ok(server.accepted > 1);
}));

test("what is not safe is made once", () => new Server(says("")).with(async (server) => {
  const client = new Client(server.path), session = client.session("s");
  for (const call of [
    () => session.exec(["true"]), () => client.createSession(), () => client.run(["true"]), () => session.process("p").signal("SIGHUP"),
    () => session.files.write("a", "b"), () => session.files.upload("a", "b"), () => session.files.edit("a", []), () => session.files.remove("a"),
    () => session.files.move("a", "b"), () => session.files.uploadArchive(""), () => client.request("POST", "/v1/skills", {}),
    () => session.keepWorkspace("w"), () => session.createSnapshot("s"), () => session.discardRoot(), () => session.commitImage({ name: "i" }), () => session.files.collectArchive(["a"]),
    () => client.workspaces.create({ name: "w" }), () => client.images.upload(""), () => client.images.prune(),
    () => client.skills.create({ name: "s", description: "d" }), () => client.skills.update("s", { license: "MIT", if_match: "sha256:0" }),
    () => client.skills.writeFile("s", "a", "b", { if_match: "sha256:0" }), () => client.skills.removeFile("s", "a"),
    () => client.skills.install({ url: "https://example.org/a.zip" }), () => client.skills.preview({ content: "" }),
    () => client.drives.fill("d", { content: "" }), () => client.drives.fill("d", { session: "s", path: "a" }),
    () => client.grant({ principal: "uid:1", role: "operator", for: "1h" }), () => client.ready(), () => session.openPort(80),
  ]) {
    const before = server.accepted;
    await assert.rejects(call(), ConnectionLost, String(call));
    assert.equal(server.accepted, before + 1, String(call));
  }
}));

test("what has an id is made again", async () => {
  const done = JSON.stringify({ id: "x", session: "s", status: "exited", state: "running" });
  const answer = `HTTP/1.1 200 OK\r\nContent-Length: ${done.length}\r\n\r\n${done}`;
  /** @type {((client: Client) => Promise<unknown>)[]} */
  const calls = [
    (c) => c.session("s").exec({ argv: ["true"], id: "x" }), (c) => c.session("s").startExec("x", ["true"]), (c) => c.createSession({ id: "x" }),
    (c) => c.session("s").startProcess("x", ["true"]), (c) => c.session("s").update({ ttl: "1h" }), (c) => c.session("s").stop(), (c) => c.session("s").delete(),
    (c) => c.workspaces.update("w", { quota: "1GiB" }), (c) => c.workspaces.delete("w"), (c) => c.images.delete("i"),
    (c) => c.skills.update("s", { license: "MIT" }), (c) => c.skills.writeFile("s", "a", "b"), (c) => c.skills.index(),
    (c) => c.drives.update("d", { push: true }), (c) => c.drives.markPushed("d", 1), (c) => c.session("s").activateSkill("s"),
    (c) => c.session("s").makeSkillEnvironment("s"), (c) => c.session("s").switchDrive("d"), (c) => c.session("s").detachDrive("d"),
    (c) => c.session("s").diffRoot(), (c) => c.session("s").previewPort(80), (c) => c.drain(), (c) => c.undrain(),
  ];
  for (const call of calls) {
    await new Server(says(""), says(answer)).with(async (server) => {
      await call(new Client(server.path));
      assert.equal(server.accepted, 2);
    });
  }
});

test("a delete whose answer was lost is done", async () => {
  await new Server(says(""), says(refused(404, "not_found"))).with((server) => new Client(server.path).session("s").delete());
  await new Server(says(refused(404, "not_found"))).with((server) => assert.rejects(new Client(server.path).session("s").delete(), (error) => {
    assert.ok(error instanceof NotFoundError && error instanceof ProblemError);
    assert.deepEqual([error.code, error.status, error.requestId, error.name], ["not_found", 404, "abc", "NotFoundError"]);
    return true;
  }));
});

test("unavailable is asked again when that is safe", () => new Server(says(refused(503, "unavailable")), says(ANSWER)).with(async (server) => {
  assert.equal((await new Client(server.path).status()).version, "v1");
}));

test("a list has all pages", async () => {
  /** @type {string[]} */
  const seen = [];
  /**
   * @param {string} text
   * @returns {import("./faults.js").Serve}
   */
  const page = (text) => async (socket) => {
    seen.push((await head(socket)).split(" HTTP")[0]);
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
  };
  await new Server(page('{"sessions":[{"id":"a"}],"next":"x&y"}'), page('{"sessions":[{"id":"b"}]}')).with(async (server) => {
    assert.deepEqual((await new Client(server.path).sessions({ labels: { a: "b" } })).map((s) => s.id), ["a", "b"]);
  });
  assert.deepEqual(seen, ["GET /v1/sessions?label=a%3Db", "GET /v1/sessions?label=a%3Db&after=x%26y"]);
});

test("nobody is there", async () => {
  await assert.rejects(new Client("/nowhere/boxd.sock").status(), ConnectError);
  await assert.rejects(new Client("/nowhere/boxd.sock").session("s").stream(["true"]), ConnectError);
});

test("a silent server", () => new Server(silent).with(async (server) => {
  const client = new Client({ address: server.path, timeout: 100 });
  await assert.rejects(client.status(), RequestTimeout);
  await assert.rejects(client.request("POST", "/v1/x", {}), RequestTimeout);
}));

test("another server", async () => {
  for (const answer of [
    "SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\noops", "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n", "HTTP/1.1 200 OK\r\nX: " + "x".repeat(1 << 17),
  ]) {
    await new Server(says(answer)).with((server) => assert.rejects(new Client(server.path).status(), ProtocolError, answer.slice(0, 60)));
  }
});

test("a download that is cut is no file", async () => {
  for (const answer of [
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
  ]) {
    await new Server(says(answer)).with((server) => assert.rejects(async () => {
      for await (const _ of await new Client(server.path).session("s").files.downloadArchive());
    }, ConnectionLost));
  }
});

test("a refused upload says why", () => new Server(says(refused(400, "invalid", "no such thing"))).with(async (server) => {
  const pieces = function* () {
    for (let i = 0; i < 1000; i++) {
      yield Buffer.alloc(100_000);
    }
  };
  await assert.rejects(new Client(server.path).session("s").files.upload("a", pieces()), /no such thing/);
}));

test("half frames", async () => {
  const whole = Buffer.concat([control({ started: { session: "s" } }), frame(2, "\x01hello"), control(EXIT)]);
  for (let cut = 0; cut < whole.length; cut += 3) {
    await new Server(upgraded(whole.subarray(0, cut)), says(refused(404, "not_found"))).with((server) => assert.rejects(async () => {
      const stream = await new Client(server.path).session("s").stream(["true"]);
      try {
        await stream.wait();
      } finally {
        await stream.close();
      }
    }, StreamEnded, `cut at ${cut}`));
  }
});

test("a program that has not begun is not begun twice", async () => {
  /** @type {string[]} */
  const seen = [];
  const { total } = Pace;
  await new Server(upgraded(Buffer.alloc(0)), async (socket) => {
    if (seen.push(await head(socket)) > 1) {
      Pace.total = 500; // it is given up then, and soon
    }
  }).with((server) => assert.rejects(new Client(server.path).session("s").stream(["true"]), StreamEnded)).finally(() => { Pace.total = total; });
  const attached = seen.filter((request) => !request.startsWith("DELETE "));
  assert.ok(attached.length > 1);
  for (const request of attached) {
    assert.match(request, /^GET \/v1\/sessions\/s\/processes\/[0-9a-f]{26}\/stream /);
  }
});

test("a start that is refused is not tried again", async () => {
  const error = { type: "urn:boxd:problem:exhausted", title: "", status: 429, detail: "too many" };
  await new Server(upgraded(control({ error }), silent)).with(async (server) => {
    await assert.rejects(new Client(server.path).session("s").stream({ argv: ["true"], id: "x" }), ExhaustedError);
    await assert.rejects(new Client(server.path).session("s").process("p").attach(), ExhaustedError);
    assert.equal(server.accepted, 2);
  });
});

test("a stream goes on at its byte", async () => {
  const attached = { process: { id: "p" }, stderr: 0, stdin: 0, writer: false };
  const first = Buffer.concat([control({ attached: { ...attached, stdout: 0 } }), frame(2, "\x01hello")]);
  const again = Buffer.concat([
    control({ attached: { ...attached, stdout: 3 } }), frame(2, "\x01lo, wo", false), frame(9, "ping"), frame(0, "rld"), control({ gap: { stream: "stdout", bytes: 4 } }), control(EXIT),
  ]);
  await new Server(upgraded(first), upgraded(again)).with(async (server) => {
    const stream = await new Client(server.path).session("s").process("p").attach({ replay: true });
    const items = [];
    for await (const item of stream) {
      items.push(item.kind === "gap" ? [item.offset, item.bytes] : [item.offset, item.text]);
    }
    assert.deepEqual(items, [[0, "hello"], [5, ", world"], [12, 4]]);
    assert.equal(stream.stdout, 16);
    await stream.close();
  });
});

test("rules that are broken", async () => {
  const started = control({ started: { session: "s" } });
  for (const data of [
    frame(1, "hello"), frame(2, ""), frame(2, "\x07hello"), frame(2, "\x03{"), frame(2, "\x03[]"), Buffer.of(0x82, 0x81, 1, 2, 3, 4, 5),
    frame(8, Buffer.concat([Buffer.of(3, 0xf0), Buffer.from("broken")])),
  ]) {
    await new Server(upgraded(Buffer.concat([started, data]), silent)).with((server) => assert.rejects(async () => {
      const stream = await new Client(server.path).session("s").stream(["true"]);
      try {
        await stream.wait();
      } finally {
        await stream.close();
      }
    }, ProtocolError, data.toString("hex")));
  }
});

test("no WebSocket", async () => {
  for (const answer of [ANSWER, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n"]) {
    await new Server(says(answer)).with((server) => assert.rejects(new Client(server.path).session("s").stream(["true"]), ProtocolError));
  }
});

test("events go on after the last one", async () => {
  /** @type {string[]} */
  const seen = [];
  /** @param {number} n */
  const event = (n) => `id: ${n}\ndata: {"id":"e${n}","time":"","type":"oom"}\n\n`;
  /** @param {string} data */
  const chunk = (data) => `${data.length.toString(16)}\r\n${data}\r\n`;
  const begin = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  /**
   * @param {string} data
   * @returns {import("./faults.js").Serve}
   */
  const serve = (data) => async (socket) => {
    seen.push((await head(socket)).split(" HTTP")[0]);
    socket.write(data);
  };
  await new Server(serve(begin + chunk(": comment\n\n" + event(1) + "data: {half")), serve(""), serve(begin + chunk(event(2)))).with(async (server) => {
    const ids = [], events = new Client(server.path).events();
    for await (const { id } of events) {
      ids.push(id);
      if (ids.length === 2) {
        break;
      }
    }
    assert.deepEqual(ids, ["e1", "e2"]);
    assert.equal(events.lastId, "e2");
  });
  assert.deepEqual(seen, ["GET /v1/events?follow=true", "GET /v1/events?after=e1&follow=true", "GET /v1/events?after=e1&follow=true"]);
  seen.length = 0;
  await new Server(serve(begin + chunk("id: p1\n\n")), serve(begin + chunk("id: p2\n\nid: half\n")), serve(begin + chunk(event(3)))).with(async (server) => {
    for await (const { id } of new Client(server.path).events({ after: "latest" })) {
      assert.equal(id, "e3");
      break;
    }
  });
  assert.deepEqual(seen, ["latest", "p1", "p2"].map((after) => `GET /v1/events?after=${after}&follow=true`));
  const { most } = Pace;
  Pace.most = 60_000; // no connection lasts so long
  await new Server(serve(begin + chunk("id: p1\n\n"))).with((server) => // which says where it is and ends, each time
    givesUp(() => assert.rejects(new Client(server.path).events({ after: "latest" }).next(), ConnectionLost))).finally(() => { Pace.most = most; });
});

test("a watch that is cut is an error", () => new Server(says('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n{"event":"watching"}\n\r\n')).with(async (server) => {
  const watch = await new Client(server.path).session("s").files.watch();
  assert.equal((await watch.next()).value?.event, "watching");
  await assert.rejects(watch.next(), ConnectionLost);
  assert.equal(server.accepted, 1);
}));

test("a call that is aborted ends its connection", async () => {
  let ended = () => {};
  const over = new Promise((resolve) => { ended = () => resolve(undefined); });
  await new Server((socket) => silent(socket)?.catch(ended)).with(async (server) => {
    const controller = new AbortController();
    const call = new Client(server.path).session("s").exec(["true"], { signal: controller.signal });
    setTimeout(() => controller.abort(new Error("enough")), 50);
    await assert.rejects(call, /enough/);
    await over;
    await assert.rejects(new Client(server.path).status({ signal: controller.signal }), /enough/);
  });
});
