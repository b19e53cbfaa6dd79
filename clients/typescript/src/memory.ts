/** A memory: reading it, watching it, keeping it, and asking it. */

import type { Answer, AnswerStream, AskOptions, Asked } from "./answers.js";
import type { Connection } from "./connection.js";
import { type Memory as MemoryMessage } from "./gen/palimpsest/v1/memories_pb.js";
import { NavigationStatisticsSchema } from "./gen/palimpsest/v1/answer_service_pb.js";
import { type ChangeOptions, MemoryHistory } from "./history.js";
import { type MemoryInfo, memoryInfo, type MemoryOptions, type MemoryState, prismSpec, schemaOf } from "./memories.js";
import { Operation } from "./operation.js";
import { given, plain, whole } from "./plain.js";
import { type Budget, type CostReport, type Days, type Grouping, type UsageReport } from "./resource.js";
import { isTyped, type Schema, typed } from "./schemas.js";
import type { Session } from "./session.js";
import type { NavigationStatistics, TrainingExample } from "./trajectories.js";
import { consistency, type Freshness, type Json } from "./values.js";
import { Watch, type WatchOptions } from "./watch.js";

/** How a memory is changed, besides what is changed. */
export type UpdateOptions = ChangeOptions;

/** How the log is read again into a new memory. */
export interface RebuildOptions {
  /** What remains of a log whose beginning has expired is enough. */
  allowExpiredLog?: boolean | undefined;
  requestId?: string | undefined;
}

/** A memory, by its id. With a typed schema, `get` returns values of its type. */
export class Memory<T = unknown> extends MemoryHistory {
  constructor(
    connection: Connection,
    session: Session,
    id: string,
    readonly schema?: Schema<T>,
  ) {
    super(connection, session, id);
  }

  protected get kind(): MemoryInfo["kind"] {
    return "prism";
  }

  /** Reads the memory: now, as it was at a revision or position, or once it is fresh enough. */
  async get(options: Freshness & { revision?: number; position?: number; timeout?: number } = {}): Promise<MemoryState<T>> {
    const { revision, position, timeout } = options;
    const at = { revision: whole("revision", revision), position: whole("position", position) };
    const request = { ...this.named, ...given({ ...at, consistency: consistency(options) }) };
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

  /** Deletes the memory with its history; the log stays. `reason` is kept in the record of the erasure. */
  async delete(options: { missingOk?: boolean; reason?: string; requestId?: string } = {}): Promise<void> {
    const { missingOk = false, reason = "", requestId = "" } = options;
    const request = { ...this.named, allowMissing: missingOk, reason, requestId };
    await this.connection.call(this.connection.memories.deleteMemory, request, { retry: missingOk || requestId !== "" });
  }

  /** Watches the revisions as they are committed. On return the watch has begun. */
  async watch(options: WatchOptions = {}): Promise<Watch> {
    return Watch.begin(this.connection, this.named, options);
  }

  /**
   * Gives the memory a schema with more fields, another model, or both. Throws InvalidArgument
   * (SCHEMA_INVALID, SCHEMA_INCOMPATIBLE, MODEL_NOT_ALLOWED), Aborted (REVISION_CONFLICT).
   */
  async update(changes: { schema?: Schema; model?: string } & UpdateOptions): Promise<MemoryInfo> {
    const { schema, model, ...options } = changes;
    return this.updateSpec(given({ model, schema: schema === undefined ? undefined : schemaOf(this.id, schema) }), options);
  }

  protected async updateSpec(spec: Record<string, unknown>, options: UpdateOptions): Promise<MemoryInfo> {
    const { expectedRevision, comment = "", requestId = "" } = options;
    const memory = { session: this.session.id, id: this.id, spec: { case: this.kind, value: spec } as MemoryMessage["spec"] };
    const request = { memory, updateMask: { paths: this.#paths(spec) }, comment, requestId, ...given({ expectedRevision: whole("expectedRevision", expectedRevision) }) };
    const retry = requestId !== "" || expectedRevision === undefined;
    return memoryInfo(await this.connection.call(this.connection.memories.updateMemory, request, { retry }));
  }

  /** Reads the whole log again into a new memory, with the settings of this one where none are given. Returns at once. */
  async rebuild(newId: string, options: { schema?: Schema } & Omit<MemoryOptions, "existOk"> & RebuildOptions = {}): Promise<Operation<MemoryInfo>> {
    const { schema, allowExpiredLog, requestId, ...settings } = options;
    return this.rebuildSpec(newId, undefined, prismSpec(newId, schema, settings), { allowExpiredLog, requestId });
  }

  /** `whole` replaces all settings, `changes` single ones. */
  protected async rebuildSpec(newId: string, all: Record<string, unknown> | undefined, changes: Record<string, unknown>, options: RebuildOptions): Promise<Operation<MemoryInfo>> {
    const newMemory = { session: this.session.id, id: newId, spec: { case: this.kind, value: { ...all, ...changes } } as MemoryMessage["spec"] };
    const paths = all ? [this.kind] : this.#paths(changes);
    // Always with an id, so that it may be tried again.
    const { allowExpiredLog = false, requestId = crypto.randomUUID() } = options;
    const request = { ...this.named, newMemory, updateMask: { paths }, allowExpiredLog, requestId };
    return new Operation(this.connection, await this.connection.call(this.connection.memories.rebuildMemory, request));
  }

  /** Requests a consolidation: the model merges and shortens, once the log is read. Returns at once. */
  async consolidate(options: { requestId?: string } = {}): Promise<Operation<MemoryInfo>> {
    const request = { ...this.named, requestId: options.requestId ?? "" };
    return new Operation(this.connection, await this.connection.call(this.connection.memories.consolidateMemory, request));
  }

  /** Ends the wait for more chunks, and returns before they are read: read with the token to see them applied. */
  async flush(options: { requestId?: string } = {}): Promise<{ readToken: string; head: number }> {
    const request = { ...this.named, requestId: options.requestId ?? "" };
    const { readToken, head } = await this.connection.call(this.connection.memories.flushMemory, request);
    return { readToken, head: Number(head) };
  }

  /** Retries a stalled memory where it stopped; returns whether it was stalled. */
  async retry(options: { requestId?: string } = {}): Promise<boolean> {
    const request = { ...this.named, requestId: options.requestId ?? "" };
    return (await this.connection.call(this.connection.memories.retryMemory, request)).retried > 0;
  }

  /** Returns the usage of the memory's model calls, in lines by purpose and model unless `groupBy` says otherwise. */
  async usage(options: Days & { groupBy?: Grouping[] } = {}): Promise<UsageReport> {
    return this.readUsage(this.id, options.groupBy ?? ["purpose"], options);
  }

  /** Explains the cost of the memory: caches, and what other ways would have cost. */
  async costReport(options: Days & { systemTokens?: number } = {}): Promise<CostReport> {
    return this.readCosts(this.id, options);
  }

  /** Returns the budgets of the memory. */
  async budgets(): Promise<Budget[]> {
    const found: Budget[] = [];
    for await (const one of this.listBudgets()) if (one.memory === this.id) found.push(one);
    return found;
  }

  /** Asks the memory. */
  async ask(query: string, options: Omit<AskOptions, "memory"> = {}): Promise<Answer> {
    return this.session.ask(query, { ...options, memory: this.id });
  }

  /** Asks the memory; iterate over the text as it is written. */
  streamAsk(query: string, options: Omit<AskOptions, "memory"> = {}): AnswerStream {
    return this.session.streamAsk(query, { ...options, memory: this.id });
  }

  /** Asks many questions, 32 at once; see `session.askAll`. */
  async askAll(queries: readonly string[], options: Omit<AskOptions, "memory"> = {}): Promise<Asked[]> {
    return this.session.askAll(queries, { ...options, memory: this.id });
  }

  /** Returns the counts of all navigations of a tree. Throws FailedPrecondition where there is none. */
  async navigationStatistics(): Promise<NavigationStatistics> {
    return plain(NavigationStatisticsSchema, await this.connection.call(this.connection.answers.getNavigationStatistics, this.named));
  }

  /** Yields the moves of navigations that found an answer, oldest first, for training. */
  exportTrajectories(options: { answerIds?: string[]; good?: boolean } = {}): AsyncGenerator<TrainingExample> {
    return this.session.exportTrajectories({ ...options, memory: this.id });
  }

  /** Returns the paths of the fields of a spec. */
  #paths(spec: Record<string, unknown>): string[] {
    return Object.entries(spec).map(([name, value]) => {
      const field = name === "schema" ? (value as { case: string }).case : name;
      return `${this.kind}.${field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)}`;
    });
  }
}
