/** Deadlines, retries and the services of one connection. */

import { createClient, type CallOptions, type Client as Stub, type Transport } from "@connectrpc/connect";
import { ConnectionFailed, fromCall, type PalimpsestError } from "./errors.js";
import { AccessService } from "./gen/palimpsest/v1/access_service_pb.js";
import { AnswerService } from "./gen/palimpsest/v1/answer_service_pb.js";
import { BillingService } from "./gen/palimpsest/v1/billing_service_pb.js";
import { MemoryService } from "./gen/palimpsest/v1/memory_service_pb.js";
import { OperationService } from "./gen/palimpsest/v1/operation_service_pb.js";
import { SessionService } from "./gen/palimpsest/v1/session_service_pb.js";
import { StateService } from "./gen/palimpsest/v1/state_service_pb.js";
import { TreeService } from "./gen/palimpsest/v1/tree_service_pb.js";
import type { Files } from "./transfers.js";

/** Seconds to try a service that was never reached. Later a call tries for its whole time. */
export const REACH_SECONDS = 2.5;
/** Seconds of a call, a question and an append, if neither it nor the client says otherwise. */
export const CALL_SECONDS = 30;
export const ASK_SECONDS = 60;
export const APPEND_SECONDS = 60;
/** Given to a reply of the service's own deadline to arrive before ours. */
const SLACK_SECONDS = 0.5;
/** Refusals of a service that is full, which come before it has begun anything. */
const UNBEGUN: ReadonlySet<string> = new Set(["TOO_MANY_CALLS", "TOO_MANY_ASKS", "TOO_MANY_PENDING"]);

/** How one call is made. */
export interface CallSettings {
  /** Seconds. */
  timeout?: number | undefined;
  /** Seconds, if neither the call nor the client says. */
  byDefault?: number;
  /** Without it, the call is repeated only after refusals that precede any work. */
  retry?: boolean;
}

type Unary<I, O> = (request: I, options?: CallOptions) => Promise<O>;
type Streaming<I, O> = (request: I, options?: CallOptions) => AsyncIterable<O>;

/** Returns the seconds of a monotonic clock. */
export function now(): number {
  return performance.now() / 1000;
}

/** Waits; ends early with the signal. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    signal?.addEventListener("abort", done);
  });
}

/** The pauses between the tries of a call. */
export class Backoff {
  #wait: number;

  constructor(readonly first: number, readonly longest = 5) {
    this.#wait = first;
  }

  /** Makes the next pause the shortest again. */
  restart(): void {
    this.#wait = this.first;
  }

  /** Returns the seconds to pause, with jitter, and not less than the service asks for. */
  pauseSeconds(error: PalimpsestError): number {
    const jitter = 0.5 + Math.random() / 2;
    const pause = this.#wait * jitter;
    this.#wait = Math.min(this.#wait * 2, this.longest);
    return Math.max(pause, (error.retrySeconds ?? 0) * (0.5 + jitter));
  }
}

/** Returns whether certainly no work was done, so that any call may be repeated. */
export function isUnbegun(error: PalimpsestError): boolean {
  return UNBEGUN.has(error.reason);
}

/** Returns whether a call that may run twice, or a stream, may be begun again. */
export function mayRepeat(error: PalimpsestError): boolean {
  return error.retryable;
}

/** A connection to the service; all sessions of a client share it. */
export class Connection {
  readonly sessions: Stub<typeof SessionService>;
  readonly memories: Stub<typeof MemoryService>;
  readonly answers: Stub<typeof AnswerService>;
  readonly states: Stub<typeof StateService>;
  readonly trees: Stub<typeof TreeService>;
  readonly billing: Stub<typeof BillingService>;
  readonly operations: Stub<typeof OperationService>;
  readonly administration: Stub<typeof AccessService>;
  readonly #closing = new AbortController();
  /** Whether the service has ever replied. */
  reached = false;

  constructor(
    transport: Transport,
    readonly address: string,
    readonly timeout: number | undefined,
    readonly reachSeconds: number,
    /** Whether the transport has streams in both directions. */
    readonly hasProducers: boolean,
    /** The files of the machine; a browser has none. */
    readonly files?: Files,
  ) {
    this.sessions = createClient(SessionService, transport);
    this.memories = createClient(MemoryService, transport);
    this.answers = createClient(AnswerService, transport);
    this.states = createClient(StateService, transport);
    this.trees = createClient(TreeService, transport);
    this.billing = createClient(BillingService, transport);
    this.operations = createClient(OperationService, transport);
    this.administration = createClient(AccessService, transport);
  }

  /** Aborted when the connection is closed. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  close(): void {
    this.#closing.abort();
  }

  /** Returns the seconds of a call: its own, else the client's, else the default. */
  seconds(timeout: number | undefined, byDefault: number): number {
    const seconds = timeout ?? this.timeout ?? byDefault;
    if (Number.isNaN(seconds)) throw new TypeError("a timeout must be a number of seconds, not NaN");
    return Math.min(seconds, 2_000_000);
  }

  /** Returns how long to try what may take so many seconds: less before the first contact. */
  trySeconds(seconds: number): number {
    return this.reached ? seconds : Math.min(seconds, this.reachSeconds);
  }

  /** Returns the client's error for what a call threw. */
  failure(thrown: unknown): PalimpsestError {
    const known = fromCall(thrown, this.address);
    if (!(known instanceof ConnectionFailed)) this.reached = true;
    return known;
  }

  /** Makes a unary call, and repeats it while the service is unavailable or full. */
  async call<I, O>(method: Unary<I, O>, request: I, settings: CallSettings = {}): Promise<O> {
    const seconds = this.seconds(settings.timeout, settings.byDefault ?? CALL_SECONDS);
    const since = now();
    const backoff = new Backoff(0.1);
    for (;;) {
      try {
        const left = Math.max(since + seconds - now(), 0.001) + SLACK_SECONDS;
        const response = await method(request, { timeoutMs: Math.ceil(left * 1000), signal: this.closing });
        this.reached = true;
        return response;
      } catch (thrown) {
        const known = this.failure(thrown);
        const again = (settings.retry ?? true) ? mayRepeat(known) : isUnbegun(known);
        const pause = backoff.pauseSeconds(known);
        if (!again || this.closing.aborted || now() + pause > since + this.trySeconds(seconds)) throw known;
        await sleep(pause, this.closing);
      }
    }
  }

  /** Yields the responses of a call, repeated while the service refuses to begin it. */
  async *responses<I, O>(method: Streaming<I, O>, request: I, seconds: number, signal?: AbortSignal): AsyncGenerator<O> {
    const until = now() + seconds;
    const backoff = new Backoff(0.1);
    const signals = AbortSignal.any([this.closing, ...(signal ? [signal] : [])]);
    for (;;) {
      try {
        const left = Math.max(until - now(), 0.001) + SLACK_SECONDS;
        for await (const response of method(request, { timeoutMs: Math.ceil(left * 1000), signal: signals })) {
          this.reached = true;
          yield response;
        }
        return;
      } catch (thrown) {
        const known = this.failure(thrown);
        const pause = backoff.pauseSeconds(known);
        if (!isUnbegun(known) || now() + pause > until) throw known;
        await sleep(pause, signals);
      }
    }
  }

  /** Yields the pages of a list, one after the other. */
  async *pages<I extends { pageToken?: string }, O extends { nextPageToken: string }>(
    method: Unary<I, O>,
    request: I,
  ): AsyncGenerator<O> {
    for (let token = ""; ; ) {
      const page = await this.call(method, { ...request, pageToken: token });
      yield page;
      token = page.nextPageToken;
      if (token === "") return;
    }
  }

  /** Yields the items of all pages of a list. */
  async *all<I extends { pageToken?: string }, O extends { nextPageToken: string }, T>(
    method: Unary<I, O>,
    request: I,
    items: (page: O) => T[],
  ): AsyncGenerator<T> {
    for await (const page of this.pages(method, request)) yield* items(page);
  }
}
