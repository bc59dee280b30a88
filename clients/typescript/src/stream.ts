// SPDX-License-Identifier: Apache-2.0

// A program with its output as it comes.

import { once } from "node:events";
import type { Socket } from "node:net";
import { ConnectError, ConnectionLost, OutputMissing, ProblemError, ProcessGone, ProtocolError, RequestTimeout, StreamEnded, WriterLost } from "./errors.js";
import { acceptOf, BINARY, CLOSE, closeReason, encode, Frames, newKey, PING, PONG, type Message } from "./frames.js";
import { Pace, parse, problemOf, sleep, type Transport } from "./http.js";
import { Input, LineCutter, MAX_INPUT, output, WINDOW, type Gap, type Output, type StreamName } from "./output.js";
import type { Clamp, ClientControl, ExecResult, Process, ServerControl, StreamAttach, StreamAttached } from "./types.js";

// boxd pings every 30 seconds.
const SILENCE = 90_000;

// How long boxd may take to forget a program after its end.
const FORGET_PATIENCE = 5000;

// What nobody has read yet may have so many bytes before the program has to wait.
const MAX_QUEUE = 1 << 20;

const NAMES: [StreamName, StreamName] = ["stdout", "stderr"];

/** What a stream consists of. */
export interface Opening {
  transport: Transport;
  /** of the first connection */
  path: string;
  /** of those that follow, which attach to the process; none if it ends with the first one */
  again?: string;
  /** of the process */
  process?: string;
  first: ClientControl;
  attach: StreamAttach;
  /** boxd is to forget the process with the stream */
  forget: boolean;
  signal?: AbortSignal | undefined;
}

/**
 * A program with its output as it comes: an iterable of Output and Gap, which ends with the program.
 *
 * A connection that is lost is made again without a byte more or less. Only one that cannot be made again within half a minute
 * is an error. Call close when you are done; leaving the loop does not.
 */
export class Stream implements AsyncIterable<Output | Gap> {
  /** what has become of the program, once it has ended */
  result: ExecResult | undefined;
  /** what boxd has said of the process last, when attached */
  process: Process | undefined;
  /** values that boxd has lowered */
  clamped: Clamp[] = [];

  #opening: Opening;
  #ending = new AbortController();
  #running: Promise<void> | undefined;
  #socket: Socket | undefined;
  #items: (Output | Gap)[] = [];
  #queued = 0;
  #lines: LineCutter | undefined;
  #input: Input;
  #controls: ClientControl[] = [];
  #writes: boolean;
  #at: [number, number] = [0, 0]; // bytes that have come
  #skip: [number, number] = [0, 0]; // bytes that come a second time
  #read: [number, number] = [0, 0]; // bytes that the caller has taken
  #pace = new Pace();
  #sent = false;
  #begun = false;
  #attached = false;
  #closed = false;
  #forgotten = false;
  #failed: unknown;
  #waiting: (() => void)[] = [];

  /** Opens a stream. */
  static async open(opening: Opening): Promise<Stream> {
    const stream = new Stream(opening);
    try {
      stream.#running = stream.#run();
      while (!stream.#begun && !stream.result) {
        await stream.#change();
      }
    } catch (error) {
      await stream.close();
      throw error;
    }
    return stream;
  }

  private constructor(opening: Opening) {
    this.#opening = opening;
    this.#writes = Boolean(opening.attach.write);
    this.#lines = opening.attach.lines ? new LineCutter() : undefined;
    this.#input = new Input(Boolean(this.#lines));
    this.#ending.signal.addEventListener("abort", () => this.#notify(), { once: true });
    const { signal } = opening;
    if (signal) {
      const end = () => this.#ending.abort(signal.reason);
      if (signal.aborted) {
        end();
      }
      signal.addEventListener("abort", end, { once: true });
      this.#ending.signal.addEventListener("abort", () => signal.removeEventListener("abort", end), { once: true });
    }
  }

  /** Bytes of standard output that have been read: give it to attach to go on here later. */
  get stdout(): number {
    return this.#read[0];
  }

  /** Bytes of standard error that have been read. */
  get stderr(): number {
    return this.#read[1];
  }

  /** The next piece of output; undefined when the program has ended. */
  async next(): Promise<Output | Gap | undefined> {
    while (!this.#items.length) {
      if (this.result) {
        return undefined;
      }
      await this.#change();
    }
    const item = this.#items.shift()!;
    const size = item.kind === "gap" ? item.bytes : item.data.length;
    this.#read[item.stream === "stderr" ? 1 : 0] = item.offset + size;
    if (item.kind === "output") {
      this.#queued -= size;
      this.#notify();
    }
    return item;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Output | Gap, void, undefined> {
    for (let item = await this.next(); item; item = await this.next()) {
      yield item;
    }
  }

  /** Reads the rest of the output, and returns the result. */
  async wait(): Promise<ExecResult> {
    while (await this.next());
    return this.result!;
  }

  /** Sends all input and its end, and returns the rest of both streams. What is missing of them is an OutputMissing at the end. */
  async communicate(input: Uint8Array | string = ""): Promise<{ stdout: Buffer; stderr: Buffer; result: ExecResult }> {
    const parts: [Uint8Array[], Uint8Array[]] = [[], []];
    let gap: Gap | undefined;
    const sending = this.#writes ? this.write(input).then(() => this.closeStdin()) : Promise.resolve();
    sending.catch(() => {}); // told below
    for await (const item of this) {
      if (item.kind === "output") {
        parts[item.stream === "stderr" ? 1 : 0].push(item.data);
      } else {
        gap ??= item;
      }
    }
    await sending;
    const [stdout, stderr] = parts.map((pieces) => Buffer.concat(pieces)) as [Buffer, Buffer];
    if (gap) {
      throw new OutputMissing(gap, stdout, stderr);
    }
    return { stdout, stderr, result: this.result! };
  }

  /**
   * Sends input. It waits while boxd has not taken what was sent before. What the program has not read when it ends is dropped. Of a
   * stream of lines, one that has no end yet waits for it.
   *
   * A program that waits until its output is read takes no input: read at the same time if there is much of both.
   */
  async write(data: Uint8Array | string): Promise<void> {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    if (!this.#lines) {
      for (let at = 0; at < bytes.length; at += MAX_INPUT) {
        await this.#queue(bytes.subarray(at, at + MAX_INPUT));
      }
      return;
    }
    this.#checkWriter();
    for (const line of this.#lines.cut(bytes)) {
      await this.#queue(line);
    }
  }

  async #queue(piece: Uint8Array): Promise<void> {
    // What is longer than the window has it for itself.
    while (!this.result && this.#input.waiting && this.#input.waiting + piece.length > WINDOW) {
      this.#checkWriter();
      await this.#change();
    }
    this.#checkWriter();
    this.#input.add(piece);
    this.#flush();
  }

  /** Ends the input. */
  async closeStdin(): Promise<void> {
    this.#checkWriter();
    for (const line of this.#lines?.cut(Buffer.of(), true) ?? []) {
      await this.#queue(line);
    }
    this.#input.ended = true;
    this.#flush();
  }

  /** Sends a signal such as SIGINT to the program. */
  signal(signal: string): void {
    this.#controls.push({ signal });
    this.#flush();
  }

  /** Gives the terminal another size. */
  resize(rows: number, cols: number): void {
    this.#controls.push({ resize: { rows, cols } });
    this.#flush();
  }

  /** Ends the stream. A program of stream without an id ends with it; others are left alone. */
  async close(): Promise<void> {
    if (this.#closed) {
      await this.#running;
      return;
    }
    this.#closed = true;
    this.#ending.abort(new StreamEnded("the stream is closed"));
    this.#socket?.destroy();
    await this.#running;
    const { process } = this.#opening;
    if (process && this.#opening.forget && this.#sent && !this.#forgotten) {
      try { // no other client knows it
        await this.#opening.transport.json("DELETE", process, undefined, { safe: false, timeout: FORGET_PATIENCE });
      } catch {
        // its lease ends it
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #checkWriter(): void {
    if (!this.#writes) {
      throw new WriterLost("this stream does not send input: it was not asked to, or another client writes to the process now");
    }
    if (this.#input.ended) {
      throw new TypeError("the input has been closed");
    }
  }

  // Who waits for something looks again when anything has changed.

  #notify(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const go of waiting) {
      go();
    }
  }

  async #change(): Promise<void> {
    if (this.#failed !== undefined) {
      throw this.#failed;
    }
    await new Promise<void>((resolve) => this.#waiting.push(resolve));
    if (this.#failed !== undefined && !this.result && !this.#items.length) {
      throw this.#failed;
    }
  }

  // Connections.

  async #run(): Promise<void> {
    const { path, again, first } = this.#opening;
    let to = path, message = first;
    try {
      for (;;) {
        const error = await this.#connection(to, message).then(() => undefined, (error: unknown) => error);
        if (this.result) {
          return;
        }
        this.#attached = this.#input.ready = false;
        const delay = this.#goesOn(error);
        if (!again) {
          throw new StreamEnded("the connection to boxd ended before the program did", { cause: error });
        }
        await sleep(delay, this.#ending.signal);
        to = again;
        message = this.#next();
      }
    } catch (error) {
      this.#failed = this.#ending.signal.aborted ? this.#ending.signal.reason : error;
    } finally {
      this.#notify();
    }
  }

  /** The first message of a connection that goes on where the last one was lost. */
  #next(): ClientControl {
    if (!this.#begun && this.#opening.first.attach) {
      return this.#opening.first;
    }
    return { attach: { ...this.#opening.attach, stdout: this.#at[0], stderr: this.#at[1], stdin: this.#input.base, write: this.#writes } };
  }

  /** How long to wait for the next connection, after one that has ended with an error. Where there is none, that is thrown. */
  #goesOn(error: unknown): number {
    const started = Boolean(this.#opening.first.start);
    if (error instanceof ProblemError) {
      switch (error.code) {
        case "unavailable":
        case "exhausted":
          if (this.#begun || (started && this.#pace.since() > 0)) {
            break;
          }
          throw error;
        case "not_found":
          if (this.#begun) {
            throw new ProcessGone("the connection to boxd ended before the program did, which boxd no longer knows", { cause: error });
          }
          if (started && this.#pace.since() > 0) {
            throw new StreamEnded("the connection to boxd ended before the program began", { cause: error });
          }
          throw error;
        case "conflict":
          if (!this.#begun || !this.#writes) {
            throw error;
          }
          // boxd may not have noticed yet that the last connection has ended.
          if (this.#pace.since() > Pace.writer) {
            this.#writes = false;
          }
          break;
        default:
          throw error;
      }
    } else if (error instanceof ConnectError) {
      if (!this.#sent) {
        throw error;
      }
    } else if (!(error instanceof ConnectionLost || error instanceof RequestTimeout) || !(this.#begun || this.#sent)) {
      throw error;
    }
    const delay = this.#pace.next(error);
    if (delay === undefined) {
      throw new StreamEnded("the connection to boxd ended before the program did", { cause: error });
    }
    return delay;
  }

  async #connection(path: string, first: ClientControl): Promise<void> {
    const { transport, forget } = this.#opening;
    const key = newKey();
    const headers: Record<string, string> = { Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key };
    if (forget) {
      headers["Sec-WebSocket-Protocol"] = "boxd.forget";
    }
    const { socket, head, headers: answered } = await transport.upgrade({ method: "GET", path, headers, timeout: transport.timeout, signal: this.#ending.signal });
    try {
      if (answered["sec-websocket-accept"] !== acceptOf(key)) {
        throw new ProtocolError("the other end answered a WebSocket in no way of RFC 6455");
      }
      socket.on("error", () => {}); // the loop is told
      this.#sent = true;
      socket.write(encode(BINARY, control(first)));
      this.#input.renew();
      this.#socket = socket;
      await this.#receive(socket, new Frames(head), answered["sec-websocket-protocol"] === "boxd.forget");
    } finally {
      this.#socket = undefined;
      socket.destroy();
    }
  }

  async #receive(socket: Socket, frames: Frames, canForget: boolean): Promise<void> {
    for (;;) {
      for (let message = frames.next(); message; message = frames.next()) {
        if (this.#take(message)) {
          await this.#finish(socket, frames, canForget);
          return;
        }
      }
      while (this.#queued > MAX_QUEUE) {
        await this.#change();
        this.#ending.signal.throwIfAborted();
      }
      const data = await receive(socket, SILENCE, this.#ending.signal);
      if (!data) {
        throw new ConnectionLost("the connection to boxd ended before the program did");
      }
      frames.feed(data);
    }
  }

  // Messages.

  /** Takes a message, and reports whether it is the result. */
  #take({ opcode, data }: Message): boolean {
    switch (opcode) {
      case PING:
        this.#socket?.write(encode(PONG, data));
        return false;
      case PONG:
        return false;
      case CLOSE: {
        const { code, reason } = closeReason(data);
        if (code === 1008 || code === 1009) {
          throw new ProtocolError(`boxd closed the stream: ${reason}`);
        }
        throw new ConnectionLost("boxd closed the stream before the program ended");
      }
    }
    if (opcode !== BINARY || !data.length) {
      throw new ProtocolError("boxd sent a message that is empty or text");
    }
    const channel = data[0]!, rest = data.subarray(1);
    if (channel === 1 || channel === 2) {
      this.#deliver(channel === 2 ? 1 : 0, rest);
      return false;
    }
    if (channel !== 3) {
      throw new ProtocolError(`boxd sent a message on the unknown channel ${channel}`);
    }
    const said = parse(rest) as ServerControl;
    if (typeof said !== "object" || said === null || Array.isArray(said)) {
      throw new ProtocolError("a control message of boxd is no JSON object");
    }
    this.#control(said);
    this.#flush();
    this.#notify();
    return this.result !== undefined;
  }

  #control(said: ServerControl): void {
    if (said.exit) {
      this.result = said.exit;
    } else if (said.error) {
      throw problemOf(said.error);
    } else if (said.started) {
      this.clamped = said.started.clamped ?? [];
      this.#begun = this.#attached = true;
      this.#pace.reset();
      this.#input.begin(0);
      this.#input.ready = this.#writes;
    } else if (said.attached) {
      this.#takeAttached(said.attached);
    } else if (said.gap) {
      this.#gap(said.gap.stream === "stderr" ? 1 : 0, said.gap.bytes, said.gap.reason);
    } else if (said.writer_lost) {
      this.#writes = this.#input.ready = false;
    } else if (said.stdin_taken) {
      this.#input.confirm(said.stdin_taken);
    }
  }

  #deliver(stream: 0 | 1, data: Buffer): void {
    this.#pace.reset();
    if (this.#lines && stream === 0) {
      data = Buffer.concat([data, Buffer.of(10)]);
    }
    const again = Math.min(this.#skip[stream], data.length);
    this.#skip[stream] -= again;
    if (data.length > again) {
      const fresh = data.subarray(again);
      this.#items.push(output(NAMES[stream], fresh, this.#at[stream]));
      this.#at[stream] += fresh.length;
      this.#queued += fresh.length;
      this.#notify();
    }
  }

  #gap(stream: 0 | 1, bytes: number, reason?: string): void {
    this.#items.push({ kind: "gap", stream: NAMES[stream], bytes, offset: this.#at[stream], ...(reason === undefined ? {} : { reason }) });
    this.#at[stream] += bytes;
  }

  #takeAttached(attached: StreamAttached): void {
    this.process = attached.process;
    this.#attached = true;
    const begins = [attached.stdout, attached.stderr] as [number, number];
    if (!this.#begun && this.#opening.first.attach) {
      if (this.#writes && !attached.writer) {
        throw new WriterLost("another client writes to the process: use takeOver");
      }
      this.#begun = true;
      this.#at = [...begins];
      this.#read = [...begins];
      this.#input.begin(attached.stdin);
      this.#input.ready = this.#writes;
      return;
    }
    if (this.#writes && !attached.writer) {
      throw problemOf({ type: "urn:boxd:problem:conflict", title: "conflict", status: 409, detail: "another client writes to the process" });
    }
    if (!this.#begun) { // the answer to the start was lost, and nothing has come
      this.#begun = true;
      this.#input.begin(0);
    }
    this.#pace.reset();
    for (const stream of [0, 1] as const) {
      this.#skip[stream] = Math.max(0, this.#at[stream] - begins[stream]);
      if (begins[stream] > this.#at[stream]) {
        this.#gap(stream, begins[stream] - this.#at[stream]);
      }
    }
    if (!this.#writes) {
      return;
    }
    if (attached.stdin < this.#input.base) {
      throw new ProtocolError(`boxd has ${attached.stdin} bytes of the input, not the ${this.#input.base} that it had confirmed`);
    }
    if (attached.stdin > this.#input.end) { // another client has written meanwhile
      this.#writes = this.#input.ready = false;
      return;
    }
    this.#input.confirm(attached.stdin);
    this.#input.ready = true;
  }

  /** Sends what there is to send and boxd may be sent. */
  #flush(): void {
    if (!this.#socket || !this.#attached || this.result) {
      return;
    }
    for (let message = this.#controls.shift(); message; message = this.#controls.shift()) {
      this.#socket.write(encode(BINARY, control(message)));
    }
    for (let data = this.#input.next(); data; data = this.#input.next()) {
      this.#socket.write(encode(BINARY, Buffer.concat([Buffer.of(0), data])));
      this.#input.wasSent(data.length);
    }
  }

  /** Ends the connection by which the result has come. boxd closes it when it has forgotten the process, and not before. */
  async #finish(socket: Socket, frames: Frames, canForget: boolean): Promise<void> {
    try {
      if (this.#opening.forget && canForget) {
        socket.write(encode(BINARY, control({ forget: true })));
        while (!this.#forgotten) {
          const message = frames.next();
          if (message) {
            this.#forgotten = message.opcode === CLOSE;
            continue;
          }
          const data = await receive(socket, FORGET_PATIENCE, this.#ending.signal);
          if (!data) {
            break;
          }
          frames.feed(data);
        }
      }
      socket.end(encode(CLOSE, Buffer.of(3, 0xe8)));
      await once(socket, "finish", { signal: AbortSignal.any([this.#ending.signal, AbortSignal.timeout(FORGET_PATIENCE)]) });
    } catch {
      // the result is there
    }
  }
}

function control(message: ClientControl): Buffer {
  return Buffer.concat([Buffer.of(3), Buffer.from(JSON.stringify(message))]);
}

/** Some bytes of a socket; undefined at its end. */
function receive(socket: Socket, milliseconds: number, signal: AbortSignal): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    const data = socket.read() as Buffer | null;
    if (data) {
      resolve(data);
      return;
    }
    if (socket.destroyed || socket.readableEnded) {
      resolve(undefined);
      return;
    }
    const done = (settle: () => void) => {
      clearTimeout(timer);
      socket.off("readable", readable).off("end", ended).off("close", ended);
      signal.removeEventListener("abort", aborted);
      settle();
    };
    const readable = () => {
      const data = socket.read() as Buffer | null;
      if (data) {
        done(() => resolve(data));
      }
    };
    const ended = () => done(() => resolve(undefined));
    const aborted = () => done(() => reject(signal.reason));
    const timer = setTimeout(() => done(() => reject(new RequestTimeout(`boxd sent nothing for ${milliseconds} ms`))), milliseconds);
    socket.on("readable", readable).on("end", ended).on("close", ended);
    signal.addEventListener("abort", aborted, { once: true });
  });
}
