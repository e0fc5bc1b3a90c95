/**
 * The errors of this package: one class for each reaction of a caller.
 *
 * Every answer with a status from 400 on is a {@link ProblemError}. Its `code` is the stable word of
 * the server's problem document, and its class depends on the code and the status.
 */

/** A problem document (RFC 9457) as the server sends it. */
export interface ProblemDocument {
  readonly code?: string;
  readonly title?: string;
  readonly detail?: string;
  readonly field?: string | null;
  readonly holder?: string | null;
  readonly reasons?: readonly string[] | null;
  readonly state?: string | null;
  readonly error?: { readonly reason?: string; readonly message?: string | null } | null;
}

// An answer with one of these may be another one a moment later.
const RETRYABLE_STATUS = new Set([429, 502, 503, 504]);
const RETRYABLE_CODES = new Set(["body_timeout", "concurrent_update"]);

/** The base class of every error of this package. */
export class TidegateError extends Error {
  /** The seconds of `Retry-After`, if the answer had it. */
  retryAfter: number | undefined;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }

  /**
   * Whether the same request may succeed later, as nothing is wrong with it. This client has repeated
   * a request that is safe to repeat by then.
   */
  get retryable(): boolean {
    return false;
  }
}

/** No answer came: the request may or may not have been processed. */
export class UnreachableError extends TidegateError {
  override get retryable(): boolean {
    return true;
  }
}

/** The answer is not one of tidegate, or is larger than this client reads. */
export class UnexpectedAnswerError extends TidegateError {}

/** The server refused a request. */
export class ProblemError extends TidegateError {
  /** The stable word for programs, such as `job_not_found`; empty if there was none. */
  readonly code: string;
  /** What is wrong in this case, for people. */
  readonly detail: string;
  /** The field, parameter or header at fault, such as `constraints[2].rate.count`. */
  readonly field: string | undefined;
  /** The id of the job that the request conflicts with. */
  readonly holder: string | undefined;
  /** Every fault, where there are several. */
  readonly reasons: readonly string[];
  /** The server's id of the request (`X-Request-Id`), by which its log names the cause. */
  requestId: string | undefined;

  constructor(
    /** The HTTP status. */
    readonly status: number,
    /** The whole problem document. */
    readonly document: ProblemDocument,
  ) {
    const where = document.field ? ` [${document.field}]` : "";
    const text = document.detail || document.title || `HTTP ${status}`;
    super(`${text}${where} (${document.code || status})`);
    this.code = document.code ?? "";
    this.detail = document.detail ?? "";
    this.field = document.field ?? undefined;
    this.holder = document.holder ?? undefined;
    this.reasons = document.reasons ?? [];
  }

  /** Whether the server is busy or not there (429, 502, 503, 504), or its code says retry. */
  override get retryable(): boolean {
    return RETRYABLE_STATUS.has(this.status) || RETRYABLE_CODES.has(this.code);
  }
}

/** The request is wrong (400, 405, 406, 413, 414, 415, 431): correct it. */
export class InvalidRequestError extends ProblemError {}
/** The token is missing or not valid (401). */
export class UnauthorizedError extends ProblemError {}
/** The token does not allow the request (403). */
export class ForbiddenError extends ProblemError {}
/** There is no such job, type, queue, ... (404): see `code`. */
export class NotFoundError extends ProblemError {}
/** The state does not allow the request (409): see `code` and `holder`. */
export class ConflictError extends ProblemError {}
/** The resource has changed since it was read (412). */
export class PreconditionFailedError extends ProblemError {}
/** The server is busy or is stopping (429, 503), also after the repeats of this client. */
export class UnavailableError extends ProblemError {}
/** The server failed (500): its log has the cause under `requestId`. */
export class ServerFaultError extends ProblemError {}
/** The job did not end within the wait. */
export class WaitTimeoutError extends ProblemError {}

/** The job ended otherwise than succeeded, so it has no result. */
export class JobFailedError extends ProblemError {
  /** `failed`, `expired`, `cancelled` or `dropped`. */
  readonly state: string;
  /** The reason of the latest error, such as `timeout`. */
  readonly reason: string | undefined;
  /** The message of the latest error. */
  readonly jobMessage: string | undefined;

  constructor(status: number, document: ProblemDocument) {
    super(status, document);
    this.state = document.state ?? "";
    this.reason = document.error?.reason;
    this.jobMessage = document.error?.message ?? undefined;
  }
}

const BY_CODE: Record<string, typeof ProblemError> = {
  job_failed: JobFailedError,
  wait_timeout: WaitTimeoutError,
};
const BY_STATUS: Record<number, typeof ProblemError> = {
  401: UnauthorizedError,
  403: ForbiddenError,
  404: NotFoundError,
  409: ConflictError,
  412: PreconditionFailedError,
  429: UnavailableError,
  503: UnavailableError,
};

/** Returns the error for a problem document. */
export function problem(status: number, document: ProblemDocument): ProblemError {
  const fallback = status >= 500 ? ServerFaultError : InvalidRequestError;
  const kind = BY_CODE[document.code ?? ""] ?? BY_STATUS[status] ?? fallback;
  return new kind(status, document);
}

/** A handler throws it to end the job `failed` without another attempt. */
export class PermanentError extends TidegateError {
  constructor(
    message: string,
    /** Any JSON value of at most 16 KiB, which the job shows as its error's details. */
    readonly details?: unknown,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A handler throws it to hand the job back for a while. The attempt does not count. */
export class Snooze extends TidegateError {
  constructor(
    /** Seconds from now, or an instant. */
    readonly until: number | Date,
    message = "snoozed by its handler",
  ) {
    super(message);
  }
}

/** A handler throws it to hand the job back at once, before its work has begun. */
export class Release extends TidegateError {
  constructor(message = "released by its handler") {
    super(message);
  }
}

/** Why an attempt is over before its handler has ended. */
export type AbortReason = "cancelled" | "lease_lost" | "stopping";

/** The attempt of the running handler is over: stop the work. It is the reason of `job.signal`. */
export class JobAbortedError extends TidegateError {
  constructor(
    /** Cancelled by a caller, lost to another worker, or this worker ends now. */
    readonly reason: AbortReason,
  ) {
    super(`the attempt is over: ${reason}`);
  }
}
