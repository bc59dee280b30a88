// SPDX-License-Identifier: Apache-2.0

// Requests to boxd, each over a connection of its own.

import { readFile } from "node:fs/promises";
import { request as httpRequest, type ClientRequest, type IncomingMessage, type RequestOptions } from "node:http";
import { request as httpsRequest } from "node:https";
import type { Socket } from "node:net";
import { createSecureContext, type SecureContext, type TLSSocket } from "node:tls";
import { ConnectError, ConnectionLost, ProblemError, ProtocolError, RequestTimeout, TLSError, type BoxdError } from "./errors.js";
import { byCode } from "./problems.js";
import type { Problem } from "./types.js";

/** Where an installed boxd listens. */
export const DEFAULT_SOCKET = "/run/boxd/boxd.sock";

/** Bounds an answer that is read into memory. */
const MAX_ANSWER = 512 << 20;
const MAX_PROBLEM = 1 << 20;

/** What a query has. False is left out, as undefined is: it is the default of all switches. */
export type Query = [name: string, value: string | number | boolean | undefined][];

/** What is sent as the content of a file or an archive. */
export type Content = Uint8Array | string | Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

/** How a client finds boxd. */
export interface ClientOptions {
  /** path of the Unix socket, http://HOST:PORT of the loopback, or https://HOST:PORT; default BOXD_SOCKET, or that of an installed boxd */
  address?: string;
  /** sent as bearer; default BOXD_TOKEN */
  token?: string;
  /** makes requests about the sessions of another principal, as in uid:1000 */
  owner?: string;
  /** milliseconds that boxd may send nothing, where it does not wait for a program or a box; default 60000 */
  timeout?: number;
  /** milliseconds for a connection; default 10000 */
  connectTimeout?: number;
  /** file (PEM) of the authorities that may have signed the certificate of an https address; default BOXD_TLS_CA, or those of Node */
  tlsCa?: string;
  /** file (PEM) of the certificate that this client shows there; default BOXD_TLS_CERT */
  tlsCert?: string;
  /** file (PEM) of its key; default BOXD_TLS_KEY, or that of the certificate */
  tlsKey?: string;
}

/** What a call may have beside its request. */
export interface CallOptions {
  /** ends the call, and what boxd does for it */
  signal?: AbortSignal;
}

/** One request. */
export interface Sent {
  method: string;
  path: string;
  body?: Content;
  headers?: Record<string, string>;
  /** milliseconds without a byte; 0: as long as it takes */
  timeout?: number;
  signal?: AbortSignal;
}

/** An id as one segment of a path. Dots alone would be taken for steps of the path. */
export function segment(id: string): string {
  if (!id) {
    throw new TypeError("the id is empty");
  }
  if (/^\.+$/.test(id)) {
    return id.replaceAll(".", "%2E");
  }
  return encodeURIComponent(id);
}

/** A path with what of the query is given. */
export function withQuery(path: string, query: Query): string {
  const given = new URLSearchParams();
  for (const [name, value] of query) {
    if (value !== undefined && value !== false) {
      given.append(name, String(value));
    }
  }
  const text = given.toString();
  return text ? `${path}?${text}` : path;
}

/** When a request that was cut off is made again: soon, then ever later, and for half a minute. */
export class Pace {
  static first = 50;
  static most = 2000;
  static total = 30_000;
  /** how long boxd may take to see that the last connection of a writer has ended */
  static writer = 2000;

  #delay = Pace.first;
  #begin: number | undefined;

  /** Milliseconds to wait before the next try; undefined if there is none. */
  next(error: unknown): number | undefined {
    this.#begin ??= performance.now();
    let delay = this.#delay;
    if (error instanceof ProblemError && error.retryAfter) {
      delay = Math.max(delay, 1000 * error.retryAfter);
    }
    if (this.since() + delay > Pace.total) {
      return undefined;
    }
    this.#delay = Math.min(2 * this.#delay, Pace.most);
    return delay;
  }

  /** Milliseconds since the first try. */
  since(): number {
    return this.#begin === undefined ? 0 : performance.now() - this.#begin;
  }

  /** What was lost goes on. */
  reset(): void {
    this.#delay = Pace.first;
    this.#begin = undefined;
  }
}

/** Waits, and no longer than the signal allows. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const end = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", end, { once: true });
  });
}

/** The error that an answer is. */
export function problemOf(data: unknown, headers: IncomingMessage["headers"] = {}): ProblemError {
  const problem = data as Problem;
  if (typeof problem !== "object" || problem === null || typeof problem.type !== "string") {
    throw new ProtocolError("the error has another form");
  }
  const made = byCode[problem.type.slice(problem.type.lastIndexOf(":") + 1)] ?? ProblemError;
  const retryAfter = Number(headers["retry-after"]);
  const requestId = headers["x-request-id"];
  return new made({
    problem,
    ...(retryAfter > 0 ? { retryAfter } : {}),
    ...(typeof requestId === "string" ? { requestId } : {}),
  });
}

/** JSON, or an error that says what it is not. */
export function parse(text: string | Uint8Array): unknown {
  try {
    return JSON.parse(typeof text === "string" ? text : Buffer.from(text).toString("utf8"));
  } catch (cause) {
    throw new ProtocolError("the answer is no JSON", { cause });
  }
}

/** A request, with what has ended it. */
type Watched = ClientRequest & { connected?: boolean; late?: BoxdError; failure?: Error };

/** An answer, whose body is read as it comes. */
export class Answer implements AsyncIterable<Uint8Array> {
  #message: IncomingMessage;
  #request: Watched;
  #signal: AbortSignal | undefined;

  constructor(message: IncomingMessage, request: Watched, signal: AbortSignal | undefined) {
    this.#message = message;
    this.#request = request;
    this.#signal = signal;
    message.on("error", () => {}); // who reads is told
  }

  get status(): number {
    return this.#message.statusCode ?? 0;
  }

  get headers(): IncomingMessage["headers"] {
    return this.#message.headers;
  }

  /** Bytes that will come, if that is known. */
  get size(): number | undefined {
    const length = this.#message.headers["content-length"];
    return length === undefined ? undefined : Number(length);
  }

  /** The pieces of the body. One that is cut off is an error. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for await (const piece of this.#message) {
        yield piece as Uint8Array;
      }
      if (!this.#message.complete) {
        throw new Error("aborted");
      }
    } catch (error) {
      throw lost(error, this.#request, this.#signal, "the connection ended within the answer");
    } finally {
      this.close();
    }
  }

  /** The whole body. */
  async read(most = MAX_ANSWER): Promise<Buffer> {
    const parts: Uint8Array[] = [];
    let size = 0;
    for await (const piece of this) {
      parts.push(piece);
      size += piece.length;
      if (size > most) {
        throw new ProtocolError(`the answer has more than ${most} bytes`);
      }
    }
    return Buffer.concat(parts);
  }

  /** Ends the connection, which ends what boxd does for it. */
  close(): void {
    this.#request.destroy();
  }
}

/** The lines of an answer without end. */
export class Lines {
  #answer: Answer;
  #pieces: AsyncGenerator<Uint8Array, void, undefined>;
  #buffer = Buffer.alloc(0);
  #seen = 0;

  constructor(answer: Answer) {
    this.#answer = answer;
    this.#pieces = answer[Symbol.asyncIterator]();
  }

  /** The next line without its end; undefined after the last. A line without an end is none: it has been cut. */
  async next(): Promise<string | undefined> {
    for (;;) {
      const at = this.#buffer.indexOf(10, this.#seen);
      if (at >= 0) {
        const line = this.#buffer.toString("utf8", 0, at);
        this.#buffer = this.#buffer.subarray(at + 1);
        this.#seen = 0;
        return line.endsWith("\r") ? line.slice(0, -1) : line;
      }
      this.#seen = this.#buffer.length;
      if (this.#seen > MAX_ANSWER) {
        throw new ProtocolError(`a line has more than ${MAX_ANSWER} bytes`);
      }
      const piece = await this.#pieces.next();
      if (piece.done) {
        return undefined;
      }
      this.#buffer = Buffer.concat([this.#buffer, piece.value]);
    }
  }

  close(): void {
    this.#answer.close();
  }
}

/** The error of a connection that has ended as none should. */
function lost(error: unknown, request: Watched, signal: AbortSignal | undefined, what: string): unknown {
  if (signal?.aborted) {
    return signal.reason;
  }
  error = request.failure ?? error; // of a body, node only says that it was aborted
  if (error instanceof RequestTimeout || error instanceof ProtocolError || error instanceof TLSError) {
    return error;
  }
  const code = (error as NodeJS.ErrnoException).code ?? "";
  if (code.startsWith("HPE_")) {
    return code === "HPE_INVALID_EOF_STATE" ? new ConnectionLost(what, { cause: error }) : new ProtocolError(`HTTP: ${(error as Error).message}`, { cause: error });
  }
  return request.late ?? new ConnectionLost(`${what}: ${(error as Error).message}`, { cause: error });
}

/** What one end has against the other, if that is why TLS has failed. */
function explained(error: Error, socket: Socket | null, certificate: string | undefined): TLSError | undefined {
  const { code = "", library } = error as NodeJS.ErrnoException & { library?: string };
  const tls = socket as TLSSocket | null, what = code === "EPROTO" ? error.message : code;
  if (code === "ERR_TLS_CERT_ALTNAME_INVALID" || (tls?.authorizationError && code)) {
    return new TLSError(`the certificate of the server is not accepted: ${error.message}`, { cause: error });
  }
  if (/wrong.version.number|http.request|packet.length.too.long/i.test(what)) {
    return new TLSError("the server does not speak TLS: the address must begin with http://", { cause: error });
  }
  if ((code === "EPROTO" || library === "SSL routines") && /alert/i.test(error.message)) {
    const shown = certificate ? `the client certificate ${certificate}` : "a client without a certificate";
    return new TLSError(`the server does not accept ${shown}: ${error.message.trim()}`, { cause: error });
  }
  return undefined;
}

/** Makes requests. */
export class Transport {
  readonly address: string;
  readonly token: string | undefined;
  readonly timeout: number;
  readonly local: boolean;
  #at: RequestOptions;
  #connectTimeout: number;
  #tls: { ca: string | undefined; cert: string | undefined; key: string | undefined } | undefined;

  constructor(options: ClientOptions) {
    this.address = options.address || process.env.BOXD_SOCKET || DEFAULT_SOCKET;
    this.token = options.token ?? process.env.BOXD_TOKEN;
    this.timeout = options.timeout ?? 60_000;
    this.#connectTimeout = options.connectTimeout ?? 10_000;
    this.local = !this.address.includes("://");
    if (this.local) {
      this.#at = { socketPath: this.address, headers: { Host: "boxd" } };
      return;
    }
    const url = URL.canParse(this.address) ? new URL(this.address) : undefined;
    const byTLS = url?.protocol === "https:", port = url?.port || (byTLS && "443");
    if (!url || (url.protocol !== "http:" && !byTLS) || !port || url.pathname !== "/" || url.search) {
      throw new TypeError(`address ${JSON.stringify(this.address)}: must be the path of a Unix socket, http://HOST:PORT or https://HOST:PORT`);
    }
    this.#at = { host: url.hostname.replace(/^\[|\]$/g, ""), port: Number(port), headers: { Host: url.host } };
    if (byTLS) {
      const { BOXD_TLS_CA, BOXD_TLS_CERT, BOXD_TLS_KEY } = process.env;
      this.#tls = { ca: options.tlsCa || BOXD_TLS_CA, cert: options.tlsCert || BOXD_TLS_CERT, key: options.tlsKey || BOXD_TLS_KEY };
    }
  }

  /** What the files say now, which are read for each connection. */
  async #secure(): Promise<SecureContext | undefined> {
    if (!this.#tls) {
      return undefined;
    }
    const { ca, cert, key } = this.#tls;
    if (key && !cert) {
      throw new TLSError(`the client key ${key} has no certificate`);
    }
    const read = async (what: string, file: string | undefined) => {
      try {
        return file ? await readFile(file) : undefined;
      } catch (error) {
        throw new TLSError(`${what}: ${(error as Error).message}`, { cause: error });
      }
    };
    const [authorities, shown, secret] = [await read("CA certificates", ca), await read("the client certificate", cert), await read("the client key", key || cert)];
    if (authorities && !authorities.includes("-----BEGIN CERTIFICATE-----")) {
      throw new TLSError(`CA certificates: ${ca} has no certificate (PEM)`); // Node would take it for none
    }
    try {
      return createSecureContext({ minVersion: "TLSv1.2", ...(authorities && { ca: authorities }), ...(shown && { cert: shown }), ...(secret && { key: secret }) });
    } catch (error) {
      throw new TLSError(`the client certificate ${cert}${key ? ` with the key ${key}` : ""}, or CA certificates ${ca}: ${(error as Error).message}`, { cause: error });
    }
  }

  #request(sent: Sent, secureContext: SecureContext | undefined): Watched {
    const headers: Record<string, string> = { ...(this.#at.headers as Record<string, string>), "User-Agent": "boxd-client", Connection: "close" };
    if (this.token) {
      headers.Authorization = `Bearer ${this.token}`;
    }
    Object.assign(headers, sent.headers);
    const options = { ...this.#at, agent: false as const, method: sent.method, path: sent.path, headers };
    const request: Watched = secureContext ? httpsRequest({ ...options, secureContext } as RequestOptions) : httpRequest(options);
    request.on("error", (error) => {
      request.failure ??= (secureContext && explained(error, request.socket, this.#tls?.cert)) || error;
    });
    const expect = (milliseconds: number, error: BoxdError) => {
      const timer = setTimeout(() => {
        request.late = error;
        request.destroy(error);
      }, milliseconds);
      request.once("close", () => clearTimeout(timer));
      return timer;
    };
    const connecting = expect(this.#connectTimeout, new ConnectError(`connect to ${this.address}: no answer for ${this.#connectTimeout} ms`));
    request.once("socket", (socket) => {
      const connected = () => {
        clearTimeout(connecting);
        request.connected = true;
      };
      if (socket.connecting) {
        socket.once(secureContext ? "secureConnect" : "connect", connected);
      } else {
        connected();
      }
      if (sent.timeout) {
        const late = new RequestTimeout(`boxd sent nothing for ${sent.timeout} ms`);
        socket.setTimeout(sent.timeout, () => {
          request.late = late;
          request.destroy(late);
        });
      }
    });
    if (sent.signal) {
      const end = () => request.destroy(sent.signal!.reason instanceof Error ? sent.signal!.reason : new Error("aborted"));
      if (sent.signal.aborted) {
        end();
      }
      sent.signal.addEventListener("abort", end, { once: true });
      request.once("close", () => sent.signal!.removeEventListener("abort", end));
    }
    return request;
  }

  /** Makes a request once, and returns its answer if that is none of an error. */
  async open(sent: Sent): Promise<Answer> {
    sent.signal?.throwIfAborted();
    const request = this.#request(sent, await this.#secure());
    const { body } = sent;
    const whole = typeof body === "string" || body instanceof Uint8Array;
    const message = await new Promise<IncomingMessage>((resolve, reject) => {
      let answered = false;
      request.once("response", (message) => {
        answered = true;
        resolve(message);
      });
      request.once("upgrade", (_, socket) => {
        socket.destroy();
        reject(new ProtocolError("the other end answered 101"));
      });
      request.on("error", (error) => {
        if (!answered) {
          reject(this.#failed(error, request, sent.signal));
        }
      });
      request.once("close", () => reject(new ConnectionLost("the connection ended before the answer")));
      if (body === undefined || whole) {
        request.end(body);
      } else {
        this.#send(request, body).catch((error: unknown) => request.destroy(error as Error));
      }
    });
    const answer = new Answer(message, request, sent.signal);
    if (answer.status >= 300) {
      throw await refusal(answer);
    }
    return answer;
  }

  /** Sends a body of unknown length, no faster than boxd takes it. */
  async #send(request: Watched, body: Iterable<Uint8Array> | AsyncIterable<Uint8Array>): Promise<void> {
    for await (const piece of body) {
      if (request.destroyed) {
        return;
      }
      if (piece.length && !request.write(piece)) {
        await new Promise<void>((resolve) => {
          const go = () => {
            request.off("drain", go).off("close", go);
            resolve();
          };
          request.once("drain", go).once("close", go);
        });
      }
    }
    request.end();
  }

  #failed(error: Error, request: Watched, signal: AbortSignal | undefined): unknown {
    const known = lost(error, request, signal, "the connection ended before the answer");
    if (known instanceof ConnectionLost && !request.connected) {
      return new ConnectError(`connect to ${this.address}: ${(error as NodeJS.ErrnoException).code ?? error.message}`, { cause: error });
    }
    return known;
  }

  /** Makes a request that becomes a WebSocket, and returns its socket with what has come already. */
  async upgrade(sent: Sent): Promise<{ socket: Socket; head: Buffer; headers: IncomingMessage["headers"] }> {
    sent.signal?.throwIfAborted();
    const request = this.#request(sent, await this.#secure());
    const got = await new Promise<{ message: IncomingMessage; socket?: Socket; head?: Buffer }>((resolve, reject) => {
      request.once("response", (message) => resolve({ message }));
      request.once("upgrade", (message, socket, head) => resolve({ message, socket: socket as Socket, head }));
      request.on("error", (error) => reject(this.#failed(error, request, sent.signal)));
      request.once("close", () => reject(new ConnectionLost("the connection ended before the answer")));
      request.end();
    });
    if (!got.socket) {
      throw await refusal(new Answer(got.message, request, sent.signal));
    }
    got.socket.setTimeout(0);
    got.socket.removeAllListeners("timeout");
    return { socket: got.socket, head: got.head ?? Buffer.alloc(0), headers: got.message.headers };
  }

  /** Makes a request with a JSON answer. One that is safe to make twice is made again if its answer was lost. */
  async json<T>(method: string, path: string, body: unknown, options: { safe: boolean; waits?: boolean; timeout?: number; signal?: AbortSignal | undefined }): Promise<{ status: number; data: T }> {
    const sent: Sent = { method, path, timeout: options.timeout ?? (options.waits ? 0 : this.timeout) };
    if (options.signal) {
      sent.signal = options.signal;
    }
    if (body !== undefined) {
      sent.body = JSON.stringify(body);
      sent.headers = { "Content-Type": "application/json" };
    }
    const pace = new Pace();
    let wasLost = false;
    for (;;) {
      let delay: number | undefined;
      try {
        const answer = await this.open(sent);
        const text = await answer.read();
        return { status: answer.status, data: (text.length ? parse(text) : undefined) as T };
      } catch (error) {
        const code = error instanceof ProblemError ? error.code : "";
        if (code === "not_found" && wasLost && method === "DELETE") {
          return { status: 204, data: undefined as T }; // the request whose answer was lost has done it
        }
        if (error instanceof ConnectError) {
          delay = wasLost ? pace.next(error) : undefined;
        } else if (error instanceof ConnectionLost || code === "unavailable" || (error instanceof RequestTimeout && !wasLost)) {
          delay = options.safe ? pace.next(error) : undefined;
          wasLost = true;
        }
        if (delay === undefined) {
          throw error;
        }
      }
      await sleep(delay, options.signal);
    }
  }
}

/** The error of an answer that is not what was asked for. */
async function refusal(answer: Answer): Promise<Error> {
  const text = await answer.read(MAX_PROBLEM);
  try {
    return problemOf(parse(text), answer.headers);
  } catch {
    if (text.toString().startsWith("Client sent an HTTP request to an HTTPS server")) { // net/http of Go
      return new ProtocolError("the server speaks TLS: the address must begin with https://");
    }
    return new ProtocolError(`the other end answered ${answer.status} without an error of boxd`);
  }
}
