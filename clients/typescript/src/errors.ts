/** Every error that the client throws. `message` is one clear line. */

import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ErrorReason, type ErrorStatus } from "./gen/palimpsest/v1/errors_pb.js";

/** What an error has besides its message. */
export interface ErrorParts {
  /** gRPC's name of the status, such as `NOT_FOUND`. */
  code?: string;
  /** An ErrorReason of errors.proto without its prefix; empty where the service gave none. */
  reason?: string;
  /** The values that the reason's comment names. */
  metadata?: Record<string, string>;
  /** The request's fields that are wrong, each with what is wrong. */
  fields?: Record<string, string>;
  /** When to retry, in seconds. */
  retrySeconds?: number | undefined;
  /** What a lower layer threw. */
  cause?: unknown;
}

/** The base of all errors. */
export class PalimpsestError extends Error {
  readonly code: string;
  readonly reason: string;
  readonly metadata: Record<string, string>;
  readonly fields: Record<string, string>;
  readonly retrySeconds: number | undefined;

  constructor(message: string, parts: ErrorParts = {}) {
    super(message, parts.cause === undefined ? undefined : { cause: parts.cause });
    this.name = new.target.name;
    this.code = parts.code ?? "UNKNOWN";
    this.reason = parts.reason ?? "";
    this.metadata = parts.metadata ?? {};
    this.fields = parts.fields ?? {};
    this.retrySeconds = parts.retrySeconds;
  }

  /** Whether the same call may succeed later: the service is unavailable, full, or was stopped. */
  get retryable(): boolean {
    // Without a reason it was a server that stopped, or a proxy; with one, the work was cancelled.
    const isBrokenOff = this.code === "CANCELLED" && this.reason === "";
    return this.code === "UNAVAILABLE" || isBrokenOff || (this.code === "RESOURCE_EXHAUSTED" && this.retrySeconds !== undefined);
  }
}

/** The request is invalid. */
export class InvalidArgument extends PalimpsestError {}
/** The resource does not exist. */
export class NotFound extends PalimpsestError {}
/** The resource exists already. */
export class AlreadyExists extends PalimpsestError {}
/** A number is outside of the existing range. */
export class OutOfRange extends PalimpsestError {}
/** Another client was first. */
export class Aborted extends PalimpsestError {}
/** A limit is reached. */
export class ResourceExhausted extends PalimpsestError {}
/** The state of the resource forbids the call. */
export class FailedPrecondition extends PalimpsestError {}
/** The deadline has passed; `metadata` has the progress. */
export class DeadlineExceeded extends PalimpsestError {}
/** A client has cancelled the work. */
export class Cancelled extends PalimpsestError {}
/** The service cannot process the call now; retry. */
export class Unavailable extends PalimpsestError {}
/** The service needs a valid token or certificate. */
export class Unauthenticated extends PalimpsestError {}
/** The token or certificate does not allow the call. */
export class PermissionDenied extends PalimpsestError {}
/** The service cannot be reached. */
export class ConnectionFailed extends Unavailable {}
/** A producer was used after it was closed, or had ended with an error that was thrown. */
export class ProducerClosed extends PalimpsestError {}

type Kind = new (message: string, parts?: ErrorParts) => PalimpsestError;

const KINDS: ReadonlyMap<number, readonly [Kind, string]> = new Map([
  [Code.InvalidArgument, [InvalidArgument, "INVALID_ARGUMENT"]],
  [Code.NotFound, [NotFound, "NOT_FOUND"]],
  [Code.AlreadyExists, [AlreadyExists, "ALREADY_EXISTS"]],
  [Code.OutOfRange, [OutOfRange, "OUT_OF_RANGE"]],
  [Code.Aborted, [Aborted, "ABORTED"]],
  [Code.ResourceExhausted, [ResourceExhausted, "RESOURCE_EXHAUSTED"]],
  [Code.FailedPrecondition, [FailedPrecondition, "FAILED_PRECONDITION"]],
  [Code.DeadlineExceeded, [DeadlineExceeded, "DEADLINE_EXCEEDED"]],
  [Code.Canceled, [Cancelled, "CANCELLED"]],
  [Code.Unavailable, [Unavailable, "UNAVAILABLE"]],
  [Code.Unauthenticated, [Unauthenticated, "UNAUTHENTICATED"]],
  [Code.PermissionDenied, [PermissionDenied, "PERMISSION_DENIED"]],
]);

/** Statuses of connections that were lost, when no service has sent them. */
const LOST: ReadonlySet<Code> = new Set([Code.Unavailable, Code.Aborted, Code.Internal, Code.Canceled, Code.Unknown]);

/** Returns an argument that the client refuses by itself. */
export function invalid(message: string, fields: Record<string, string> = {}): InvalidArgument {
  return new InvalidArgument(message, { code: "INVALID_ARGUMENT", fields });
}

/** Returns the same error with another message and more metadata. */
export function reworded(error: PalimpsestError, message: string, more: Record<string, string> = {}): PalimpsestError {
  const kind = error.constructor as Kind;
  return new kind(message, { ...error, metadata: { ...error.metadata, ...more } });
}

/** Returns the client's error for what a call threw. */
export function fromCall(thrown: unknown, address: string): PalimpsestError {
  if (thrown instanceof PalimpsestError) return thrown;
  const error = ConnectError.from(thrown, Code.Internal);
  const [info] = error.findDetails(ErrorInfoSchema);
  if (error.details.length === 0) return withoutDetails(error, address);
  const [kind, code] = KINDS.get(error.code) ?? [PalimpsestError, Code[error.code]?.toUpperCase() ?? "UNKNOWN"];
  const violations = error.findDetails(BadRequestSchema).flatMap((one) => one.fieldViolations);
  const [retry] = error.findDetails(RetryInfoSchema);
  const delay = retry?.retryDelay;
  return new kind(error.rawMessage, {
    code,
    reason: info?.reason ?? "",
    metadata: info?.metadata ?? {},
    fields: Object.fromEntries(violations.map((one) => [one.field, one.description])),
    retrySeconds: delay && Number(delay.seconds) + delay.nanos / 1e9,
  });
}

/** Returns the error that a call would throw. */
export function fromStatus(status: ErrorStatus): PalimpsestError {
  const [kind, code] = KINDS.get(status.code) ?? [PalimpsestError, "UNKNOWN"];
  return new kind(status.message, { code, reason: status.reason ? (ErrorReason[status.reason] ?? "") : "", metadata: status.metadata });
}

/** Returns what all layers say of an error. */
function causesOf(error: unknown): string {
  if (!(error instanceof Error)) return "";
  const { code } = error as { code?: unknown };
  return `${error.message} ${String(code)} ${causesOf(error.cause)}`;
}

function withoutDetails(error: ConnectError, address: string): PalimpsestError {
  if (error.code === Code.DeadlineExceeded) {
    return new DeadlineExceeded(`no reply from ${address} in time`, { code: "DEADLINE_EXCEEDED" });
  }
  if (LOST.has(error.code)) {
    const isUntrusted = /certificate|CERT_|altname|verify/i.test(causesOf(error));
    return new ConnectionFailed(
      isUntrusted
        ? `${address} shows a certificate that is not trusted (${error.rawMessage}): name its root by caFile (PALIMPSEST_CA_FILE)`
        : `cannot reach Palimpsest at ${address}; start it with \`palimpsest up\`, or name the address where it listens (PALIMPSEST_ADDRESS)`,
      { code: "UNAVAILABLE", cause: error },
    );
  }
  if (error.code === Code.Unimplemented) {
    return new PalimpsestError(
      `the service at ${address} has no such method: it is older than this client, or it is no Palimpsest`,
      { code: "UNIMPLEMENTED" },
    );
  }
  const [kind, code] = KINDS.get(error.code) ?? [PalimpsestError, Code[error.code]?.toUpperCase() ?? "UNKNOWN"];
  return new kind(error.rawMessage, { code });
}
