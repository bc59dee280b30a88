// SPDX-License-Identifier: Apache-2.0
//
// Code generated from relay/openapi.json by UPDATE=1 go test ./clients. DO NOT EDIT.

// The errors that boxd answers, a class for each code.

import { ProblemError, type ProblemAnswer } from "./errors.js";

/** The error of the code internal. */
export class InternalError extends ProblemError {}

/** The error of the code invalid. */
export class InvalidError extends ProblemError {}

/** The error of the code not_found. */
export class NotFoundError extends ProblemError {}

/** The error of the code conflict. */
export class ConflictError extends ProblemError {}

/** The error of the code denied. */
export class DeniedError extends ProblemError {}

/** The error of the code exhausted. */
export class ExhaustedError extends ProblemError {}

/** The error of the code unsupported. */
export class UnsupportedError extends ProblemError {}

/** The error of the code unauthenticated. */
export class UnauthenticatedError extends ProblemError {}

/** The error of the code unavailable. */
export class UnavailableError extends ProblemError {}

/** The class of each code. */
export const byCode: Record<string, new (answer: ProblemAnswer) => ProblemError> = {
  internal: InternalError,
  invalid: InvalidError,
  not_found: NotFoundError,
  conflict: ConflictError,
  denied: DeniedError,
  exhausted: ExhaustedError,
  unsupported: UnsupportedError,
  unauthenticated: UnauthenticatedError,
  unavailable: UnavailableError,
};
