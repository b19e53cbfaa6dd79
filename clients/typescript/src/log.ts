/** A session itself, and its log: appending to it, reading it, searching it, forgetting, exporting. */

import { create } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { APPEND_SECONDS, type Connection } from "./connection.js";
import { AlreadyExists, invalid, reworded } from "./errors.js";
import { SourceTrust } from "./gen/palimpsest/v1/chunks_pb.js";
import * as pb from "./gen/palimpsest/v1/session_service_pb.js";
import { Operation } from "./operation.js";
import { type EnumName, given, plain, type Plain, type With } from "./plain.js";
import { Producer, type ProducerOptions } from "./producer.js";
import { Resource } from "./resource.js";
import { type ExportBlock, exportBlocks, type ExportPoint, type TransferProgress } from "./transfers.js";
import { type Chunk, chunk, type ChunkFilter, chunkMessage, consistency, filterMessage, type Freshness, isOpen, type Json, type NewChunk, type PositionRange, range, type Redaction, retention, type Retention } from "./values.js";

/** A session and its log. */
export interface SessionInfo {
  id: string;
  /** The position of the newest chunk; 0: the log is empty. */
  head: number;
  metadata: Record<string, string>;
  language: string;
  /** For an update that must not overwrite another one. */
  etag: string;
  /** Where it differs from the tenant's policy. */
  retention: Retention;
  createdAt: Date | undefined;
}

/** How a session is created. */
export interface SessionOptions {
  existOk?: boolean | undefined;
  metadata?: Record<string, string> | undefined;
  language?: string | undefined;
  /** Whether the first append makes a memory "default". */
  defaultMemory?: boolean | undefined;
  /** How long data is kept, where that differs from the tenant's policy. */
  retention?: Retention | undefined;
  requestId?: string | undefined;
}

/** What was appended; it is durable. */
export interface Appended {
  positions: PositionRange;
  readToken: string;
  /** The id under which the same can be appended again without being stored twice. */
  requestId: string;
}

/** A chunk that a search found. */
export interface SearchResult {
  rank: number;
  score: number;
  chunk: Chunk;
}

/** How far words and vectors of a session are in the search index. */
export type SearchIndex = Plain<pb.SearchIndex>;
/** A small part of a memory: a value, a summary, a state vector. `text` is for a prompt. */
export type MemoryEntry = With<pb.SearchMemoriesResponse_Entry, { value: Json; positions: PositionRange | undefined; trust: EnumName<typeof SourceTrust> }>;
/** An entry of a memory that matches a query. */
export type FoundEntry = With<pb.SearchMemoriesResponse_Result, { entry: MemoryEntry }>;

/** Which chunks are forgotten, exactly one of the first four; and how. */
export interface ForgetOptions {
  /** Single positions, or ranges of them. */
  positions?: readonly (number | PositionRange)[] | undefined;
  thread?: string | undefined;
  source?: string | undefined;
  /** All chunks that contain it, in any part, and in any case unless `caseSensitive`. */
  text?: string | undefined;
  caseSensitive?: boolean | undefined;
  /** The same content appended anew becomes a tombstone at once; the default for a `text`. */
  keepOut?: boolean | undefined;
  /** Kept in the record of the erasure: it must not repeat what is forgotten. */
  reason?: string | undefined;
  /** Only returns which chunks it would be. */
  dryRun?: boolean | undefined;
  /** Forgets the same first in the tenant's sessions that were imported from this one. */
  includeImports?: boolean | undefined;
  requestId?: string | undefined;
  timeout?: number | undefined;
}

/** Which chunks were forgotten, or would be. */
export interface Forgotten {
  chunks: number;
  positions: PositionRange[];
  /** The removal of what was derived from them; undefined of a dry run, and when nothing is done. */
  operation: Operation<Redaction> | undefined;
  /** Texts that are kept out of the session from now on, and were not before. */
  keptOut: number;
  /** With `includeImports`: sessions that were imported from this one. */
  imports: Plain<pb.RedactChunksResponse_Import>[];
}

export function sessionInfo(message: pb.Session): SessionInfo {
  const { id, metadata, language, etag, createdAt } = message;
  return { id, head: Number(message.head), metadata, language, etag, retention: retention(message.retention), createdAt: createdAt && timestampDate(createdAt) };
}

const MODES = { auto: pb.SearchMode.UNSPECIFIED, words: pb.SearchMode.WORDS, vectors: pb.SearchMode.VECTORS, hybrid: pb.SearchMode.HYBRID };

/** The part of `Session` that is about the session itself and its log. */
export class SessionLog extends Resource {
  constructor(
    connection: Connection,
    readonly id: string,
  ) {
    super(connection, { session: id, memory: "" });
  }

  /** Creates the session. Throws AlreadyExists, unless `existOk`. */
  async create(options: SessionOptions = {}): Promise<void> {
    const { existOk = false, metadata = {}, language = "", defaultMemory, retention, requestId = "" } = options;
    const made = defaultMemory === undefined ? pb.DefaultMemory.UNSPECIFIED : defaultMemory ? pb.DefaultMemory.GENERAL : pb.DefaultMemory.NONE;
    const session = { id: this.id, metadata, language, defaultMemory: made, ...(retention && { retention: given(retention) }) };
    const request = { session, requestId };
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

  /** Replaces what is given: the metadata, how long data is kept; with an `etag`, only if the session has not been updated since. */
  async update(options: { metadata?: Record<string, string>; retention?: Retention; etag?: string; requestId?: string }): Promise<SessionInfo> {
    const { metadata, retention, etag = "", requestId = "" } = options;
    const paths = Object.entries({ metadata, retention }).flatMap(([name, value]) => (value === undefined ? [] : [name]));
    if (paths.length === 0) throw invalid("give metadata or retention, or both");
    const session = { id: this.id, metadata: metadata ?? {}, etag, ...(retention && { retention: given(retention) }) };
    const request = { session, updateMask: { paths }, requestId };
    return sessionInfo(await this.connection.call(this.connection.sessions.updateSession, request, { retry: !etag || requestId !== "" }));
  }

  /** Deletes the session with its log, memories and answers, with `includeImports` also its copies; it cannot be restored. */
  async delete(options: { missingOk?: boolean; includeImports?: boolean; reason?: string; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, includeImports = false, reason = "", requestId = "" } = options;
    const request = { session: this.id, allowMissing: missingOk, includeImports, reason, requestId };
    await this.connection.call(this.connection.sessions.deleteSession, request, { retry: missingOk || requestId !== "" });
  }

  /** Appends up to 256 chunks together, or none of them; they are durable when it returns. */
  async append(
    chunks: readonly (NewChunk | string)[],
    options: { expectedHead?: number; requestId?: string; timeout?: number } = {},
  ): Promise<Appended> {
    const { expectedHead, timeout, requestId = crypto.randomUUID() } = options;
    if (chunks.length === 0) throw invalid("there is nothing to append");
    const request = create(pb.AppendRequestSchema, {
      session: this.id,
      requestId,
      chunks: chunks.map((one, at) => chunkMessage(typeof one === "string" ? { text: one } : one, `item ${at + 1}`)),
      ...(expectedHead === undefined ? {} : { expectedHead: BigInt(expectedHead) }),
    });
    const done = await this.appendRequest(request, timeout);
    return { positions: range(done.positions) ?? { first: 0, last: 0 }, readToken: done.readToken, requestId };
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
    return { results, mode: pb.SearchMode[found.mode]?.toLowerCase() ?? "unknown" };
  }

  /** Finds the entries of the session's memories that match a query best; chunk filters keep those that rest on a chunk that matches. */
  async searchMemories(
    query: string,
    options: ChunkFilter & Freshness & { limit?: number; mode?: keyof typeof MODES; memories?: string[]; pathPrefix?: string; timeout?: number } = {},
  ): Promise<{ results: FoundEntry[]; mode: string }> {
    const { limit = 0, mode = "auto", memories = [], pathPrefix = "", after, fullyApplied, timeout, ...filter } = options;
    const fresh = consistency({ after, fullyApplied });
    // A filter that is set excludes what rests on no chunk.
    const wanted = { memories, pathPrefix, ...(isOpen(filter) ? {} : { chunks: filterMessage(filter) }) };
    const request = { session: this.id, query, limit, mode: MODES[mode], filter: wanted, ...(fresh && { consistency: fresh }) };
    const found = await this.connection.call(this.connection.sessions.searchMemories, request, { timeout });
    const results = found.results.map((one): FoundEntry => plain(pb.SearchMemoriesResponse_ResultSchema, one));
    return { results, mode: pb.SearchMode[found.mode]?.toLowerCase() ?? "unknown" };
  }

  /** Returns how much of the log has words and vectors in the index. */
  async searchIndex(): Promise<SearchIndex> {
    return plain(pb.SearchIndexSchema, await this.connection.call(this.connection.sessions.getSearchIndex, { session: this.id }));
  }

  /**
   * Removes the content of chunks, and everything derived from it, for good.
   *
   *     const { operation } = await session.forget({ text: "+1 555 0100", reason: "asked for by the user" });
   *     await operation?.wait(); // until nothing derived from it is left
   *
   * Positions stay, as tombstones with `chunk.redaction`. Memories go back to before they read the chunks,
   * and read the log on from there. Throws NotFound, InvalidArgument (TOO_MANY_CHUNKS).
   */
  async forget(options: ForgetOptions): Promise<Forgotten> {
    const { positions = [], thread, source, text, caseSensitive = false, keepOut, reason = "", dryRun = false, includeImports = false, requestId = "", timeout } = options;
    const ranges = positions.map((one) => (typeof one === "number" ? { first: one, last: one } : one));
    const selections = Object.entries({ thread, source, text }).flatMap(([name, value]) => (value ? [{ case: name, value }] : []));
    if (selections.length + (ranges.length > 0 ? 1 : 0) !== 1) throw invalid("exactly one of positions, thread, source and text says which chunks");
    const which = { ranges: ranges.map(({ first, last }) => ({ first: BigInt(first), last: BigInt(last) })) };
    const selection = (selections[0] ?? { case: "positions", value: which }) as { case: "text"; value: string };
    const request = { session: this.id, selection, caseSensitive, reason, validateOnly: dryRun, includeImports, requestId, ...given({ keepOut }) };
    const found = await this.connection.call(this.connection.sessions.redactChunks, request, { timeout });
    return {
      chunks: Number(found.chunks),
      positions: found.positions.map((one) => range(one) as PositionRange),
      operation: found.operation && new Operation(this.connection, found.operation),
      keptOut: Number(found.keptOut),
      imports: found.imports.map((one) => plain(pb.RedactChunksResponse_ImportSchema, one)),
    };
  }

  /**
   * Writes all of the session to a file, for `client.importSession`; a block at a time.
   *
   * A file with a part of an export is continued; a complete one stays as it is. Throws NotFound, Aborted
   * (EXPORT_CHANGED), and InvalidArgument for a file with other content, and in a browser.
   */
  async export(path: string, options: { onProgress?: (progress: TransferProgress) => void } = {}): Promise<void> {
    const { files } = this.connection;
    if (!files) throw invalid("a browser has no files: use exportBlocks");
    const blocks = (after: ExportPoint | undefined) => this.exportBlocks({ ...options, after });
    await files.write(path, this.id, blocks);
  }

  /** Yields an export in blocks of whole lines, each with the point after which it can be continued. Lost connections are made again. */
  async *exportBlocks(options: { after?: ExportPoint | undefined; onProgress?: ((progress: TransferProgress) => void) | undefined } = {}): AsyncGenerator<ExportBlock> {
    for await (const block of exportBlocks(this.connection, this.id, options.after)) {
      yield block;
      options.onProgress?.({ bytes: block.point.bytes, lines: block.point.lines });
    }
  }

  /** Opens a producer, for long streams from one process. `producerId` is its lasting name. */
  async producer(producerId: string, options: ProducerOptions = {}): Promise<Producer> {
    return Producer.open(this.connection, this.id, producerId, options);
  }

  protected appendRequest(request: pb.AppendRequest, timeout: number | undefined) {
    return this.connection.call(this.connection.sessions.append, request, { timeout, byDefault: APPEND_SECONDS });
  }
}
