// SPDX-License-Identifier: Apache-2.0

// What can go wrong. Every error of this package is a BoxdError.

import type { Gap } from "./output.js";
import type { Denial, MountUser, Problem } from "./types.js";

/** Any error of this package. */
export class BoxdError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An error as boxd answered it. */
export interface ProblemAnswer {
  problem: Problem;
  /** seconds after which a retry may succeed, if boxd knows */
  retryAfter?: number;
  /** id of the request, which boxd's log has too */
  requestId?: string;
}

/** An error that boxd answered. Its class is that of its code: NotFoundError, ConflictError and so on. */
export class ProblemError extends BoxdError {
  readonly problem: Problem;
  readonly retryAfter?: number;
  readonly requestId?: string;

  constructor(answer: ProblemAnswer) {
    super(answer.problem.detail);
    this.problem = answer.problem;
    this.retryAfter = answer.retryAfter;
    this.requestId = answer.requestId;
  }

  /** The stable word to branch on, such as not_found. */
  get code(): string {
    return this.problem.type.slice(this.problem.type.lastIndexOf(":") + 1);
  }

  /** HTTP status of the answer. */
  get status(): number {
    return this.problem.status;
  }

  /** Field of the request that is wrong. */
  get field(): string | undefined {
    return this.problem.field;
  }

  /** Value that was given, shortened. */
  get value(): string | undefined {
    return this.problem.value;
  }

  /** Values that are allowed. */
  get allowed(): string | undefined {
    return this.problem.allowed;
  }

  /** What to do next. */
  get hint(): string | undefined {
    return this.problem.hint;
  }

  /** Rule that denied the request. */
  get denial(): Denial | undefined {
    return this.problem.denial;
  }

  /** For errors of files: a word such as not_found, exists or no_space. */
  get fileKind(): string | undefined {
    return this.problem.file?.kind;
  }

  /** Users of a mount that is busy. */
  get users(): MountUser[] {
    return this.problem.users ?? [];
  }
}

/** boxd was not reached: nothing was sent. */
export class ConnectError extends BoxdError {}

/** One end does not accept what the other has shown by TLS. Nothing was done. */
export class TLSError extends BoxdError {}

/** The connection ended too early. What became of the request is not known. */
export class ConnectionLost extends BoxdError {}

/** boxd sent nothing for too long. What became of the request is not known. */
export class RequestTimeout extends BoxdError {}

/** The other end does not speak boxd's protocol. */
export class ProtocolError extends BoxdError {}

/** A stream ended without the result of its program, which is not known. */
export class StreamEnded extends ConnectionLost {}

/** boxd no longer knew a process when its stream was to go on. */
export class ProcessGone extends StreamEnded {}

/** Another client writes to the process now. */
export class WriterLost extends BoxdError {}

/** A program has ended, and communicate has not all of its output. */
export class OutputMissing extends BoxdError {
  constructor(
    /** the first that is missing */
    readonly gap: Gap,
    /** what has come */
    readonly stdout: Buffer,
    readonly stderr: Buffer,
  ) {
    super(`${gap.bytes} bytes of ${gap.stream} are missing from byte ${gap.offset} on: ${gap.reason ?? "they are no longer stored"}`);
  }
}
