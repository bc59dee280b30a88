// SPDX-License-Identifier: Apache-2.0

// boxd runs programs in sandboxes on this host. This package talks to it; see docs/guide/typescript.md.

export { Client, Events, Files, Logs, Process, Session, Watch } from "./client.js";
export type { AttachOptions, AuditFilter, EventOptions, LogOptions, Program, RunStreamOptions, SessionFilter, StreamOptions } from "./client.js";
export { BoxdError, ConnectError, ConnectionLost, OutputMissing, ProblemError, ProcessGone, ProtocolError, RequestTimeout, StreamEnded, TLSError, WriterLost } from "./errors.js";
export { Answer } from "./http.js";
export type { CallOptions, ClientOptions, Content, Query } from "./http.js";
export type { Gap, Output, StreamName } from "./output.js";
export * from "./problems.js";
export { Drives, Images, Skills, Workspaces } from "./resources.js";
export type { DriveFilling, SkillImport, SkillSource } from "./resources.js";
export { Stream } from "./stream.js";
export type * as types from "./types.js";
