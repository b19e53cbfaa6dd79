/** Watching the revisions of a memory as they are committed. */

import { Backoff, type Connection, mayRepeat, now, sleep } from "./connection.js";
import { invalid, Unavailable } from "./errors.js";
import type { WatchMemoryResponse } from "./gen/palimpsest/v1/memory_service_pb.js";
import { amendment, type Amendment } from "./memories.js";

/** A revision that a watch has seen. */
export interface Committed {
  revision: number;
  amendments: Amendment[];
  amendmentsTruncated: boolean;
  /** Continues after this event, in any process. */
  resumeToken: string;
}

/** Where a watch begins: by default after the newest revision. */
export interface WatchOptions {
  afterRevision?: number | undefined;
  resumeToken?: string | undefined;
  /** Seconds after which a lost service ends the watch (60). */
  giveUpSeconds?: number | undefined;
}

/** The revisions of a memory as they are committed, without an end: iterate over it with `for await`. */
export class Watch implements AsyncIterable<Committed> {
  readonly #connection: Connection;
  readonly #named: { session: string; memory: string };
  readonly #giveUpSeconds: number;
  readonly #closing = new AbortController();
  readonly #backoff = new Backoff(0.05);
  #start: { case: "afterRevision"; value: bigint } | { case: "resumeToken"; value: string } | { case: undefined };
  #responses: AsyncIterator<WatchMemoryResponse> | undefined;
  #lostAt: number | undefined;

  private constructor(connection: Connection, named: { session: string; memory: string }, options: WatchOptions) {
    const { afterRevision, resumeToken, giveUpSeconds = 60 } = options;
    if (afterRevision !== undefined && resumeToken) throw invalid("give afterRevision or resumeToken, not both");
    this.#connection = connection;
    this.#named = named;
    this.#giveUpSeconds = giveUpSeconds;
    this.#start = resumeToken
      ? { case: "resumeToken", value: resumeToken }
      : afterRevision === undefined
        ? { case: undefined }
        : { case: "afterRevision", value: BigInt(afterRevision) };
  }

  static async begin(connection: Connection, named: { session: string; memory: string }, options: WatchOptions): Promise<Watch> {
    const watch = new Watch(connection, named, options);
    while (!watch.#responses) await watch.#tried(() => watch.#open());
    return watch;
  }

  /** Continues after the last event, in any process. */
  get resumeToken(): string {
    return this.#start.case === "resumeToken" ? this.#start.value : "";
  }

  /** Returns the next revision; undefined once the watch is closed. */
  async next(): Promise<Committed | undefined> {
    while (!this.#closing.signal.aborted) {
      const event = await this.#tried(() => (this.#responses ? this.#read() : this.#open()));
      if (event) return event;
    }
    return undefined;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Committed> {
    try {
      for (let event = await this.next(); event; event = await this.next()) yield event;
    } finally {
      this.close();
    }
  }

  /** Ends the watch and all waits for a revision. */
  close(): void {
    this.#closing.abort();
    this.#responses = undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  async #tried(work: () => Promise<Committed | undefined>): Promise<Committed | undefined> {
    try {
      return await work();
    } catch (thrown) {
      this.#responses = undefined;
      if (this.#closing.signal.aborted) return undefined;
      const error = this.#connection.failure(thrown);
      if (!mayRepeat(error) || this.#connection.closing.aborted) throw error;
      this.#lostAt ??= now();
      const pause = this.#backoff.pauseSeconds(error);
      if (now() + pause > this.#lostAt + this.#connection.trySeconds(this.#giveUpSeconds)) throw error;
      await sleep(pause, this.#closing.signal);
      return undefined;
    }
  }

  async #open(): Promise<undefined> {
    const signal = AbortSignal.any([this.#closing.signal, this.#connection.closing]);
    const request = { ...this.#named, start: this.#start };
    const responses = this.#connection.memories.watchMemory(request, { signal })[Symbol.asyncIterator]();
    this.#reached(await this.#following(responses));
    this.#responses = responses;
    return undefined;
  }

  async #read(): Promise<Committed> {
    const responses = this.#responses as AsyncIterator<WatchMemoryResponse>;
    const message = await this.#following(responses);
    this.#reached(message);
    this.#backoff.restart();
    return {
      revision: Number(message.revision?.revision ?? 0),
      amendments: message.amendments.map(amendment),
      amendmentsTruncated: message.amendmentsTruncated,
      resumeToken: message.resumeToken,
    };
  }

  async #following(responses: AsyncIterator<WatchMemoryResponse>): Promise<WatchMemoryResponse> {
    const { done, value } = await responses.next();
    if (done) throw new Unavailable("the service ended the watch without a reason", { code: "UNAVAILABLE" });
    return value;
  }

  #reached(message: WatchMemoryResponse): void {
    this.#connection.reached = true;
    this.#lostAt = undefined;
    this.#start = { case: "resumeToken", value: message.resumeToken };
  }
}
