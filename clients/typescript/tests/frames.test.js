// SPDX-License-Identifier: Apache-2.0

// Frames, addresses and input, without a connection.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { Client, ProtocolError } from "../dist/index.js";
import { acceptOf, closeReason, encode, Frames } from "../dist/frames.js";
import { segment, withQuery } from "../dist/http.js";
import { Input, LineCutter, MAX_INPUT } from "../dist/output.js";
import { frame } from "./faults.js";

test("messages are the same however they are cut", () => {
  const big = randomBytes(70000);
  const data = Buffer.concat([
    frame(2, "one"), frame(9, "?"), frame(2, "t", false), frame(9, "!"), frame(0, "w", false), frame(0, "o"), frame(2, big), frame(2, "x".repeat(200)), frame(8, "\x03"),
  ]);
  const want = [[2, "one"], [9, "?"], [9, "!"], [2, "two"], [2, big.toString("latin1")], [2, "x".repeat(200)], [8, "\x03"]];
  for (const step of [1, 2, 3, 7, 1000, data.length]) {
    const frames = new Frames(), found = [];
    for (let at = 0; at < data.length; at += step) {
      frames.feed(data.subarray(at, at + step));
      for (let message = frames.next(); message; message = frames.next()) {
        found.push([message.opcode, message.data.toString("latin1")]);
      }
    }
    assert.deepEqual(found, want, `in pieces of ${step}`);
  }
});

test("what is no frame is refused", () => {
  for (const data of [
    [0xf2, 0], [0x83, 0], [0x82, 0x81, 1, 2, 3, 4, 5], [0x89, 126, 0, 128], [0x08, 0], [0x80, 0], [0x02, 1, 97, 0x82, 1, 98], [0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0],
  ]) {
    const frames = new Frames(Buffer.from(data));
    assert.throws(() => { while (frames.next()); }, ProtocolError, String(data));
  }
});

test("frames of a client are masked", () => {
  for (const size of [0, 1, 125, 126, 65535, 65536]) {
    const data = randomBytes(size), sent = encode(2, data);
    assert.equal(sent[0], 0x82);
    assert.ok(sent[1] & 0x80);
    const at = 2 + ({ 126: 2, 127: 8 }[sent[1] & 0x7f] ?? 0);
    assert.deepEqual(Buffer.from(sent.subarray(at + 4).map((b, i) => b ^ sent[at + i % 4])), data);
  }
  assert.equal(acceptOf("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
  assert.deepEqual(closeReason(Buffer.alloc(0)), { code: 1005, reason: "" });
});

test("an id is one segment, and what is not given is not in the query", () => {
  for (const [text, want] of [["a/b", "a%2Fb"], [".", "%2E"], ["..", "%2E%2E"], ["a.b", "a.b"], ["ä?", "%C3%A4%3F"]]) {
    assert.equal(segment(text), want);
  }
  assert.throws(() => segment(""), TypeError);
  assert.equal(withQuery("/x", [["a", undefined], ["b", false]]), "/x");
  assert.equal(withQuery("/x", [["a", true], ["b", "1&2"], ["b", 0]]), "/x?a=true&b=1%262&b=0");
});

test("addresses", () => {
  for (const address of ["ftp://127.0.0.1:1", "https://h/path", "http://127.0.0.1", "http://h:1/path"]) {
    assert.throws(() => new Client(address), TypeError);
  }
  assert.ok(new Client("http://[::1]:8080"));
});

test("what is not confirmed is sent again", () => {
  const input = new Input();
  input.begin(10);
  input.add(Buffer.alloc(MAX_INPUT + 5));
  assert.equal(input.next(), undefined); // not ready
  input.ready = true;
  assert.equal(input.next()?.length, MAX_INPUT);
  input.wasSent(MAX_INPUT);
  assert.equal(input.next()?.length, 5);
  input.wasSent(5);
  assert.equal(input.next(), undefined);
  input.confirm(20);
  assert.deepEqual([input.base, input.waiting], [20, MAX_INPUT - 5]);
  input.renew();
  input.ready = input.ended = true;
  input.confirm(30); // what boxd has had on another connection is sent again all the same
  assert.deepEqual([input.base, input.waiting], [20, MAX_INPUT - 15]);
  assert.equal(input.next()?.length, MAX_INPUT - 5);
  input.wasSent(MAX_INPUT - 5);
  assert.equal(input.base, 30);
  assert.equal(input.next()?.length, 0);
  input.wasSent(0);
  assert.equal(input.next(), undefined);
});

test("a message that is not confirmed counts", () => {
  const input = new Input();
  input.ready = true;
  let n = 0;
  for (; n < 600; n++) {
    input.add(Buffer.of(1));
    if (!input.next()) {
      break;
    }
    input.wasSent(1);
  }
  assert.equal(n, 512);
  input.confirm(1);
  assert.ok(input.next());
});

test("lines are cut alike however they are written", () => {
  const data = Buffer.from("one\n\n\ntwo\r\nthree");
  for (let step = 1; step <= data.length; step++) {
    const cutter = new LineCutter(), found = [];
    for (let at = 0; at < data.length; at += step) {
      found.push(...cutter.cut(data.subarray(at, at + step)));
    }
    found.push(...cutter.cut(Buffer.of(), true));
    assert.deepEqual(found.map(String), ["one\n", "two\r\n", "three\n"]);
    assert.deepEqual(cutter.cut(Buffer.of(), true), []);
  }
});

test("a line has its bound", () => {
  const cutter = new LineCutter(), most = 16 << 20;
  assert.equal(cutter.cut(Buffer.concat([Buffer.alloc(most, "x"), Buffer.from("\n")])).length, 1);
  assert.equal(cutter.cut(Buffer.alloc(most, "x")).length, 0);
  assert.throws(() => cutter.cut(Buffer.from("x")), RangeError);
  assert.throws(() => cutter.cut(Buffer.concat([Buffer.alloc(most + 1, "x"), Buffer.from("\n")])), RangeError);
});

test("lines are sent again whole", () => {
  const input = new Input(true);
  input.begin(10);
  input.ready = true;
  for (const line of ["one\n", "two\n", "three\n"]) {
    input.add(Buffer.from(line));
  }
  /** @param {string[]} lines */
  const sends = (...lines) => {
    for (const line of lines) {
      assert.equal(String(input.next()), line);
      input.wasSent(line.length);
    }
  };
  sends("one", "two");
  input.confirm(16); // one, and half of two
  assert.deepEqual([input.base, input.waiting], [14, 8]);
  input.renew();
  input.ready = input.ended = true;
  sends("two", "three", "");
  input.confirm(24);
  assert.deepEqual([input.base, input.waiting, input.next()], [24, 0, undefined]);
});
