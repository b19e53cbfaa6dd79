/** Operations: long work that goes on without its client. */

import { Backoff, type Connection, mayRepeat, now, sleep } from "./connection.js";
import { Cancelled, DeadlineExceeded, fromStatus, NotFound, type PalimpsestError } from "./errors.js";
import { RedactionSchema } from "./gen/palimpsest/v1/chunks_pb.js";
import { OperationState } from "./gen/palimpsest/v1/common_pb.js";
import { type Operation as OperationMessage, Operation_Kind, Operation_ProgressSchema, type Operation_Progress, type Operation_Schema, Operation_SchemaSchema } from "./gen/palimpsest/v1/operations_pb.js";
import { UsageSchema } from "./gen/palimpsest/v1/common_pb.js";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { memoryInfo, type MemoryInfo } from "./memories.js";
import { type EnumName, plain, type Plain } from "./plain.js";
import type { Usage } from "./resource.js";
import type { Redaction } from "./values.js";

/** A schema that a model wrote: class source, for `session.createMemory`. */
export type GeneratedSchema = Plain<Operation_Schema>;
/** What an operation results in. */
export type OperationResult = MemoryInfo | GeneratedSchema | Redaction;
/** What an operation does. */
export type OperationKind = EnumName<typeof Operation_Kind>;
/** How far long work is; "abandoned" only of answers. */
export type State = EnumName<typeof OperationState>;

/** An operation as it was when it was read. */
export interface OperationInfo<Result = OperationResult> {
  id: string;
  kind: OperationKind;
  state: State;
  session: string;
  /** The memory that it changes or builds; empty for a schema. */
  memory: string;
  /** Undefined once it has ended. */
  progress: Plain<Operation_Progress> | undefined;
  /** Why it failed; undefined unless it did. */
  error: PalimpsestError | undefined;
  /** Undefined before it is done, after its result was deleted, and in lists. */
  result: Result | undefined;
  /** The cost of a schema by now; undefined for other kinds, and in lists. */
  usage: Usage | undefined;
  createdAt: Date | undefined;
  endedAt: Date | undefined;
}

/** Seconds that `wait` tries to reach a lost service. */
const GIVE_UP_SECONDS = 60;

function resultOf({ result }: OperationMessage): OperationResult | undefined {
  switch (result.case) {
    case "memoryResult":
      return memoryInfo(result.value);
    case "schemaResult":
      return plain(Operation_SchemaSchema, result.value);
    case "redactionResult":
      return plain(RedactionSchema, result.value);
    default:
      return undefined;
  }
}

function operationInfo<Result>(message: OperationMessage): OperationInfo<Result> {
  const { id, session, memory, progress, error, usage, createdAt, endedAt } = message;
  return {
    id,
    kind: (Operation_Kind[message.kind]?.toLowerCase() ?? "unknown") as OperationKind,
    state: (OperationState[message.state]?.toLowerCase() ?? "unknown") as State,
    session,
    memory,
    progress: progress && plain(Operation_ProgressSchema, progress),
    error: error && fromStatus(error),
    result: resultOf(message) as Result | undefined,
    usage: usage && plain(UsageSchema, usage),
    createdAt: createdAt && timestampDate(createdAt),
    endedAt: endedAt && timestampDate(endedAt),
  };
}

/**
 * A rebuild, a consolidation, a seal, a redaction, or a schema that a model writes.
 *
 *     const operation = await memory.rebuild("facts-2", { task: "Dates only." });
 *     const info = await operation.wait();
 *
 * `info` is the operation as it was last read; `wait`, `refresh` and `cancel` read it again. The work
 * goes on without its client.
 */
export class Operation<Result = OperationResult> {
  readonly #connection: Connection;
  #info: OperationInfo<Result>;

  constructor(connection: Connection, message: OperationMessage) {
    this.#connection = connection;
    this.#info = operationInfo(message);
  }

  get id(): string {
    return this.#info.id;
  }

  get info(): OperationInfo<Result> {
    return this.#info;
  }

  /** Whether it is done, failed or cancelled. */
  get hasEnded(): boolean {
    return this.#info.state !== "pending" && this.#info.state !== "running";
  }

  /** Reads it again; it is kept for 30 days. Throws NotFound. */
  async refresh(): Promise<OperationInfo<Result>> {
    return this.#read(await this.#connection.call(this.#connection.operations.getOperation, { operation: this.id }));
  }

  /** Cancels it if it has not ended. A rebuild deletes its new memory; others leave theirs unchanged. */
  async cancel(options: { requestId?: string } = {}): Promise<OperationInfo<Result>> {
    const request = { operation: this.id, requestId: options.requestId ?? "" };
    return this.#read(await this.#connection.call(this.#connection.operations.cancelOperation, request));
  }

  /**
   * Waits until it has ended, at most `timeout` seconds (default: without a limit); returns its result.
   *
   * `onProgress` receives the operation after each change. Throws its error when it failed, Cancelled,
   * DeadlineExceeded (OPERATION_NOT_ENDED_IN_TIME), and Unavailable when the service is lost for a
   * minute. The operation goes on in any case.
   */
  async wait(options: { timeout?: number | undefined; onProgress?: (info: OperationInfo<Result>) => void } = {}): Promise<Result> {
    const until = options.timeout === undefined ? Infinity : now() + options.timeout;
    // A list has no results.
    if (this.hasEnded && this.#info.result === undefined) await this.refresh();
    let giveUp: number | undefined;
    const backoff = new Backoff(0.1);
    while (!this.hasEnded) {
      try {
        const left = Math.min(Math.max(until - now(), 0.001), 2_000_000);
        for await (const message of this.#connection.responses(this.#connection.operations.waitOperation, { operation: this.id }, left)) {
          giveUp = undefined;
          backoff.restart();
          const info = this.#read(message);
          options.onProgress?.(info);
        }
      } catch (thrown) {
        const error = this.#connection.failure(thrown);
        if (error instanceof DeadlineExceeded) throw this.#late(error);
        giveUp ??= now() + this.#connection.trySeconds(GIVE_UP_SECONDS);
        const pause = backoff.pauseSeconds(error);
        if (!mayRepeat(error) || now() + pause > giveUp) throw error;
        if (now() + pause > until) throw this.#late(error);
        await sleep(pause, this.#connection.closing);
      }
    }
    return this.#ended();
  }

  #read(message: OperationMessage): OperationInfo<Result> {
    this.#info = operationInfo(message);
    return this.#info;
  }

  #ended(): Result {
    const { error, state, result } = this.#info;
    const metadata = { operation: this.id };
    if (error) throw error;
    if (state === "cancelled") throw new Cancelled(`operation ${this.id} was cancelled`, { code: "CANCELLED", metadata });
    if (result === undefined) throw new NotFound(`the result of operation ${this.id} was deleted`, { code: "NOT_FOUND", metadata });
    return result;
  }

  #late(cause: PalimpsestError): DeadlineExceeded {
    return new DeadlineExceeded(`operation ${this.id} has not ended in time; it goes on: wait for it again`, {
      code: "DEADLINE_EXCEEDED",
      reason: "OPERATION_NOT_ENDED_IN_TIME",
      metadata: { operation: this.id },
      cause,
    });
  }
}
