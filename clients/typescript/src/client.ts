// SPDX-License-Identifier: Apache-2.0

// The client of boxd.

import { randomBytes } from "node:crypto";
import type { Duplex } from "node:stream";
import { ConnectError, ConnectionLost, ProblemError, ProtocolError, RequestTimeout } from "./errors.js";
import { Answer, Lines, Pace, parse, problemOf, segment, sleep, Transport, withQuery, type CallOptions, type ClientOptions, type Content, type Query, type Sent } from "./http.js";
import { output, type Gap, type Output, type StreamName } from "./output.js";
import { NotFoundError } from "./problems.js";
import { Drives, Images, Skills, Workspaces } from "./resources.js";
import { Stream } from "./stream.js";
import type * as types from "./types.js";

// boxd sends a sign of life in every stream of events at least every 15 seconds.
const EVENTS_SILENCE = 45_000;

// How long one request waits for the end of a process, and how much longer the answer may take.
const END_PATIENCE = 60, GRACE = 30_000;

/** Arguments of a program, or all that can be said of it. */
export type Program = string[] | types.ExecRequest;

function program<T extends object>(given: string[] | T): T | { argv: string[] } {
  return Array.isArray(given) ? { argv: given } : given;
}

/** Which sessions a list is to have. */
export interface SessionFilter {
  labels?: Record<string, string>;
  metadata?: Record<string, string>;
  /** include the metadata of each */
  withMetadata?: boolean;
  /** include the resource usage of each */
  withUsage?: boolean;
  /** of all owners, for operators */
  all?: boolean;
}

/** Which events are wanted. */
export interface EventOptions extends CallOptions {
  /** id of an event, or latest; default all that boxd has in memory */
  after?: string;
  /** false: end after those that exist */
  follow?: boolean;
  session?: string;
  types?: string[];
}

/** How a stream of a program is opened. */
export interface StreamOptions extends CallOptions {
  /** input will follow */
  stdin?: boolean;
  /** a terminal instead of pipes; all its output is stdout */
  terminal?: types.Terminal;
  /** how long the program goes on after its client has gone; by default it ends then, or over TCP after two minutes */
  lease?: types.Duration;
}

/** How a program is run in a session of its own with its output as it comes. */
export interface RunStreamOptions extends CallOptions {
  /** what the session is like */
  session?: types.SessionRequest;
  /** input will follow */
  stdin?: boolean;
  /** a terminal instead of pipes; all its output is stdout */
  terminal?: types.Terminal;
}

/** Which records of the audit log are wanted. */
export interface AuditFilter {
  /** at most so many, the last ones */
  n?: number;
  session?: string;
  principal?: string;
  request?: string;
}

/** How to join a process. */
export interface AttachOptions extends CallOptions {
  /** bytes of standard output that you have; without both it begins with what comes from now on */
  stdout?: number;
  stderr?: number;
  /** begin with the oldest output that is kept */
  replay?: boolean;
  /** send input */
  write?: boolean;
  /** replace another writer */
  takeOver?: boolean;
  /** the process waits for this client */
  lossless?: boolean;
  /**
   * every Output of stdout is one whole line, and input is sent line by line without empty ones: as protocols want it that have one
   * message in each, such as MCP
   */
  lines?: boolean;
}

/** Which output of a process is wanted. */
export interface LogOptions extends CallOptions {
  /** go on until the process has ended */
  follow?: boolean;
  stdout?: number;
  stderr?: number;
  /** so many lines of the end */
  lines?: number;
  /** so many bytes of the end of each stream */
  tail?: number;
  /** what has come since a time */
  since?: string;
  stream?: StreamName;
}

/**
 * A boxd: at a Unix socket, or at an address of the loopback such as http://127.0.0.1:5410. Each request has a connection of its
 * own, which ends with it: there is nothing to close.
 */
export class Client {
  /** @internal */
  readonly transport: Transport;
  readonly owner: string | undefined;
  /** workspaces with a name */
  readonly workspaces: Workspaces;
  /** root filesystems for sessions */
  readonly images: Images;
  /** instructions for agents, with their files */
  readonly skills: Skills;
  /** directories with versions */
  readonly drives: Drives;

  constructor(options: ClientOptions | string = {}) {
    const given = typeof options === "string" ? { address: options } : options;
    this.transport = new Transport(given);
    this.owner = given.owner;
    this.workspaces = new Workspaces(this);
    this.images = new Images(this);
    this.skills = new Skills(this);
    this.drives = new Drives(this);
  }

  /** @internal */
  owned(path: string, query: Query = []): string {
    return withQuery(path, [...query, ["owner", this.owner]]);
  }

  /** @internal */
  async ask<T>(method: string, path: string, body: unknown, options: { safe: boolean; waits?: boolean; timeout?: number; signal?: AbortSignal | undefined }): Promise<T> {
    const { data } = await this.transport.json<T>(method, path, body, options);
    if (typeof data !== "object" || data === null || Array.isArray(data)) {
      throw new ProtocolError(`answer to ${method} ${path}: a JSON object is expected`);
    }
    return data;
  }

  /** @internal */
  async done(method: string, path: string, options: { waits?: boolean } & CallOptions): Promise<void> {
    await this.transport.json(method, path, undefined, { safe: true, ...options });
  }

  /** @internal */
  open(path: string, options: CallOptions, more: Partial<Sent> = {}): Promise<Answer> {
    return this.transport.open({ method: "GET", path, timeout: this.transport.timeout, ...more, ...(options.signal ? { signal: options.signal } : {}) });
  }

  /** @internal Sends a body as it comes, which nothing can send again. */
  async upload<T>(method: string, path: string, content: Content, media: string, options: CallOptions): Promise<T> {
    const answer = await this.open(path, options, { method, body: content, headers: { "Content-Type": media }, timeout: 0 });
    return parse(await answer.read()) as T;
  }

  /** Any other route of the API, with JSON. It is made again after a lost connection if it is safe: by default GET alone. */
  async request<T = unknown>(method: string, path: string, body?: unknown, options: CallOptions & { query?: Query; safe?: boolean } = {}): Promise<T> {
    const { data } = await this.transport.json<T>(method, withQuery(path, options.query ?? []), body, { safe: options.safe ?? method === "GET", signal: options.signal });
    return data;
  }

  /** An UnavailableError says why boxd cannot start boxes now: it is not asked again. */
  async ready(options: CallOptions = {}): Promise<void> {
    await this.transport.json("GET", "/readyz", undefined, { safe: false, ...options });
  }

  /** Version, counts, and limits that are not enforced. */
  status(options: CallOptions = {}): Promise<types.Status> {
    return this.ask("GET", "/v1/status", undefined, { safe: true, ...options });
  }

  /** Runs a program in a new session, which is removed afterwards. */
  run(exec: Program, session?: types.SessionRequest, options: CallOptions = {}): Promise<types.ExecResult> {
    return this.ask("POST", "/v1/exec", { session, exec: program(exec) }, { safe: false, waits: true, ...options });
  }

  /**
   * Does that with the output as it comes, and input if stdin is true. The session ends with the stream, which is to be closed. A
   * connection that is lost is not made again.
   */
  stream(exec: Program, options: RunStreamOptions = {}): Promise<Stream> {
    const start: types.StreamStart = { exec: program(exec), session: options.session ?? {} };
    if (options.stdin) {
      start.stdin = true;
    }
    if (options.terminal) {
      start.terminal = options.terminal;
    }
    return Stream.open({
      transport: this.transport, path: "/v1/exec/stream", first: { start }, attach: { write: Boolean(options.stdin) }, forget: false, signal: options.signal,
    });
  }

  /** What to tell a model about a session to come. */
  async instructions(profile?: string, options: CallOptions = {}): Promise<string> {
    const path = withQuery("/v1/instructions", [["profile", profile]]);
    return (await this.ask<types.Instructions>("GET", path, undefined, { safe: true, ...options })).instructions;
  }

  /** What sessions are made from. */
  profiles(options: CallOptions = {}): Promise<types.ProfileList> {
    return this.ask("GET", "/v1/profiles", undefined, { safe: true, ...options });
  }

  /** What the caller uses now and has used by day, and what policy allows. Operators may ask for all callers. */
  usage(options: CallOptions & { days?: number; all?: boolean } = {}): Promise<types.UsageList> {
    const { days, all, ...call } = options;
    return this.ask("GET", this.owned("/v1/usage", [["days", days], ["all", all]]), undefined, { safe: true, ...call });
  }

  /** What has failed recently. */
  async errors(options: CallOptions = {}): Promise<types.RecentError[]> {
    return (await this.ask<types.ErrorList>("GET", this.owned("/v1/errors"), undefined, { safe: true, ...options })).errors;
  }

  /** What this host has for boxes, and what it lacks. */
  doctor(options: CallOptions = {}): Promise<types.Doctor> {
    return this.ask("GET", "/v1/doctor", undefined, { safe: true, waits: true, ...options });
  }

  /** The settings of boxd, and where they are from. For operators, as what follows. */
  configuration(options: CallOptions = {}): Promise<types.Configuration> {
    return this.ask("GET", "/v1/config", undefined, { safe: true, ...options });
  }

  /** The last records of the audit log that match, oldest first. */
  audit(filter: AuditFilter = {}, options: CallOptions = {}): Promise<types.AuditList> {
    const path = withQuery("/v1/audit", [["n", filter.n], ["session", filter.session], ["principal", filter.principal], ["request", filter.request]]);
    return this.ask("GET", path, undefined, { safe: true, ...options });
  }

  /** Has boxd accept no new sessions, until undrain. Called again, it changes nothing. */
  drain(reason?: string, options: CallOptions = {}): Promise<types.Drain> {
    return this.ask("POST", "/v1/drain", { reason }, { safe: true, ...options });
  }

  /** Has boxd accept new sessions again. */
  undrain(options: CallOptions = {}): Promise<void> {
    return this.done("DELETE", "/v1/drain", options);
  }

  /** Roles that somebody has for a time. */
  async grants(options: CallOptions = {}): Promise<types.Grant[]> {
    return (await this.ask<types.GrantList>("GET", "/v1/grants", undefined, { safe: true, ...options })).grants;
  }

  /** Gives somebody a role for a time, instead of one that they have been granted before. */
  grant(request: types.GrantRequest, options: CallOptions = {}): Promise<types.Grant> {
    return this.ask("POST", "/v1/grants", request, { safe: false, ...options });
  }

  /** Takes such a role away. */
  revoke(principal: string, options: CallOptions = {}): Promise<void> {
    return this.done("DELETE", `/v1/grants/${segment(principal)}`, options);
  }

  /** What has happened and what happens. */
  events(options: EventOptions = {}): Events {
    return new Events(this, options);
  }

  /**
   * Creates a session, or gets the one of that id if it has these settings. Without an id it is never asked for twice. Delete it
   * when you are done, or declare it with await using.
   */
  async createSession(request: types.SessionRequest = {}, options: CallOptions = {}): Promise<Session> {
    const { status, data } = await this.transport.json<types.Session>("POST", this.owned("/v1/sessions"), request, { safe: Boolean(request.id), waits: true, ...options });
    if (typeof data?.id !== "string") {
      throw new ProtocolError("answer to POST /v1/sessions: a session is expected; use planSession for dry_run");
    }
    const session = new Session(this, data.id);
    session.created = status === 201;
    session.info = data;
    return session;
  }

  /** What createSession would do. Nothing is created. */
  planSession(request: types.SessionRequest = {}, options: CallOptions = {}): Promise<types.Plan> {
    return this.ask("POST", this.owned("/v1/sessions"), { ...request, dry_run: true }, { safe: true, ...options });
  }

  /** A session that exists. Nothing is asked yet. */
  session(id: string): Session {
    return new Session(this, id);
  }

  /** The sessions of the caller that have these labels and this metadata. */
  async sessions(filter: SessionFilter = {}, options: CallOptions = {}): Promise<types.Session[]> {
    const query: Query = [["all", filter.all], ["metadata", filter.withMetadata], ["usage", filter.withUsage]];
    for (const kind of ["labels", "metadata"] as const) {
      for (const [name, value] of Object.entries(filter[kind] ?? {})) {
        query.push([kind === "labels" ? "label" : "metadata", `${name}=${value}`]);
      }
    }
    const found: types.Session[] = [];
    let after: string | undefined;
    do {
      const path = this.owned("/v1/sessions", [...query, ["after", after]]);
      const page = await this.ask<types.SessionList>("GET", path, undefined, { safe: true, ...options });
      found.push(...page.sessions);
      after = page.next;
    } while (after);
    return found;
  }
}

/** A session: one box with its files and processes. */
export class Session {
  readonly client: Client;
  readonly id: string;
  /** it is new; false if createSession found it */
  created = false;
  /** what boxd has said of it last */
  info: types.Session | undefined;
  readonly files: Files;

  constructor(client: Client, id: string) {
    this.client = client;
    this.id = id;
    this.files = new Files(this);
  }

  /** @internal */
  path(rest = "", query: Query = []): string {
    return this.client.owned(`/v1/sessions/${segment(this.id)}${rest}`, query);
  }

  async #session(method: string, rest: string, body: unknown, options: CallOptions, waits = false): Promise<types.Session> {
    this.info = await this.client.ask<types.Session>(method, this.path(rest), body, { safe: true, waits, ...options });
    return this.info;
  }

  /** Its state, with its resource usage. */
  get(options: CallOptions = {}): Promise<types.Session> {
    return this.#session("GET", "", undefined, options);
  }

  /** Changes limits, timeouts, labels, metadata or network rules: all that is given, or nothing. */
  update(change: types.SessionChange, options: CallOptions = {}): Promise<types.Session> {
    return this.#session("PATCH", "", change, options);
  }

  /** Ends all programs and keeps what is on disk, until start. */
  stop(options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", "/stop", undefined, options, true);
  }

  /** Starts it again, as soon as there is room for it. */
  start(request?: types.SessionStart, options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", "/start", request, options, true);
  }

  /** Suspends all programs. Needs cgroups. */
  freeze(options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", "/freeze", undefined, options);
  }

  /** Lets a frozen session go on. */
  thaw(options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", "/thaw", undefined, options);
  }

  /** Begins its idle time anew. */
  renew(options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", "/renew", undefined, options);
  }

  /** Ends it and removes its workspace. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.client.transport.json("DELETE", this.path(), undefined, { safe: true, waits: true, ...options });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.delete();
    } catch (error) {
      if (!(error instanceof NotFoundError)) {
        throw error;
      }
    }
  }

  /** Samples of its resource usage, oldest first; those after a time as in 2026-11-21T09:30:00Z. */
  usageHistory(options: CallOptions & { after?: string } = {}): Promise<types.UsageHistory> {
    const { after, ...call } = options;
    return this.client.ask("GET", this.path("/usage/history", [["after", after]]), undefined, { safe: true, ...call });
  }

  /** Ends it, and keeps its workspace under a name. */
  keepWorkspace(name: string, options: CallOptions = {}): Promise<types.Workspace> {
    return this.client.ask("POST", this.path("/keep"), { workspace: name }, { safe: false, waits: true, ...options });
  }

  /** What another session like it is made from, with the values of its environment. */
  definition(options: CallOptions = {}): Promise<types.SessionDefinition> {
    return this.client.ask("GET", this.path("/definition"), undefined, { safe: true, ...options });
  }

  /** Snapshots of what it has on disk, the oldest first. */
  async snapshots(options: CallOptions = {}): Promise<types.Snapshot[]> {
    return (await this.client.ask<types.SnapshotList>("GET", this.path("/snapshots"), undefined, { safe: true, ...options })).snapshots;
  }

  /** Takes a snapshot of what it has on disk while it is stopped. */
  createSnapshot(name: string, options: CallOptions = {}): Promise<types.Snapshot> {
    return this.client.ask("POST", this.path("/snapshots"), { name }, { safe: false, waits: true, ...options });
  }

  /** Replaces what it has on disk by a snapshot while it is stopped. */
  restoreSnapshot(name: string, options: CallOptions = {}): Promise<types.Session> {
    return this.#session("POST", `/snapshots/${segment(name)}/restore`, undefined, options, true);
  }

  /** Removes a snapshot. */
  async deleteSnapshot(name: string, options: CallOptions = {}): Promise<void> {
    await this.client.transport.json("DELETE", this.path(`/snapshots/${segment(name)}`), undefined, { safe: true, waits: true, ...options });
  }

  /** What to tell a model about it. */
  async instructions(options: CallOptions = {}): Promise<string> {
    return (await this.client.ask<types.Instructions>("GET", this.path("/instructions"), undefined, { safe: true, ...options })).instructions;
  }

  /**
   * Runs a program and waits for it. A program that fails is a result, not an error: see status and exit_code. With an id it never
   * runs twice, and this call survives a restart of boxd.
   */
  async exec(exec: Program, options: CallOptions = {}): Promise<types.ExecResult> {
    const request: types.ExecRequest = program(exec);
    if (request.detach || request.dry_run) {
      throw new TypeError("detach and dry_run have other results: use startExec and planExec");
    }
    return this.client.ask("POST", this.path("/exec"), request, { safe: Boolean(request.id), waits: true, ...options });
  }

  /** Starts a program with an id, which goes on without its caller until its timeout. */
  async startExec(id: string, exec: Program, options: CallOptions = {}): Promise<Process> {
    const info = await this.client.ask<types.Process>("POST", this.path("/exec"), { ...program(exec), id, detach: true }, { safe: true, ...options });
    return new Process(this, id, info);
  }

  /** What exec would do. Nothing is run. */
  planExec(exec: Program, options: CallOptions = {}): Promise<types.Plan> {
    return this.client.ask("POST", this.path("/exec"), { ...program(exec), dry_run: true }, { safe: true, ...options });
  }

  /** Runs a program with its output as it comes, and its input if stdin is true. Close the stream when you are done. */
  stream(exec: Program, options: StreamOptions = {}): Promise<Stream> {
    const request: types.ExecRequest = { ...program(exec) };
    const start: types.StreamStart = { exec: request };
    const forget = !request.id;
    if (forget) { // with an id of its own a stream can go on after a lost connection
      request.id = randomBytes(13).toString("hex");
      start.lease = this.client.transport.local ? "0s" : "2m";
    }
    if (options.lease !== undefined) {
      start.lease = options.lease;
    }
    if (options.stdin) {
      start.stdin = true;
    }
    if (options.terminal) {
      start.terminal = options.terminal;
    }
    const process = new Process(this, request.id!), write = Boolean(options.stdin);
    return Stream.open({
      transport: this.client.transport, path: this.path("/exec/stream"), again: process.path("/stream"), process: process.path(),
      first: { start }, attach: { write, take_over: write, lossless: true }, forget, signal: options.signal,
    });
  }

  /** Starts a process, or gets the one of that id that the same request has started. */
  async startProcess(id: string, request: string[] | types.ProcessRequest, options: CallOptions = {}): Promise<Process> {
    const process = new Process(this, id);
    process.info = await this.client.ask<types.Process>("PUT", process.path(), program(request), { safe: true, ...options });
    return process;
  }

  /** A process that exists. Nothing is asked yet. */
  process(id: string): Process {
    return new Process(this, id);
  }

  /** Processes that run, or have ended recently. */
  async processes(options: CallOptions = {}): Promise<types.Process[]> {
    return (await this.client.ask<types.ProcessList>("GET", this.path("/processes"), undefined, { safe: true, ...options })).processes;
  }

  /** Host directories that it has. */
  async mounts(options: CallOptions = {}): Promise<types.SessionMount[]> {
    return (await this.client.ask<types.MountList>("GET", this.path("/mounts"), undefined, { safe: true, ...options })).mounts;
  }

  /** Mounts a host directory while programs run. */
  addMount(request: types.MountRequest, options: CallOptions = {}): Promise<types.SessionMount> {
    return this.client.ask("PUT", this.path("/mounts"), request, { safe: true, ...options });
  }

  /** Removes a mount. One that is in use is a ConflictError, whose users say who uses it. */
  async removeMount(target: string, options: CallOptions & { force?: boolean } = {}): Promise<void> {
    const { force, ...call } = options;
    await this.client.done("DELETE", this.path("/mounts", [["target", target], ["force", force]]), call);
  }

  /** Mounts a skill while programs run, or its newest files. */
  activateSkill(name: string, options: CallOptions = {}): Promise<types.SessionSkill> {
    return this.client.ask("PUT", this.path(`/skills/${segment(name)}`), undefined, { safe: true, ...options });
  }

  /** Removes a skill, also one in use with force. */
  async deactivateSkill(name: string, options: CallOptions & { force?: boolean } = {}): Promise<void> {
    const { force, ...call } = options;
    await this.client.done("DELETE", this.path(`/skills/${segment(name)}`, [["force", force]]), call);
  }

  /** Makes the Python environment that an active skill asks for, unless it is there. */
  makeSkillEnvironment(name: string, request: types.SkillEnvironmentRequest = {}, options: CallOptions = {}): Promise<types.SkillEnvironment> {
    return this.client.ask("POST", this.path(`/skills/${segment(name)}/environment`), request, { safe: true, waits: true, ...options });
  }

  /** Mounts a version of a drive while programs run, by default the newest, instead of the one that it has. */
  switchDrive(name: string, options: CallOptions & { version?: number } = {}): Promise<types.SessionDrive> {
    const { version, ...call } = options;
    return this.client.ask("PUT", this.path(`/drives/${segment(name)}`, [["version", version]]), undefined, { safe: true, ...call });
  }

  /** Removes a drive, also one in use with force. */
  async detachDrive(name: string, options: CallOptions & { force?: boolean } = {}): Promise<void> {
    const { force, ...call } = options;
    await this.client.done("DELETE", this.path(`/drives/${segment(name)}`, [["force", force]]), call);
  }

  /** What differs from the image, for a session of one. */
  diffRoot(request: types.RootDiff = {}, options: CallOptions = {}): Promise<types.Changes> {
    return this.client.ask("POST", this.path("/fs/diff"), request, { safe: true, waits: true, ...options });
  }

  /** Makes paths what they are in the image; by default all. */
  discardRoot(paths?: string[], options: CallOptions = {}): Promise<types.RootDiscarded> {
    return this.client.ask("POST", this.path("/fs/discard"), { paths }, { safe: false, waits: true, ...options });
  }

  /** Makes an image of what it has now. */
  commitImage(request: types.ImageCommit, options: CallOptions = {}): Promise<types.Image> {
    return this.client.ask("POST", this.path("/commit"), request, { safe: false, waits: true, ...options });
  }

  /**
   * Connects to a port at the loopback of the box, whatever its network. Its end ends this side; destroy it when you are done. By
   * TLS, Node does not tell the end of the other side from a connection that was cut.
   */
  async openPort(port: number, options: CallOptions = {}): Promise<Duplex> {
    const headers = { Connection: "Upgrade", Upgrade: "boxd-port" }, { transport } = this.client;
    const { socket, head } = await transport.upgrade({ method: "GET", path: this.path(`/ports/${port}/stream`), headers, timeout: transport.timeout, ...options });
    if (head.length) {
      socket.unshift(head);
    }
    return socket;
  }

  /** A token with which anybody reaches a port over HTTP for a time. */
  previewPort(port: number, request: types.PortTokenRequest = {}, options: CallOptions = {}): Promise<types.PortToken> {
    return this.client.ask("POST", this.path(`/ports/${port}/token`), request, { safe: true, ...options });
  }
}

/** A program with an id, which runs without a client. */
export class Process {
  readonly session: Session;
  readonly id: string;
  /** what boxd has said of it last */
  info: types.Process | undefined;

  constructor(session: Session, id: string, info?: types.Process) {
    this.session = session;
    this.id = id;
    this.info = info;
  }

  /** @internal */
  path(rest = "", query: Query = []): string {
    return this.session.path(`/processes/${segment(this.id)}${rest}`, query);
  }

  async #process(method: string, rest: string, options: { waits?: boolean } & CallOptions): Promise<types.Process> {
    this.info = await this.session.client.ask<types.Process>(method, this.path(rest), undefined, { safe: true, ...options });
    return this.info;
  }

  /** Its state: as soon as it has ended, at the latest after so many seconds. */
  async get(options: CallOptions & { wait?: number } = {}): Promise<types.Process> {
    const { wait = 0, ...call } = options;
    const path = this.path("", [["wait", wait ? `${wait}s` : undefined]]);
    this.info = await this.session.client.ask<types.Process>("GET", path, undefined, { safe: true, ...(wait ? { timeout: 1000 * wait + GRACE } : {}), ...call });
    return this.info;
  }

  /** Waits for its end, also over restarts of boxd. The result has its output. */
  async wait(options: CallOptions = {}): Promise<types.Process> {
    let state = await this.get(options);
    while (state.state !== "ended") {
      state = await this.get({ wait: END_PATIENCE, ...options });
    }
    return state;
  }

  /** Ends it as its request says, and waits for that. */
  stop(options: CallOptions = {}): Promise<types.Process> {
    return this.#process("POST", "/stop", { waits: true, ...options });
  }

  /** Begins its lease anew. */
  renew(options: CallOptions = {}): Promise<types.Process> {
    return this.#process("POST", "/renew", options);
  }

  /** Ends it and forgets it. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.session.client.transport.json("DELETE", this.path(), undefined, { safe: true, waits: true, ...options });
  }

  /** Sends a signal such as SIGHUP. */
  async signal(signal: string, options: CallOptions = {}): Promise<void> {
    await this.session.client.transport.json("POST", this.path("/signal"), { signal }, { safe: false, ...options });
  }

  /** Gives its terminal another size. */
  async resize(rows: number, cols: number, options: CallOptions = {}): Promise<void> {
    await this.session.client.transport.json("POST", this.path("/resize"), { rows, cols }, { safe: true, ...options });
  }

  /** Its output, from the given offsets on or the last lines of it; with follow until its end. */
  logs(options: LogOptions = {}): Logs {
    return new Logs(this, options);
  }

  /** Its output as it comes, and its input if write is true. Close the stream when you are done. */
  attach(options: AttachOptions = {}): Promise<Stream> {
    const attach: types.StreamAttach = {};
    if (options.stdout !== undefined || options.stderr !== undefined) {
      attach.stdout = options.stdout ?? 0;
      attach.stderr = options.stderr ?? 0;
    }
    const again: types.StreamAttach = { write: Boolean(options.write), lines: Boolean(options.lines) };
    if (options.lossless !== undefined) {
      attach.lossless = again.lossless = options.lossless;
    }
    if (options.write) { // to go on after a lost connection, which boxd may notice later
      attach.writer_id = again.writer_id = randomBytes(13).toString("hex");
    }
    Object.assign(attach, { replay: Boolean(options.replay), write: Boolean(options.write), take_over: Boolean(options.takeOver), lines: Boolean(options.lines) });
    return Stream.open({
      transport: this.session.client.transport, path: this.path("/stream"), again: this.path("/stream"), process: this.path(),
      first: { attach }, attach: again, forget: false, signal: options.signal,
    });
  }
}

/** Something that comes line by line: an iterable whose connection ends when the loop is left. */
abstract class Following<T> implements AsyncIterableIterator<T> {
  protected lines: Lines | undefined;
  protected closed = false;
  protected call: CallOptions;

  constructor(call: CallOptions) {
    this.call = call.signal ? { signal: call.signal } : {};
  }

  protected drop(): void {
    this.lines?.close();
    this.lines = undefined;
  }

  /** Stops it. */
  close(): void {
    this.closed = true;
    this.drop();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    try {
      const value = this.closed ? undefined : await this.item();
      if (value !== undefined) {
        return { done: false, value };
      }
    } catch (error) {
      if (!this.closed) {
        this.drop();
        throw error;
      }
    }
    this.close();
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    this.close();
    return { done: true, value: undefined };
  }

  protected abstract item(): Promise<T | undefined>;
}

/** A connection that another may follow. */
function passing(error: unknown): boolean {
  return error instanceof ConnectionLost || error instanceof RequestTimeout || error instanceof ConnectError
    || (error instanceof ProblemError && (error.code === "unavailable" || error.code === "exhausted"));
}

/** The output of a process: an iterable of Output and Gap. With follow, a connection that is lost is made again at its byte. */
export class Logs extends Following<Output | Gap> {
  #process: Process;
  #options: LogOptions;
  #from: boolean;
  #at: [number, number];
  #came = false;
  #pace = new Pace();

  constructor(process: Process, options: LogOptions) {
    super(options);
    this.#process = process;
    this.#options = options;
    this.#from = options.stdout !== undefined || options.stderr !== undefined;
    this.#at = [options.stdout ?? 0, options.stderr ?? 0];
  }

  protected async item(): Promise<Output | Gap | undefined> {
    while (!this.closed) {
      try {
        this.lines ??= await this.#open();
        if (this.closed) { // meanwhile
          this.drop();
          return undefined;
        }
        const line = await this.lines.next();
        if (line) {
          return this.#take(parse(line) as types.LogLine);
        }
        if (line === undefined) {
          this.drop();
          if (!this.#options.follow || await this.#over()) {
            return undefined;
          }
          throw new ConnectionLost("boxd ended the output before the process did");
        }
      } catch (error) {
        this.drop();
        const delay = this.#options.follow && passing(error) && (this.#came || error instanceof ConnectionLost) ? this.#pace.next(error) : undefined;
        if (delay === undefined || this.closed) {
          throw error;
        }
        await sleep(delay, this.call.signal);
      }
    }
    return undefined;
  }

  async #open(): Promise<Lines> {
    const { follow, lines, tail, since, stream } = this.#options;
    const part: Query = [["lines", lines], ["tail", tail], ["since", since]];
    const query: Query = [["format", "ndjson"], ["follow", follow], ["stream", stream]];
    if (this.#from) {
      query.push(["stdout", this.#at[0]], ["stderr", this.#at[1]]);
    } else if (part.some(([, value]) => value !== undefined)) {
      if (follow) { // what is in neither stream now is not to come whole later
        const state = await this.#process.get(this.call);
        this.#at = [state.output[0]!.bytes, state.output[1]!.bytes];
      }
      query.push(...part);
    }
    const { transport } = this.#process.session.client;
    const answer = await transport.open({ method: "GET", path: this.#process.path("/logs", query), timeout: follow ? 0 : transport.timeout, ...this.call });
    this.#came = true;
    return new Lines(answer);
  }

  #take(line: types.LogLine): Output | Gap {
    const stream = line.stream === "stderr" ? 1 : 0, name: StreamName = stream ? "stderr" : "stdout";
    this.#pace.reset();
    this.#from = true;
    if (line.gap) {
      this.#at[stream] = line.offset + line.gap;
      return { kind: "gap", stream: name, bytes: line.gap, offset: line.offset };
    }
    const data = Buffer.from(line.data ?? "", line.base64 ? "base64" : "utf8");
    this.#at[stream] = line.offset + data.length;
    return output(name, data, line.offset, line.time);
  }

  async #over(): Promise<boolean> {
    try {
      const state = await this.#process.get(this.call);
      const only = this.#options.stream;
      return state.state === "ended" && (["stdout", "stderr"] as const).every((name, i) => (only && only !== name) || this.#at[i]! >= state.output[i]!.bytes);
    } catch (error) {
      if (error instanceof NotFoundError) {
        return true;
      }
      throw error;
    }
  }
}

/** Events: an iterable, which goes on over lost connections and restarts of boxd. What is missing is an event of the type gap. */
export class Events extends Following<types.Event> {
  /** `after`, to go on here later: the id of the last event, or where boxd says that it is */
  lastId: string | undefined;
  #client: Client;
  #options: EventOptions;
  #came = false;
  #since = 0; // when this connection was made
  #pace = new Pace();

  constructor(client: Client, options: EventOptions) {
    super(options);
    this.#client = client;
    this.#options = options;
    this.lastId = options.after;
  }

  protected async item(): Promise<types.Event | undefined> {
    const follow = this.#options.follow ?? true;
    while (!this.closed) {
      try {
        this.lines ??= await this.#open(follow);
        if (this.closed) { // meanwhile
          this.drop();
          return undefined;
        }
        const event = await this.#next(this.lines);
        if (event) {
          this.#pace.reset();
          this.lastId = event.id;
          return event;
        }
        this.drop();
        if (!follow) {
          return undefined;
        }
        throw new ConnectionLost("boxd ended the events");
      } catch (error) {
        this.drop();
        const delay = follow && this.#came && passing(error) ? this.#pace.next(error) : undefined;
        if (delay === undefined || this.closed) {
          throw error;
        }
        await sleep(delay, this.call.signal);
      }
    }
    return undefined;
  }

  async #open(follow: boolean): Promise<Lines> {
    const { session, types } = this.#options;
    const path = this.#client.owned("/v1/events", [["after", this.lastId], ["follow", String(follow)], ["session", session], ["type", types?.length ? types.join(",") : undefined]]);
    const answer = await this.#client.transport.open({ method: "GET", path, timeout: EVENTS_SILENCE, ...this.call });
    this.#came = true;
    this.#since = Date.now();
    return new Lines(answer);
  }

  async #next(lines: Lines): Promise<types.Event | undefined> {
    let place = "", data = "";
    for (let line = await lines.next(); line !== undefined; line = await lines.next()) {
      if (line.startsWith("id:")) {
        place = line.slice(3).trim();
      } else if (line.startsWith("data:")) {
        data = line.slice(5).trim();
      } else if (!line && data) { // only the empty line makes it one
        return parse(data) as types.Event;
      } else if (!line && place) { // and without data a place
        if (Date.now() - this.#since >= Pace.most) { // boxd lives, and does not just answer
          this.#pace.reset();
        }
        this.lastId = place;
        place = "";
      }
    }
    return undefined;
  }
}

/**
 * What happens in a directory: an iterable, which ends when the directory is gone. What happens while the connection is lost is not
 * known, so that it is not made again: that is an error.
 */
export class Watch extends Following<types.FileEvent> {
  /** @internal */
  constructor(lines: Lines, call: CallOptions) {
    super(call);
    this.lines = lines;
  }

  protected async item(): Promise<types.FileEvent | undefined> {
    for (let line = await this.lines?.next(); line !== undefined; line = await this.lines?.next()) {
      if (!line) { // a sign of life
        continue;
      }
      const event = parse(line) as types.FileEvent;
      if (event.event === "error" && event.problem) {
        throw problemOf(event.problem);
      }
      return event;
    }
    return undefined;
  }
}

/** The files of a session. A path that does not begin with / is below /workspace. */
export class Files {
  #session: Session;

  constructor(session: Session) {
    this.#session = session;
  }

  #do<T>(operation: string, body: unknown, options: CallOptions, safe = false): Promise<T> {
    return this.#session.client.ask<T>("POST", this.#session.path("/fs/" + operation), body, { safe, waits: true, ...options });
  }

  #open(path: string, options: CallOptions, more: Partial<Sent> = {}): Promise<Answer> {
    return this.#session.client.open(path, options, more);
  }

  /** The whole content of a file. */
  async read(path: string, options: CallOptions = {}): Promise<Buffer> {
    const pace = new Pace();
    for (;;) {
      try {
        return await (await this.open(path, options)).read();
      } catch (error) {
        const again = error instanceof ConnectionLost || error instanceof RequestTimeout || (error instanceof ProblemError && error.code === "unavailable");
        const delay = again ? pace.next(error) : undefined;
        if (delay === undefined) {
          throw error;
        }
        await sleep(delay, options.signal);
      }
    }
  }

  /** The whole content of a file in UTF-8. */
  async readText(path: string, options: CallOptions = {}): Promise<string> {
    return (await this.read(path, options)).toString("utf8");
  }

  /** A file of any size as it comes, from a byte on; a negative offset is counted from the end. */
  open(path: string, options: CallOptions & { offset?: number } = {}): Promise<Answer> {
    const { offset = 0 } = options;
    const headers: Record<string, string> = offset ? { Range: offset > 0 ? `bytes=${offset}-` : `bytes=${offset}` } : {};
    return this.#open(this.#session.path("/file", [["path", path]]), options, { headers });
  }

  /** Some lines of a text file, or some bytes of a file. */
  readPart(request: types.FileRead, options: CallOptions = {}): Promise<types.FileContent> {
    return this.#do("read", request, options, true);
  }

  /** Replaces a file as a whole; with the mode append it adds to its end, with create it wants it not to exist. */
  write(path: string, content: string | Uint8Array, request: Omit<types.FileWrite, "path" | "content" | "encoding"> = {}, options: CallOptions = {}): Promise<types.FileWritten> {
    const given = typeof content === "string" ? { content } : { content: Buffer.from(content).toString("base64"), encoding: "base64" };
    return this.#do("write", { ...request, path, ...given }, options);
  }

  /** Writes a file of any size as it comes. What was written before an error stays. */
  upload(path: string, content: Content, options: CallOptions & { permissions?: string; noParents?: boolean } = {}): Promise<types.FileWritten> {
    const query: Query = [["path", path], ["permissions", options.permissions], ["no_parents", options.noParents]];
    return this.#session.client.upload("PUT", this.#session.path("/file", query), content, "application/octet-stream", options);
  }

  /** Replaces texts in a file: all of them, or none. */
  edit(path: string, edits: types.FileReplacement[], options: CallOptions & { ifMatch?: string } = {}): Promise<types.FileEdited> {
    return this.#do("edit", { path, edits, if_match: options.ifMatch }, options);
  }

  /** The entries of a directory, by name. */
  list(path = "/workspace", request: Omit<types.FileList, "path"> = {}, options: CallOptions = {}): Promise<types.FileEntries> {
    return this.#do("list", { ...request, path }, options, true);
  }

  /** What is at a path. */
  stat(path: string, request: Omit<types.FileStat, "path"> = {}, options: CallOptions = {}): Promise<types.File> {
    return this.#do("stat", { ...request, path }, options, true);
  }

  /** There is something at a path. */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, {}, options);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError && error.fileKind) {
        return false;
      }
      throw error; // it may be the session that does not exist
    }
  }

  /** Files by a pattern of names. */
  glob(request: types.FileGlob, options: CallOptions = {}): Promise<types.FileEntries> {
    return this.#do("glob", request, options, true);
  }

  /** Lines of files by a regular expression. */
  grep(request: types.FileGrep, options: CallOptions = {}): Promise<types.FileMatches> {
    return this.#do("grep", request, options, true);
  }

  /** Makes a directory. */
  mkdir(path: string, request: Omit<types.FileMkdir, "path"> = {}, options: CallOptions = {}): Promise<types.FileWritten> {
    return this.#do("mkdir", { ...request, path }, options);
  }

  /** Renames a file or directory. */
  async move(from: string, to: string, request: Omit<types.FileMove, "from" | "to"> = {}, options: CallOptions = {}): Promise<void> {
    await this.#do("move", { ...request, from, to }, options);
  }

  /** Removes a file or directory. */
  async remove(path: string, request: Omit<types.FileRemove, "path"> = {}, options: CallOptions = {}): Promise<void> {
    await this.#do("remove", { ...request, path }, options);
  }

  /** Changes the mode of a file or directory, an octal number such as 755. */
  async chmod(path: string, mode: string, options: CallOptions = {}): Promise<void> {
    await this.#do("chmod", { path, mode }, options);
  }

  /** What happens in a directory from now on. When it returns, boxd watches. */
  async watch(path = "/workspace", options: CallOptions & { recursive?: boolean; entries?: boolean } = {}): Promise<Watch> {
    const rest = this.#session.path("/fs/watch", [["path", path], ["recursive", options.recursive], ["entries", options.entries]]);
    return new Watch(new Lines(await this.#open(rest, options, { timeout: EVENTS_SILENCE })), options);
  }

  /** A directory or file as a tar archive. */
  downloadArchive(path = "/workspace", options: CallOptions & { leaveOut?: boolean } = {}): Promise<Answer> {
    return this.#open(this.#session.path("/archive", [["path", path], ["leave_out", options.leaveOut]]), options);
  }

  /** Some files and directories below a directory as a tar archive. If one does not exist, nothing is sent. */
  collectArchive(paths: string[], path = "/workspace", options: CallOptions = {}): Promise<Answer> {
    const body = JSON.stringify({ path, paths });
    return this.#open(this.#session.path("/archive"), options, { method: "POST", body, headers: { "Content-Type": "application/json" } });
  }

  /** Unpacks a tar archive, which may be compressed with gzip: all of it, or nothing. */
  uploadArchive(content: Content, path = "/workspace", options: CallOptions & { overwrite?: boolean; outwardLinks?: boolean } = {}): Promise<types.ArchiveDone> {
    const query: Query = [["path", path], ["overwrite", options.overwrite], ["outward_links", options.outwardLinks]];
    return this.#session.client.upload("PUT", this.#session.path("/archive", query), content, "application/x-tar", options);
  }
}
