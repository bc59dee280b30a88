// SPDX-License-Identifier: Apache-2.0

// Servers that do what they should not: cut connections, send half frames, say nothing.

import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { acceptOf } from "../dist/frames.js";

/** @typedef {(socket: import("node:net").Socket) => void | Promise<void>} Serve */

/** Serves each connection by the next of some functions, the last one again and again. */
export class Server {
  /** @type {Set<import("node:net").Socket>} */
  #sockets = new Set();
  #dir = mkdtempSync(join(tmpdir(), "boxd"));
  #server;
  path = join(this.#dir, "s");
  accepted = 0;

  /** @param {Serve[]} serve */
  constructor(...serve) {
    this.#server = createServer({ allowHalfOpen: true }, (socket) => {
      this.#sockets.add(socket);
      socket.on("error", () => {}).on("close", () => this.#sockets.delete(socket));
      const one = serve[Math.min(this.accepted++, serve.length - 1)];
      Promise.resolve(one(socket)).catch(() => {}).finally(() => socket.end(() => socket.destroy()));
    });
  }

  /**
   * @param {(server: Server) => Promise<void>} use
   */
  async with(use) {
    await new Promise((resolve) => this.#server.listen(this.path, () => resolve(undefined)));
    try {
      await use(this);
    } finally {
      for (const socket of this.#sockets) {
        socket.destroy();
      }
      await new Promise((resolve) => this.#server.close(resolve));
      rmSync(this.#dir, { recursive: true, force: true });
    }
  }
}

/**
 * Reads a request up to its empty line, and what has come behind it.
 * @param {import("node:net").Socket} socket
 */
export async function head(socket) {
  let data = "";
  while (!data.includes("\r\n\r\n")) {
    data += (await some(socket)).toString("latin1");
  }
  return data;
}

/**
 * @param {import("node:net").Socket} socket
 * @returns {Promise<Buffer>}
 */
function some(socket) {
  return new Promise((resolve, reject) => {
    const data = socket.read();
    if (data) {
      resolve(data);
      return;
    }
    const readable = () => {
      const data = socket.read();
      if (data) {
        done(() => resolve(data));
      }
    };
    const end = () => done(() => reject(new Error("the end")));
    /** @param {() => void} settle */
    const done = (settle) => {
      socket.off("readable", readable).off("end", end).off("close", end);
      settle();
    };
    socket.on("readable", readable).on("end", end).on("close", end);
  });
}

/**
 * @param {import("node:net").Socket} socket
 * @param {Uint8Array | string} data
 */
function send(socket, data) {
  return new Promise((resolve) => socket.write(data, () => resolve(undefined)));
}

/**
 * Reads a request, and sends some bytes.
 * @param {(Uint8Array | string)[]} pieces
 * @returns {Serve}
 */
export function says(...pieces) {
  return async (socket) => {
    await head(socket);
    for (const piece of pieces) {
      await send(socket, piece);
    }
  };
}

/**
 * Answers a WebSocket, reads its first message, and sends some bytes.
 * @param {Uint8Array} data
 * @param {Serve} [then]
 * @returns {Serve}
 */
export function upgraded(data, then) {
  return async (socket) => {
    const key = /Sec-WebSocket-Key: (.*)\r/.exec(await head(socket))?.[1] ?? "";
    await send(socket, `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${acceptOf(key)}\r\n\r\n`);
    await some(socket);
    await send(socket, data);
    await then?.(socket);
  };
}

/**
 * Reads all there is, and says nothing.
 * @param {import("node:net").Socket} socket
 */
export async function silent(socket) {
  for (;;) {
    await some(socket);
  }
}

/**
 * Forwards to another socket, and cuts the connection after so many bytes of what comes back.
 * @param {string} upstream
 * @param {number} [cut]
 * @returns {Serve}
 */
export function through(upstream, cut = Infinity) {
  return (socket) => new Promise((resolve) => {
    const other = connect(upstream);
    let left = cut;
    const end = () => {
      socket.destroy();
      other.destroy();
      resolve();
    };
    socket.on("data", (data) => other.write(data)).on("end", end).on("close", end);
    other.on("data", (data) => {
      if (left <= 0) {
        return;
      }
      const part = data.subarray(0, Math.min(left, data.length));
      left -= part.length;
      socket.write(part, () => left > 0 || end());
    }).on("end", () => setImmediate(() => socket.end(end))).on("error", end);
    if (left <= 0) {
      end();
    }
  });
}

/**
 * A frame as a server sends it.
 * @param {number} opcode
 * @param {Uint8Array | string} data
 * @param {boolean} [last]
 */
export function frame(opcode, data, last = true) {
  const body = Buffer.from(data), first = opcode | (last ? 0x80 : 0);
  if (body.length < 126) {
    return Buffer.concat([Buffer.of(first, body.length), body]);
  }
  const size = Buffer.alloc(body.length < 1 << 16 ? 2 : 8);
  if (size.length === 2) {
    size.writeUInt16BE(body.length);
  } else {
    size.writeBigUInt64BE(BigInt(body.length));
  }
  return Buffer.concat([Buffer.of(first, size.length === 2 ? 126 : 127), size, body]);
}

/** @param {unknown} message */
export function control(message) {
  return frame(2, "\x03" + JSON.stringify(message));
}
