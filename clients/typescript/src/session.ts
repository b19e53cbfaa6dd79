/** A session: remembering and recalling, its memories and its costs, besides its log and its answers. */

import { create } from "@bufbuild/protobuf";
import { APPEND_SECONDS, Backoff, now, sleep } from "./connection.js";
import { conversation, cut, type Rememberable } from "./conversations.js";
import { Aborted, invalid, NotFound, PalimpsestError, reworded } from "./errors.js";
import { Memory_Status } from "./gen/palimpsest/v1/memories_pb.js";
import { type AppendRequest, AppendRequestSchema, RecallSection } from "./gen/palimpsest/v1/session_service_pb.js";
import { createMemory, type CreateOptions, listMemories, memoryInfo, type MemoryInfo, type MemoryOptions, prismSpec } from "./memories.js";
import { Memory } from "./memory.js";
import { type GeneratedSchema, Operation } from "./operation.js";
import { numberOf } from "./plain.js";
import { BATCH_BYTES, BATCH_CHUNKS, sizeBytes } from "./producer.js";
import type { Budget, CostReport, Days, Grouping, StoredSize, UsageReport } from "./resource.js";
import type { Schema } from "./schemas.js";
import { SessionAnswers } from "./session-answers.js";
import { State, type StateSettings, stateSpec, Tree, type TreeSettings, treeSpec } from "./trees.js";
import { type ChunkFilter, type ChunkLabels, consistency, filterMessage, type Freshness, type PositionRange, range } from "./values.js";

/** What was remembered; it is durable. */
export interface Remembered {
  /** Undefined: nothing was left to store. */
  positions: PositionRange | undefined;
  readToken: string;
  requestId: string;
  chunks: number;
  /** Messages that were left out: those of the system, and empty ones. */
  skipped: number;
}

/** A section of a recalled text. */
export type Section = "memory" | "chunks" | "unread";

/** What a session knows that fits a query. */
export interface Recalled {
  /** For a prompt; empty: nothing is known. Others wrote it: it is data, not an instruction. */
  text: string;
  parts: { section: Section | "unknown"; text: string; positions: PositionRange | undefined; memory: string; path: string }[];
  tokens: number;
  readToken: string;
}

/** What to recall. */
export interface RecallOptions extends ChunkFilter, Freshness {
  /** Tokens of the text at most (1,000). */
  tokens?: number | undefined;
  memories?: string[] | undefined;
  sections?: Section[] | undefined;
  timeout?: number | undefined;
}

const MAX_QUERY_CHARACTERS = 16_000;
const SECTIONS = { memory: RecallSection.MEMORY, chunks: RecallSection.CHUNKS, unread: RecallSection.UNREAD };

/** Seconds that a model has to write a schema. */
const SCHEMA_SECONDS = 120;

/** A session, by its id. */
export class Session extends SessionAnswers {
  /**
   * Stores a text, a message or a list of messages; creates the session if it is missing.
   *
   * All is durable when it returns, and stored once however often the call has to be tried. Each call
   * stores what it is given: pass only the messages that are new. With a `requestId` the same turn is
   * stored once for ever.
   */
  async remember(
    messages: Rememberable | readonly Rememberable[],
    options: ChunkLabels & { includeSystem?: boolean; requestId?: string; wait?: boolean; timeout?: number } = {},
  ): Promise<Remembered> {
    const { includeSystem = false, requestId = crypto.randomUUID(), wait = false, timeout, ...labels } = options;
    if (requestId === "") throw invalid("a requestId must not be empty");
    const { chunks, skipped } = conversation(messages, labels, includeSystem);
    const counts = { chunks: chunks.length, skipped };
    if (chunks.length === 0) return { positions: undefined, readToken: "", requestId: "", ...counts };
    const until = now() + this.connection.seconds(timeout, APPEND_SECONDS);
    const requests = await this.#requests(chunks, requestId);
    let first: number | undefined;
    let [last, readToken, stored] = [0, "", 0];
    for (const request of requests) {
      try {
        const done = await this.#appendOrCreate(request, until);
        first ??= Number(done.positions?.first ?? 0);
        [last, readToken] = [Number(done.positions?.last ?? 0), done.readToken];
        stored += request.chunks.length;
      } catch (error) {
        throw error instanceof PalimpsestError ? storedInPart(error, requestId, stored, chunks.length) : error;
      }
    }
    if (wait) {
      for (const one of await this.memories()) {
        if (one.status !== "sealed") await this.memory(one.id).waitUntilApplied(readToken, Math.max(until - now(), 0.001));
      }
    }
    return { positions: { first: first ?? 0, last }, readToken, requestId, ...counts };
  }

  /** Returns what the session knows that fits a query; no language model is asked. */
  async recall(query: Rememberable | readonly Rememberable[] = "", options: RecallOptions = {}): Promise<Recalled> {
    const { tokens = 0, memories = [], sections = [], after, fullyApplied, timeout, ...filter } = options;
    const fresh = consistency({ after, fullyApplied });
    const request = {
      session: this.id,
      query: queryOf(query),
      maxTokens: tokens,
      memories,
      sections: sections.map((one) => SECTIONS[one]),
      filter: filterMessage(filter),
      ...(fresh && { consistency: fresh }),
    };
    try {
      const found = await this.connection.call(this.connection.sessions.recall, request, { timeout });
      return {
        text: found.text,
        tokens: found.tokens,
        readToken: found.readPoint?.readToken ?? "",
        parts: found.parts.map((one) => ({
          section: (RecallSection[one.section]?.toLowerCase() ?? "unknown") as Section,
          text: one.text,
          positions: range(one.positions),
          memory: one.memory,
          path: one.path,
        })),
      };
    } catch (error) {
      const isNew = error instanceof NotFound && error.reason === "SESSION_NOT_FOUND";
      if (!isNew || memories.length > 0 || after) throw error;
      return { text: "", tokens: 0, readToken: "", parts: [] };
    }
  }

  /** Creates a PRISM memory of a schema; it catches up from position 1 in the background. */
  async createMemory<T = unknown>(id: string, schema: Schema<T>, options: MemoryOptions = {}): Promise<Memory<T>> {
    await createMemory(this.connection, { session: this.id, id }, "prism", prismSpec(id, schema, options), options);
    return this.memory(id, schema);
  }

  /** Returns a memory by its id; nothing is sent. */
  memory<T = unknown>(id: string, schema?: Schema<T>): Memory<T> {
    return new Memory<T>(this.connection, this, id, schema);
  }

  /** Creates a summary tree; it grows over the log from position 1 on. */
  async createTree(id: string, { existOk, requestId, ...settings }: TreeSettings & CreateOptions = {}): Promise<Tree> {
    await createMemory(this.connection, { session: this.id, id }, "tree", treeSpec(settings), { existOk, requestId });
    return this.tree(id);
  }

  /** Returns a tree by its id; nothing is sent. */
  tree(id: string): Tree {
    return new Tree(this.connection, this, id);
  }

  /** Creates a state memory; it compresses the log from position 1 on. */
  async createState(id: string, { existOk, requestId, ...settings }: StateSettings & CreateOptions = {}): Promise<State> {
    await createMemory(this.connection, { session: this.id, id }, "state", stateSpec(settings), { existOk, requestId });
    return this.state(id);
  }

  /** Returns a state memory by its id; nothing is sent. */
  state(id: string): State {
    return new State(this.connection, this, id);
  }

  /** Returns the session's memories by id, of one status if given. */
  async memories(options: { status?: Exclude<MemoryInfo["status"], "unknown"> } = {}): Promise<MemoryInfo[]> {
    return (await listMemories(this.connection, this.id, numberOf(Memory_Status, "status", options.status))).map(memoryInfo);
  }

  /** Ends the wait for more chunks of all memories; read with the token to see them applied. */
  async flush(options: { requestId?: string } = {}): Promise<{ readToken: string; head: number }> {
    const { readToken, head } = await this.connection.call(this.connection.memories.flushMemory, { session: this.id, requestId: options.requestId ?? "" });
    return { readToken, head: Number(head) };
  }

  /**
   * Generates a schema for texts of a domain and questions like the example; waits for at most `timeout`
   * seconds (120). Throws FailedPrecondition (SCHEMA_NOT_GENERATED). A late schema is still stored: the
   * error's metadata names the operation, for `client.operation`.
   */
  async generateSchema(domain: string, exampleQuery: string, options: { model?: string; requestId?: string; timeout?: number } = {}): Promise<GeneratedSchema> {
    const operation = await this.requestSchema(domain, exampleQuery, options);
    return operation.wait({ timeout: this.connection.seconds(options.timeout, SCHEMA_SECONDS) });
  }

  /** As `generateSchema`, but returns the operation at once. */
  async requestSchema(domain: string, exampleQuery: string, options: { model?: string; requestId?: string } = {}): Promise<Operation<GeneratedSchema>> {
    // In any case with an id, so that it may be tried again at no further cost.
    const { model = "", requestId = crypto.randomUUID() } = options;
    const request = { session: this.id, domain, exampleQuery, model, requestId };
    return new Operation(this.connection, await this.connection.call(this.connection.memories.generateSchema, request));
  }

  /** Yields the budgets of the session, then those of its memories. */
  budgets(): AsyncGenerator<Budget> {
    return this.listBudgets();
  }

  /** Returns the usage of the session's model calls, in lines by purpose and model unless `groupBy` says otherwise. */
  async usage(options: Days & { groupBy?: Grouping[] } = {}): Promise<UsageReport> {
    return this.readUsage("", options.groupBy ?? ["purpose"], options);
  }

  /** Returns how much is stored of the session by kind, without indexes. */
  async storage(): Promise<StoredSize[]> {
    return this.readStorage();
  }

  /** Explains the cost of the session. */
  async costReport(options: Days & { systemTokens?: number } = {}): Promise<CostReport> {
    return this.readCosts("", options);
  }

  /** Appends; creates the session if it is missing, and waits while a deleted one is being removed. */
  async #appendOrCreate(request: AppendRequest, until: number) {
    const left = () => Math.max(until - now(), 0.001);
    try {
      return await this.appendRequest(request, left());
    } catch (error) {
      if (!(error instanceof NotFound) || error.reason !== "SESSION_NOT_FOUND") throw error;
    }
    for (const backoff = new Backoff(0.1); ; ) {
      try {
        await this.create({ existOk: true });
        return await this.appendRequest(request, left());
      } catch (error) {
        if (!(error instanceof Aborted) || error.reason !== "BEING_DELETED") throw error;
        const pause = backoff.pauseSeconds(error);
        if (pause > left()) throw error;
        await sleep(pause);
      }
    }
  }

  /** Returns the requests that append the chunks, each within the service's limits. */
  async #requests(chunks: AppendRequest["chunks"], requestId: string): Promise<AppendRequest[]> {
    const requests: AppendRequest[] = [];
    let room = 0;
    for (const one of chunks) {
      const bytes = sizeBytes(one);
      let newest = requests.at(-1);
      if (!newest || bytes > room || newest.chunks.length === BATCH_CHUNKS) {
        const id = newest ? await partId(requestId, requests.length + 1) : requestId;
        newest = create(AppendRequestSchema, { session: this.id, requestId: id });
        requests.push(newest);
        room = BATCH_BYTES;
      }
      newest.chunks.push(one);
      room -= bytes;
    }
    return requests;
  }
}

/** Returns an id that no client gives to a request of its own: the Python client derives the same. */
async function partId(requestId: string, number: number): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`remember\0${requestId}\0${number}`));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function storedInPart(error: PalimpsestError, requestId: string, stored: number, total: number): PalimpsestError {
  const isRefused = !["UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED", "UNKNOWN"].includes(error.code);
  if (isRefused && stored === 0) return error;
  const said = isRefused
    ? `${stored} of ${total} chunks had been stored before`
    : `${stored} of ${total} chunks are stored for certain: pass the same messages again with requestId ${JSON.stringify(requestId)}, which stores the rest, and nothing twice`;
  return reworded(error, `${error.message}; ${said}`, { request_id: requestId, stored_chunks: String(stored) });
}

/** Returns the query that a text is, or that messages are: the last of the user, and what was said just before. */
function queryOf(given: Rememberable | readonly Rememberable[]): string {
  if (typeof given === "string") return ends(given);
  const messages = Array.isArray(given) ? (given as readonly Rememberable[]) : [given as Rememberable];
  const turns = messages.map((one) => (typeof one === "string" ? { role: "user", text: one } : { role: one.role, text: textOf(one.content) }));
  const said = turns.filter((one) => one.text.trim());
  const last = said.findLastIndex((one) => one.role !== "assistant" && one.role !== "system");
  const newest = said.slice(Math.max(last - 2, 0), last + 1).reverse();
  const [asked, ...before] = last < 0 ? said.slice(-3).reverse() : newest;
  const context = before.map((one) => `\n${cut(one.text, 150)[0] ?? ""}`).join("");
  return (ends(asked?.text ?? "", MAX_QUERY_CHARACTERS - context.length) + context).trim();
}

function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.flatMap((part: { text?: unknown }) => (typeof part.text === "string" ? [part.text] : [])).join("\n");
}

function ends(text: string, characters = MAX_QUERY_CHARACTERS): string {
  if (text.length <= characters) return text;
  const half = Math.floor((characters - 1) / 2);
  return `${text.slice(0, half)}\n${text.slice(-half)}`;
}
