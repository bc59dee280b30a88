// SPDX-License-Identifier: Apache-2.0

// The frames of a WebSocket (RFC 6455), without a connection.

import { createHash, randomBytes } from "node:crypto";
import { ProtocolError } from "./errors.js";

export const CONTINUATION = 0x0, BINARY = 0x2, CLOSE = 0x8, PING = 0x9, PONG = 0xa;
const KNOWN = new Set([CONTINUATION, 0x1, BINARY, CLOSE, PING, PONG]);

/** A message of boxd may have so many bytes: output comes in pieces of 256 KiB, a result has no output. */
export const MAX_MESSAGE = 64 << 20;

const MAX_CONTROL = 125;

/** The Sec-WebSocket-Key of a handshake. */
export function newKey(): string {
  return randomBytes(16).toString("base64");
}

/** The Sec-WebSocket-Accept that answers a key. */
export function acceptOf(key: string): string {
  return createHash("sha1").update(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest("base64");
}

/** A frame as a client sends it: whole, and masked. */
export function encode(opcode: number, data: Uint8Array): Buffer {
  const n = data.length, at = n < 126 ? 2 : n < 1 << 16 ? 4 : 10;
  const frame = Buffer.allocUnsafe(at + 4 + n);
  frame[0] = 0x80 | opcode;
  if (n < 126) {
    frame[1] = 0x80 | n;
  } else if (n < 1 << 16) {
    frame[1] = 0x80 | 126;
    frame.writeUInt16BE(n, 2);
  } else {
    frame[1] = 0x80 | 127;
    frame.writeBigUInt64BE(BigInt(n), 2);
  }
  const key = randomBytes(4);
  frame.set(key, at);
  for (let i = 0; i < n; i++) {
    frame[at + 4 + i] = data[i]! ^ key[i & 3]!;
  }
  return frame;
}

/** A message, or a control frame. */
export interface Message {
  opcode: number;
  data: Buffer;
}

/** Makes messages of the bytes that come. */
export class Frames {
  #buffer: Buffer;
  #kind = 0;
  #parts: Buffer[] = [];
  #size = 0;

  constructor(data: Uint8Array = new Uint8Array()) {
    this.#buffer = Buffer.from(data);
  }

  /** Adds bytes, cut anywhere. */
  feed(data: Uint8Array): void {
    this.#buffer = this.#buffer.length ? Buffer.concat([this.#buffer, data]) : Buffer.from(data);
  }

  /** The next message or control frame; undefined if more bytes have to come. */
  next(): Message | undefined {
    for (;;) {
      const frame = this.#frame();
      if (!frame) {
        return undefined;
      }
      const { last, opcode, data } = frame;
      if (opcode >= CLOSE) {
        return { opcode, data };
      }
      if (opcode === CONTINUATION) {
        if (!this.#kind) {
          throw new ProtocolError("WebSocket: a continuation of no message");
        }
      } else if (this.#kind) {
        throw new ProtocolError("WebSocket: a message begins within another");
      } else if (last) {
        return { opcode, data };
      } else {
        this.#kind = opcode;
      }
      this.#parts.push(data);
      this.#size += data.length;
      if (this.#size > MAX_MESSAGE) {
        throw new ProtocolError(`WebSocket: a message has more than ${MAX_MESSAGE} bytes`);
      }
      if (last) {
        const message = { opcode: this.#kind, data: Buffer.concat(this.#parts) };
        this.#kind = this.#size = 0;
        this.#parts = [];
        return message;
      }
    }
  }

  #frame(): { last: boolean; opcode: number; data: Buffer } | undefined {
    const b = this.#buffer;
    if (b.length < 2) {
      return undefined;
    }
    const first = b[0]!, opcode = first & 0x0f;
    let n = b[1]! & 0x7f, at = 2;
    if (first & 0x70) {
      throw new ProtocolError("WebSocket: reserved bits are set");
    }
    if (!KNOWN.has(opcode)) {
      throw new ProtocolError(`WebSocket: unknown opcode ${opcode}`);
    }
    if (b[1]! & 0x80) {
      throw new ProtocolError("WebSocket: a server must not mask");
    }
    if (opcode >= CLOSE && (n > MAX_CONTROL || !(first & 0x80))) {
      throw new ProtocolError("WebSocket: a control frame is long or fragmented");
    }
    if (n === 126) {
      if (b.length < 4) {
        return undefined;
      }
      n = b.readUInt16BE(2);
      at = 4;
    } else if (n === 127) {
      if (b.length < 10) {
        return undefined;
      }
      const size = b.readBigUInt64BE(2);
      if (size > BigInt(MAX_MESSAGE)) {
        throw new ProtocolError(`WebSocket: a frame has ${size} bytes, at most ${MAX_MESSAGE} are expected`);
      }
      n = Number(size);
      at = 10;
    }
    if (b.length < at + n) {
      return undefined;
    }
    this.#buffer = b.subarray(at + n);
    return { last: Boolean(first & 0x80), opcode, data: b.subarray(at, at + n) };
  }
}

/** Code and reason of a close frame; 1005 if there is none. */
export function closeReason(data: Buffer): { code: number; reason: string } {
  return data.length < 2 ? { code: 1005, reason: "" } : { code: data.readUInt16BE(0), reason: data.toString("utf8", 2) };
}
