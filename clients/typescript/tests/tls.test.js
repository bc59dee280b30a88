// SPDX-License-Identifier: Apache-2.0

// A real boxd at BOXD_HTTPS, which knows the client certificate BOXD_TEST_CERT and not BOXD_TEST_STRANGER. Each has its key in the same file.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { createServer, connect } from "node:net";
import { describe, test } from "node:test";
import { Pace } from "../dist/http.js";
import { Client, ConnectError, ConnectionLost, ProtocolError, TLSError, UnauthenticatedError } from "../dist/index.js";

const address = process.env.BOXD_HTTPS ?? "", tlsCa = process.env.BOXD_TEST_CA ?? "";
const tlsCert = process.env.BOXD_TEST_CERT ?? "", stranger = process.env.BOXD_TEST_STRANGER ?? "";
const big = randomBytes(3_000_000);

// Answers with how many bytes have come before their end.
const COUNTER = `
import socket
listener = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
conn, _ = listener.accept()
n = 0
while more := conn.recv(1 << 16):
    n += len(more)
conn.sendall(b"got %d" % n)
`;

test("what a client does by TLS", async () => {
  const before = { ...process.env };
  Object.assign(process.env, { BOXD_SOCKET: address, BOXD_TLS_CA: tlsCa, BOXD_TLS_CERT: tlsCert });
  const client = new Client();
  process.env = before;
  const session = await client.createSession();
  try {
    assert.equal((await session.get()).owner, "known");
    assert.equal((await session.exec(["echo", "tls"])).stdout, "tls\n");
    const stream = await session.stream(["cat"], { stdin: true });
    assert.ok(big.equals((await stream.communicate(big)).stdout));
    await stream.close();
    await session.files.write("f", big);
    assert.ok(big.equals(await session.files.read("f")));
    const server = await session.stream({ code: COUNTER, language: "python" });
    await server.next();
    const port = await session.openPort(8000);
    port.end(big);
    let answer = "";
    for await (const piece of port) {
      answer += piece;
    }
    assert.equal(answer, "got 3000000");
    await server.close();
    for await (const event of client.events({ session: session.id })) {
      assert.equal(event.type, "session.started");
      break;
    }
    const results = await Promise.all(Array.from({ length: 20 }, (_, n) => session.exec(["echo", String(n)])));
    assert.deepEqual(results.map((r) => r.stdout), Array.from({ length: 20 }, (_, n) => `${n}\n`));
  } finally {
    await session.delete();
  }
});

/** An address that leads to boxd, and ends each connection after so many bytes of it. */
async function through(/** @type {number} */ most, /** @type {(address: string) => Promise<void>} */ use) {
  const server = createServer((near) => {
    const far = connect(Number(new URL(address).port), "127.0.0.1");
    let left = most;
    const end = () => (near.destroy(), far.destroy());
    near.on("error", end).on("close", end).on("data", (data) => far.write(data));
    far.on("error", end).on("close", end).on("data", (data) => {
      near.write(data.subarray(0, left));
      left -= data.length;
      if (left <= 0) {
        near.end(end);
      }
    });
    if (!most) {
      end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(undefined)));
  try {
    await use(`https://127.0.0.1:${/** @type {import("node:net").AddressInfo} */ (server.address()).port}`);
  } finally {
    server.close();
  }
}

describe("what one end has against the other", () => {
  const none = "/nonexistent/none.pem";
  for (const [given, says] of /** @type {[import("../dist/index.js").ClientOptions, RegExp][]} */ ([
    [{ tlsCa, tlsCert: stranger }, /does not accept the client certificate \S*: /],
    [{ tlsCert }, /the certificate of the server is not accepted: /],
    [{ tlsCa: none }, /CA certificates: ENOENT.*none.pem/],
    [{ tlsCa: import.meta.filename ?? "package.json" }, /CA certificates: \S+ has no certificate/],
    [{ tlsCa, tlsCert: none }, /the client certificate: ENOENT.*none.pem/],
    [{ tlsCa, tlsCert: tlsCa }, /the client certificate /],
    [{ tlsCa, tlsKey: tlsCert }, /has no certificate/],
    [{ tlsCa, address: (process.env.BOXD_HTTP ?? "").replace("http:", "https:") }, /does not speak TLS: the address must begin with http:/],
  ])) {
    test(`${says}`, () =>
      assert.rejects(new Client({ address, ...given }).sessions(), (/** @type {Error} */ error) => {
        assert.ok(error instanceof TLSError, `${error}`);
        assert.match(error.message, says);
        return true;
      }));
  }

  test("no certificate, and no TLS", async () => {
    await assert.rejects(new Client({ address, tlsCa }).sessions(), UnauthenticatedError);
    await assert.rejects(new Client({ address: address.replace("https:", "http:") }).sessions(), (/** @type {Error} */ error) => {
      assert.ok(error instanceof ProtocolError && /must begin with https:/.test(error.message), `${error}`);
      return true;
    });
    assert.throws(() => new Client({ address: "https://" }), /https:\/\/HOST:PORT/);
  });
});

test("connections that end as none should", async () => {
  for (const most of [0, 100]) {
    await through(most, (at) => assert.rejects(new Client({ address: at, tlsCa }).sessions(), ConnectError));
  }
  const session = await new Client({ address, tlsCa, tlsCert }).createSession();
  const { total } = Pace;
  try {
    await session.files.write("f", big);
    Pace.total = 500; // a read is tried again for so long, and cut off each time
    for (const most of [20_000, 60_000]) {
      await through(most, (at) => assert.rejects(new Client({ address: at, tlsCa, tlsCert }).session(session.id).files.read("f"), ConnectionLost));
    }
  } finally {
    Pace.total = total;
    await session.delete();
  }
});
