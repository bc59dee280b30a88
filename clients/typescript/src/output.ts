// SPDX-License-Identifier: Apache-2.0

// Output and input of programs, without a connection.

/** So many bytes of input may be under way that boxd has not confirmed. */
export const WINDOW = 256 << 10;

/** So many bytes of input may be in one message. */
export const MAX_INPUT = 64 << 10;

/** So many bytes may be in one line, where lines are asked for. */
const MAX_LINE = 16 << 20;

const MAX_FLIGHT = 512;
const END = 10; // of a line

export type StreamName = "stdout" | "stderr";

/** A piece of output. */
export interface Output {
  kind: "output";
  stream: StreamName;
  data: Uint8Array;
  /** offset of its first byte in the stream */
  offset: number;
  /** the data as text; a piece may begin or end within a character, which is replaced */
  readonly text: string;
  /** about when it was written, in logs */
  time?: string;
}

/** Output that is missing. */
export interface Gap {
  kind: "gap";
  stream: StreamName;
  /** bytes that are missing */
  bytes: number;
  /** offset of the first of them in the stream */
  offset: number;
  /**
   * why, in a stream of lines: long_line is one of more than 16 MiB, unfinished_line one that the program has not finished; without
   * it the bytes are not kept any more
   */
  reason?: string;
}

/** A piece of output. */
export function output(stream: StreamName, data: Uint8Array, offset: number, time?: string): Output {
  return {
    kind: "output", stream, data, offset,
    get text() {
      return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("utf8");
    },
    ...(time === undefined ? {} : { time }),
  };
}

/** Cuts what is written into lines that can be sent: with an end, and not empty. */
export class LineCutter {
  #begun: Uint8Array[] = [];
  #size = 0;

  /** The lines that are whole now; with last, also one without its end. */
  cut(data: Uint8Array, last = false): Uint8Array[] {
    const lines: Uint8Array[] = [];
    let at = 0;
    for (let end = data.indexOf(END); end >= 0; end = data.indexOf(END, at)) {
      lines.push(this.#take(data.subarray(at, end + 1)));
      at = end + 1;
    }
    if (at < data.length) {
      this.#add(data.slice(at), MAX_LINE); // it is the caller's to change
    }
    if (last && this.#size) {
      lines.push(this.#take(Buffer.of(END)));
    }
    return lines.filter((line) => line.length > 1);
  }

  #add(data: Uint8Array, most: number): void {
    this.#begun.push(data);
    this.#size += data.length;
    if (this.#size > most) {
      this.#begun = [];
      this.#size = 0;
      throw new RangeError(`a line of the input has more than ${MAX_LINE} bytes`);
    }
  }

  #take(rest: Uint8Array): Uint8Array {
    this.#add(rest, MAX_LINE + 1); // with its end
    const line = Buffer.concat(this.#begun);
    this.#begun = [];
    this.#size = 0;
    return line;
  }
}

/**
 * Standard input until boxd has confirmed it, so that it can be sent again. Offsets are those of the process.
 *
 * On a new connection all that is kept is sent again, also what boxd confirms meanwhile: it counts on what it is sent from the
 * offset that it was told, and takes what the program has not had.
 *
 * Lines are sent one by one, without their ends. The one that boxd has begun to take is kept: only whole ones can be sent again.
 */
export class Input {
  /** offset of what is kept */
  base = 0;
  /** boxd takes input on this connection */
  ready = false;
  /** there is no more than what is kept */
  ended = false;
  #kept = Buffer.alloc(0);
  #sent = 0;
  #taken = 0;
  #endSent = false;
  #flight: number[] = [];
  #lines: boolean;

  constructor(lines = false) {
    this.#lines = lines;
  }

  /** Offset behind the last byte. */
  get end(): number {
    return this.base + this.#kept.length;
  }

  /** Bytes that boxd has not confirmed. */
  get waiting(): number {
    return this.end - this.#taken;
  }

  /** The process has had so many bytes from others. */
  begin(offset: number): void {
    this.base = this.#sent = this.#taken = offset;
  }

  /** A new connection begins. */
  renew(): void {
    this.ready = this.#endSent = false;
    this.#sent = this.base;
    this.#flight = [];
  }

  /** More input. */
  add(data: Uint8Array): void {
    this.#kept = Buffer.concat([this.#kept, data]);
  }

  /** boxd has what is before an offset. */
  confirm(offset: number): void {
    this.#taken = Math.max(this.#taken, Math.min(offset, this.end));
    while (this.#flight.length && this.#flight[0]! <= this.#taken) {
      this.#flight.shift();
    }
    this.#trim();
  }

  #trim(): void {
    let done = Math.min(this.#taken, this.#sent) - this.base;
    if (done > 0 && this.#lines) {
      done = this.#kept.lastIndexOf(END, done - 1) + 1;
    }
    if (done > 0) {
      this.#kept = this.#kept.subarray(done);
      this.base += done;
    }
  }

  /** What to send next: some bytes, none as the end of the input, or nothing now. */
  next(): Uint8Array | undefined {
    if (!this.ready || this.#flight.length >= MAX_FLIGHT) {
      return undefined;
    }
    if (this.#sent < this.end) {
      const at = this.#sent - this.base;
      return this.#kept.subarray(at, this.#lines ? this.#kept.indexOf(END, at) : at + MAX_INPUT);
    }
    return this.ended && !this.#endSent ? new Uint8Array() : undefined;
  }

  /** What next has returned has been sent. */
  wasSent(size: number): void {
    if (size === 0) {
      this.#endSent = true;
      return;
    }
    this.#sent += size + (this.#lines ? 1 : 0);
    if (this.#sent > this.#taken) {
      this.#flight.push(this.#sent);
    }
    this.#trim();
  }
}
