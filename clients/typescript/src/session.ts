/** A session: its log, its memories and its questions. */

import { create } from "@bufbuild/protobuf";
import { type Answer, answerOf, AnswerStream, type AskOptions, lastOf, Listening, question } from "./answers.js";
import { APPEND_SECONDS, ASK_SECONDS, Backoff, type Connection, now, sleep } from "./connection.js";
import { conversation, cut, type Rememberable } from "./conversations.js";
import { Aborted, AlreadyExists, invalid, NotFound, PalimpsestError, reworded } from "./errors.js";
import { type AppendRequest, AppendRequestSchema, DefaultMemory, RecallSection, SearchMode, type Session as SessionMessage } from "./gen/palimpsest/v1/session_service_pb.js";
import { createMemory, listMemories, Memory, memoryInfo, type MemoryInfo, type MemoryOptions } from "./memory.js";
import { BATCH_BYTES, BATCH_CHUNKS, Producer, type ProducerOptions, sizeBytes } from "./producer.js";
import type { Schema } from "./schemas.js";
import { type Chunk, chunk, type ChunkFilter, chunkMessage, type ChunkLabels, consistency, filterMessage, type Freshness, type NewChunk, type PositionRange, range } from "./values.js";

/** A session and its log. */
export interface SessionInfo {
  id: string;
  /** The position of the newest chunk; 0: the log is empty. */
  head: number;
  metadata: Record<string, string>;
  language: string;
  /** For an update that must not overwrite another one. */
  etag: string;
}

/** How a session is created. */
export interface SessionOptions {
  existOk?: boolean | undefined;
  metadata?: Record<string, string> | undefined;
  language?: string | undefined;
  /** Whether the first append makes a memory "default". */
  defaultMemory?: boolean | undefined;
  requestId?: string | undefined;
}

/** What was appended; it is durable. */
export interface Appended {
  positions: PositionRange;
  readToken: string;
  /** The id under which the same can be appended again without being stored twice. */
  requestId: string;
}

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

/** A chunk that a search found. */
export interface SearchResult {
  rank: number;
  score: number;
  chunk: Chunk;
}

const MAX_QUERY_CHARACTERS = 16_000;
const SECTIONS = { memory: RecallSection.MEMORY, chunks: RecallSection.CHUNKS, unread: RecallSection.UNREAD };
const MODES = { auto: SearchMode.UNSPECIFIED, words: SearchMode.WORDS, vectors: SearchMode.VECTORS, hybrid: SearchMode.HYBRID };

export function sessionInfo(message: SessionMessage): SessionInfo {
  const { id, metadata, language, etag } = message;
  return { id, head: Number(message.head), metadata, language, etag };
}

/** A session, by its id. */
export class Session {
  constructor(
    protected readonly connection: Connection,
    readonly id: string,
  ) {}

  /** Creates the session. Throws AlreadyExists, unless `existOk`. */
  async create(options: SessionOptions = {}): Promise<void> {
    const { existOk = false, metadata = {}, language = "", defaultMemory, requestId = "" } = options;
    const made = defaultMemory === undefined ? DefaultMemory.UNSPECIFIED : defaultMemory ? DefaultMemory.GENERAL : DefaultMemory.NONE;
    const request = { session: { id: this.id, metadata, language, defaultMemory: made }, requestId };
    try {
      await this.connection.call(this.connection.sessions.createSession, request, { retry: existOk || requestId !== "" });
    } catch (error) {
      if (!existOk || !(error instanceof AlreadyExists) || error.reason !== "SESSION_EXISTS") throw error;
      if (language && (await this.info()).language !== language) {
        throw reworded(error, `session ${JSON.stringify(this.id)} is there already in another language: leave the language out, or choose another id`);
      }
    }
  }

  async info(): Promise<SessionInfo> {
    return sessionInfo(await this.connection.call(this.connection.sessions.getSession, { session: this.id }));
  }

  /** Replaces the metadata; with an `etag`, only if the session has not been updated since. */
  async update(options: { metadata: Record<string, string>; etag?: string; requestId?: string }): Promise<SessionInfo> {
    const { metadata, etag = "", requestId = "" } = options;
    const request = { session: { id: this.id, metadata, etag }, updateMask: { paths: ["metadata"] }, requestId };
    return sessionInfo(await this.connection.call(this.connection.sessions.updateSession, request, { retry: !etag || requestId !== "" }));
  }

  /** Deletes the session with its log, memories and answers; it cannot be restored. */
  async delete(options: { missingOk?: boolean; reason?: string; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, reason = "", requestId = "" } = options;
    const request = { session: this.id, allowMissing: missingOk, reason, requestId };
    await this.connection.call(this.connection.sessions.deleteSession, request, { retry: missingOk || requestId !== "" });
  }

  /** Appends up to 256 chunks together, or none of them; they are durable when it returns. */
  async append(
    chunks: readonly (NewChunk | string)[],
    options: { expectedHead?: number; requestId?: string; timeout?: number } = {},
  ): Promise<Appended> {
    const { expectedHead, timeout, requestId = crypto.randomUUID() } = options;
    if (chunks.length === 0) throw invalid("there is nothing to append");
    const request = create(AppendRequestSchema, {
      session: this.id,
      requestId,
      chunks: chunks.map((one, at) => chunkMessage(typeof one === "string" ? { text: one } : one, `item ${at + 1}`)),
      ...(expectedHead === undefined ? {} : { expectedHead: BigInt(expectedHead) }),
    });
    const done = await this.#append(request, timeout);
    return { positions: range(done.positions) ?? { first: 0, last: 0 }, readToken: done.readToken, requestId };
  }

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

  /** Yields the log, in order. */
  async *chunks(filter: ChunkFilter = {}): AsyncGenerator<Chunk> {
    const request = { session: this.id, filter: filterMessage(filter), pageSize: 1000 };
    for await (const page of this.connection.pages(this.connection.sessions.listChunks, request)) yield* page.chunks.map(chunk);
  }

  /** Finds the chunks that match a query best: words, not an expression. */
  async search(
    query: string,
    options: ChunkFilter & Freshness & { limit?: number; mode?: keyof typeof MODES; timeout?: number } = {},
  ): Promise<{ results: SearchResult[]; mode: string }> {
    const { limit = 0, mode = "auto", after, fullyApplied, timeout, ...filter } = options;
    const fresh = consistency({ after, fullyApplied });
    const request = { session: this.id, query, limit, mode: MODES[mode], filter: filterMessage(filter), ...(fresh && { consistency: fresh }) };
    const found = await this.connection.call(this.connection.sessions.searchChunks, request, { timeout });
    const results = found.results.flatMap((one) => (one.chunk ? [{ rank: one.rank, score: one.score, chunk: chunk(one.chunk) }] : []));
    return { results, mode: SearchMode[found.mode]?.toLowerCase() ?? "unknown" };
  }

  /** Opens a producer, for long streams from one process. `producerId` is its lasting name. */
  async producer(producerId: string, options: ProducerOptions = {}): Promise<Producer> {
    return Producer.open(this.connection, this.id, producerId, options);
  }

  /** Creates a PRISM memory of a schema; it catches up from position 1 in the background. */
  async createMemory<T = unknown>(id: string, schema: Schema<T>, options: MemoryOptions = {}): Promise<Memory<T>> {
    await createMemory(this.connection, this.id, id, schema, options);
    return this.memory(id, schema);
  }

  /** Returns a memory by its id; nothing is sent. */
  memory<T = unknown>(id: string, schema?: Schema<T>): Memory<T> {
    return new Memory<T>(this.connection, this, id, schema);
  }

  async memories(): Promise<MemoryInfo[]> {
    return (await listMemories(this.connection, this.id)).map(memoryInfo);
  }

  /** Asks the session; returns the answer with its citations. */
  async ask(query: string, options: AskOptions = {}): Promise<Answer> {
    return lastOf(this.#listening(options.timeout).ask(question(this.id, query, options, false)));
  }

  /** Asks; iterate over the text as it is written, then read `answer`. */
  streamAsk(query: string, options: AskOptions = {}): AnswerStream {
    const leaving = new AbortController();
    const listening = this.#listening(options.timeout, leaving.signal);
    return new AnswerStream(listening.ask(question(this.id, query, options, true)), leaving);
  }

  /** Waits for an answer; an abandoned one continues from its last model call. */
  async resumeAnswer(answerId: string, options: { afterEvent?: number; afterText?: number; timeout?: number } = {}): Promise<Answer> {
    const { afterEvent = 0, afterText = 0, timeout } = options;
    return lastOf(this.#listening(timeout).resume(answerId, afterEvent, afterText));
  }

  /** Returns a stored answer. */
  async answer(answerId: string): Promise<Answer> {
    return answerOf(await this.connection.call(this.connection.answers.getAnswer, { session: this.id, answer: answerId }));
  }

  /** Cancels an answer that is not done. */
  async cancelAnswer(answerId: string): Promise<Answer> {
    return answerOf(await this.connection.call(this.connection.answers.cancelAnswer, { session: this.id, answer: answerId }));
  }

  #listening(timeout: number | undefined, signal?: AbortSignal): Listening {
    return new Listening(this.connection, this.id, this.connection.seconds(timeout, ASK_SECONDS), signal);
  }

  #append(request: AppendRequest, timeout: number | undefined) {
    return this.connection.call(this.connection.sessions.append, request, { timeout, byDefault: APPEND_SECONDS });
  }

  /** Appends; creates the session if it is missing, and waits while a deleted one is being removed. */
  async #appendOrCreate(request: AppendRequest, until: number) {
    const left = () => Math.max(until - now(), 0.001);
    try {
      return await this.#append(request, left());
    } catch (error) {
      if (!(error instanceof NotFound) || error.reason !== "SESSION_NOT_FOUND") throw error;
    }
    for (const backoff = new Backoff(0.1); ; ) {
      try {
        await this.create({ existOk: true });
        return await this.#append(request, left());
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
