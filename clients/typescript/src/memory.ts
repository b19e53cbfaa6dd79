/** A memory: reading it, its provenance, watching it, changing it by hand, and asking it. */

import type { Answer, AnswerStream, AskOptions } from "./answers.js";
import { Backoff, type Connection, mayRepeat, now, sleep } from "./connection.js";
import { AlreadyExists, invalid, type PalimpsestError, reworded, Unavailable } from "./errors.js";
import { type Amendment as AmendmentMessage, AmendmentOp, type Memory as MemoryMessage, Memory_Status } from "./gen/palimpsest/v1/memories_pb.js";
import type { WatchMemoryResponse } from "./gen/palimpsest/v1/memory_service_pb.js";
import { isTyped, jsonSchemaOf, type Schema, typed } from "./schemas.js";
import type { Session } from "./session.js";
import { type Chunk, chunk, consistency, type Freshness, type Json, type PositionRange, range } from "./values.js";

/** A memory and its progress. */
export interface MemoryInfo {
  session: string;
  id: string;
  kind: "prism" | "tree" | "state";
  status: "active" | "stalled" | "sealed" | "waiting" | "over_budget" | "unknown";
  /** Why it does not advance; empty: it does. */
  blocked: string;
  task: string;
  model: string;
  revision: number;
  /** All chunks up to here are in it. */
  appliedPosition: number;
  head: number;
}

/** A memory's value at one revision. */
export interface MemoryState<T> {
  info: MemoryInfo;
  value: Json;
  /** The value in the type of the memory's schema; undefined while it does not fit, as before the first step. */
  typed: T | undefined;
  revision: number;
  appliedPosition: number;
  /** For `after` of a later read, which then is at least as fresh. */
  readToken: string;
}

/** How a PRISM memory is made. */
export interface MemoryOptions {
  task?: string | undefined;
  question?: string | undefined;
  model?: string | undefined;
  /** Uses an existing memory that has the given settings. */
  existOk?: boolean | undefined;
  requestId?: string | undefined;
}

/** A change by hand. `put` adds or updates. */
export interface Edit {
  op: "put" | "add" | "update" | "remove";
  path: string;
  value?: Json;
}

/** A change of a memory. */
export interface Amendment {
  revision: number;
  op: "add" | "update" | "remove" | "unknown";
  path: string;
  value: Json;
  positions: PositionRange | undefined;
}

/** A value, and the amendments that made it, newest first. */
export interface Provenance {
  path: string;
  exists: boolean;
  value: Json;
  entries: { amendment: Amendment; inEffect: boolean; isOrigin: boolean; chunks: Chunk[] }[];
}

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

const OPS = { put: AmendmentOp.UNSPECIFIED, add: AmendmentOp.ADD, update: AmendmentOp.UPDATE, remove: AmendmentOp.REMOVE };

export function memoryInfo(message: MemoryMessage): MemoryInfo {
  const spec = message.spec.value;
  const status = Memory_Status[message.status]?.toLowerCase() ?? "unknown";
  return {
    session: message.session,
    id: message.id,
    kind: message.spec.case ?? "prism",
    status: status as MemoryInfo["status"],
    blocked: message.blocked?.cause ?? "",
    task: spec && "task" in spec ? spec.task : "",
    model: spec?.model ?? "",
    revision: Number(message.revision),
    appliedPosition: Number(message.appliedPosition),
    head: Number(message.head),
  };
}

export function amendment(message: AmendmentMessage): Amendment {
  const op = AmendmentOp[message.op]?.toLowerCase() ?? "unknown";
  return {
    revision: Number(message.revision),
    op: op as Amendment["op"],
    path: message.path,
    value: message.valueJson ? (JSON.parse(message.valueJson) as Json) : null,
    positions: range(message.positions),
  };
}

/** Creates a PRISM memory. Throws AlreadyExists that names the settings that differ. */
export async function createMemory(connection: Connection, session: string, id: string, schema: Schema, options: MemoryOptions): Promise<MemoryInfo> {
  const given = typeof schema === "string" ? schema : titled(jsonSchemaOf(schema), id);
  const spec = { task: options.task ?? "", question: options.question ?? "", model: options.model ?? "" };
  const source = typeof given === "string" ? { case: "schemaSource", value: given } : { case: "jsonSchema", value: JSON.stringify(given) };
  const prism = { ...spec, schema: source as { case: "schemaSource"; value: string } };
  const memory = { session, id, spec: { case: "prism" as const, value: prism } };
  const retry = options.existOk || options.requestId !== undefined;
  try {
    return memoryInfo(await connection.call(connection.memories.createMemory, { memory, requestId: options.requestId ?? "" }, { retry }));
  } catch (error) {
    if (!options.existOk || !(error instanceof AlreadyExists) || error.reason !== "MEMORY_EXISTS") throw error;
    const existing = (await listMemories(connection, session)).find((one) => one.id === id);
    if (existing?.spec.case !== "prism") throw error;
    const there = existing.spec.value;
    const checked = await connection.call(connection.memories.checkSchema, { schema: prism.schema });
    const kept = there.schema.case === "schemaSource" ? there.schema.value : "";
    const others = (["task", "question", "model"] as const).filter((name) => options[name] !== undefined && options[name] !== there[name]);
    const differing = [...others, ...(kept === checked.schemaSource ? [] : ["schema"])];
    if (differing.length === 0) return memoryInfo(existing);
    throw differs(error, id, differing);
  }
}

export function differs(error: PalimpsestError, id: string, names: string[]): PalimpsestError {
  return reworded(error, `memory ${JSON.stringify(id)} is there already with another ${names.join(", ")}: use its settings, or choose another id`);
}

/** Class source needs a name, which some libraries do not give. */
function titled(schema: { [key: string]: Json }, id: string): { [key: string]: Json } {
  const words = id.split(/[^A-Za-z0-9]+/).filter(Boolean);
  const name = words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join("");
  return "title" in schema ? schema : { title: /^[A-Z]/.test(name) ? name : "Memory", ...schema };
}

export async function listMemories(connection: Connection, session: string): Promise<MemoryMessage[]> {
  const found: MemoryMessage[] = [];
  for await (const page of connection.pages(connection.memories.listMemories, { session, pageSize: 1000 })) found.push(...page.memories);
  return found;
}

/** A memory, by its id. With a typed schema, `get` returns values of its type. */
export class Memory<T = unknown> {
  constructor(
    protected readonly connection: Connection,
    readonly session: Session,
    readonly id: string,
    readonly schema?: Schema<T>,
  ) {}

  protected get named(): { session: string; memory: string } {
    return { session: this.session.id, memory: this.id };
  }

  /** Reads the memory: now, as it was at a revision or position, or once it is fresh enough. */
  async get(options: Freshness & { revision?: number; position?: number; timeout?: number } = {}): Promise<MemoryState<T>> {
    const { revision, position, timeout } = options;
    const fresh = consistency(options);
    const request = {
      ...this.named,
      ...(revision === undefined ? {} : { revision: BigInt(revision) }),
      ...(position === undefined ? {} : { position: BigInt(position) }),
      ...(fresh && { consistency: fresh }),
    };
    const message = await this.connection.call(this.connection.memories.getMemory, request, { timeout });
    const value = message.valueJson ? (JSON.parse(message.valueJson) as Json) : null;
    return {
      info: memoryInfo(message),
      value,
      typed: isTyped(this.schema) ? await typed(this.schema, value) : undefined,
      revision: Number(message.readPoint?.revision ?? message.revision),
      appliedPosition: Number(message.readPoint?.appliedPosition ?? message.appliedPosition),
      readToken: message.readPoint?.readToken ?? "",
    };
  }

  /** Waits until the memory has applied what a read token stands for. */
  async waitUntilApplied(after: string, timeout?: number): Promise<MemoryState<T>> {
    return this.get({ after, ...(timeout === undefined ? {} : { timeout }) });
  }

  /** Deletes the memory with its history; the log stays. */
  async delete(options: { missingOk?: boolean; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, requestId = "" } = options;
    const request = { ...this.named, allowMissing: missingOk, requestId };
    await this.connection.call(this.connection.memories.deleteMemory, request, { retry: missingOk || requestId !== "" });
  }

  /** Makes all edits, in order, as one revision; or none. */
  async edit(
    edits: readonly Edit[],
    options: { expectedRevision?: number; comment?: string; requestId?: string } = {},
  ): Promise<{ revision: number; amendments: Amendment[] }> {
    const { expectedRevision, comment = "", requestId = "" } = options;
    const request = {
      ...this.named,
      edits: edits.map((one) => ({
        op: OPS[one.op],
        path: one.path,
        valueJson: one.op === "remove" ? "" : JSON.stringify(one.value ?? null),
      })),
      comment,
      requestId,
      ...(expectedRevision === undefined ? {} : { expectedRevision: BigInt(expectedRevision) }),
    };
    const done = await this.connection.call(this.connection.memories.editMemory, request, { retry: requestId !== "" });
    return { revision: Number(done.memory?.revision ?? 0), amendments: done.amendments.map(amendment) };
  }

  /** Returns the value at a path, and the amendments that made it, newest first. */
  async provenance(path: string, options: Freshness & { revision?: number } = {}): Promise<Provenance> {
    const fresh = consistency(options);
    const revision = options.revision === undefined ? {} : { revision: BigInt(options.revision) };
    const request = { ...this.named, path, ...revision, ...(fresh && { consistency: fresh }) };
    let found: Provenance | undefined;
    for await (const page of this.connection.pages(this.connection.memories.getProvenance, request)) {
      found ??= {
        path: page.path,
        exists: page.valueJson !== undefined,
        value: page.valueJson === undefined ? null : (JSON.parse(page.valueJson) as Json),
        entries: [],
      };
      for (const entry of page.entries) {
        if (!entry.amendment) continue;
        found.entries.push({
          amendment: amendment(entry.amendment),
          inEffect: entry.inEffect,
          isOrigin: entry.origin,
          chunks: entry.chunks.map(chunk),
        });
      }
    }
    if (!found) throw new Unavailable("the service sent no page", { code: "UNAVAILABLE" });
    return found;
  }

  /** Watches the revisions as they are committed. On return the watch has begun. */
  async watch(options: WatchOptions = {}): Promise<Watch> {
    return Watch.begin(this.connection, this.named, options);
  }

  /** Asks the memory. */
  async ask(query: string, options: Omit<AskOptions, "memory"> = {}): Promise<Answer> {
    return this.session.ask(query, { ...options, memory: this.id });
  }

  /** Asks the memory; iterate over the text as it is written. */
  streamAsk(query: string, options: Omit<AskOptions, "memory"> = {}): AnswerStream {
    return this.session.streamAsk(query, { ...options, memory: this.id });
  }
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
