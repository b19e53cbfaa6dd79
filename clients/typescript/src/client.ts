/** The client: what belongs to no session. */

import { Access } from "./access.js";
import { Agent, type AgentOptions } from "./agent.js";
import type { Connection } from "./connection.js";
import { AlreadyExists, invalid } from "./errors.js";
import { OperationState } from "./gen/palimpsest/v1/common_pb.js";
import { Memory_Status } from "./gen/palimpsest/v1/memories_pb.js";
import { Operation_Kind } from "./gen/palimpsest/v1/operations_pb.js";
import { type SessionInfo, sessionInfo, type SessionOptions } from "./log.js";
import { memoryInfo, type MemoryInfo, schemaOf } from "./memories.js";
import { Operation, type OperationKind, type State } from "./operation.js";
import { given, numberOf } from "./plain.js";
import { type Budget, type Days, type Grouping, Resource, type StoredSize, type UsageReport } from "./resource.js";
import type { Schema } from "./schemas.js";
import { Session } from "./session.js";
import { headerOf, readHeader, type Source, type TransferProgress, Upload } from "./transfers.js";

/** How a session is imported. */
export interface ImportOptions {
  /** Its id, in place of that of the export. */
  session?: string | undefined;
  restoreDeleted?: boolean | undefined;
  /** Is called after each block that is durable, with the number of its last line. */
  onProgress?: ((progress: Pick<TransferProgress, "lines">) => void) | undefined;
}

/** A connection to the service; all sessions share it. */
export class Client extends Resource {
  readonly #end: () => void;

  constructor(connection: Connection, end: () => void) {
    super(connection, { session: "", memory: "" });
    this.#end = end;
  }

  /** The address of the service. */
  get address(): string {
    return this.connection.address;
  }

  /** Returns a session by its id; nothing is sent. */
  session(id: string): Session {
    return new Session(this.connection, id);
  }

  /** Creates a session. Throws AlreadyExists, unless `existOk`. */
  async createSession(id: string, options: SessionOptions = {}): Promise<Session> {
    const session = this.session(id);
    await session.create(options);
    return session;
  }

  /** Yields all sessions, by id. */
  async *sessions(): AsyncGenerator<SessionInfo> {
    for await (const page of this.connection.pages(this.connection.sessions.listSessions, { pageSize: 1000 })) {
      yield* page.sessions.map(sessionInfo);
    }
  }

  /** Deletes a session. See `session.delete`. */
  async deleteSession(id: string, options: Parameters<Session["delete"]>[0] = {}): Promise<void> {
    await this.session(id).delete(options);
  }

  /**
   * Imports the file of an export, under its own id or another; a part at a time.
   *
   * `source` is the path of the file, or a function that returns its bytes from the beginning each time
   * that it is called. The session is visible once all of it was verified. After an interruption, call it
   * again: it continues. `restoreDeleted` also imports a session that was deleted in this tenant after the
   * export. Throws AlreadyExists (SESSION_EXISTS), InvalidArgument (IMPORT_INVALID, with the line, or a
   * file that is no export), FailedPrecondition (IMPORT_UNFINISHED).
   */
  async importSession(source: string | Source, options: ImportOptions = {}): Promise<Session> {
    if (!this.connection.hasProducers || !this.connection.files) throw invalid("a browser has no streams in both directions: import on Node.js");
    const bytes = typeof source === "string" ? this.connection.files.read(source) : source;
    const header = headerOf(await readHeader(bytes()));
    const session = this.session(options.session ?? header.session);
    try {
      await new Upload(this.connection, bytes, session.id, options).run();
    } catch (error) {
      // The reply of a stream before may have been lost.
      if (!(error instanceof AlreadyExists) || (await this.#origin(session.id)) !== header.exportId) throw error;
    }
    return session;
  }

  async #origin(session: string): Promise<string | undefined> {
    const found = await this.connection.call(this.connection.sessions.getSession, { session });
    return found.importedFrom?.exportId;
  }

  /** Administration: tenants, keys, quotas, erasures, sources, the audit log. */
  get access(): Access {
    return new Access(this.connection);
  }

  /** Yields the memories of all sessions, of one status if given, in no order. */
  memories(options: { status?: Exclude<MemoryInfo["status"], "unknown"> } = {}): AsyncGenerator<MemoryInfo> {
    const status = numberOf(Memory_Status, "status", options.status) ?? Memory_Status.UNSPECIFIED;
    return this.connection.all(this.connection.memories.listMemories, { status, pageSize: 1000 }, (page) => page.memories.map(memoryInfo));
  }

  /** Retries the stalled memories of a session, or all; returns how many. */
  async retryStalled(session = "", options: { requestId?: string } = {}): Promise<number> {
    return (await this.connection.call(this.connection.memories.retryMemory, { session, requestId: options.requestId ?? "" })).retried;
  }

  /** Returns an operation; it is kept for 30 days. */
  async operation(id: string): Promise<Operation> {
    return new Operation(this.connection, await this.connection.call(this.connection.operations.getOperation, { operation: id }));
  }

  /** Yields the operations that match, newest first, without their results. `memory` needs its `session`. */
  operations(options: { session?: string; memory?: string; kind?: Exclude<OperationKind, "unknown">; state?: Exclude<State, "unknown"> } = {}): AsyncGenerator<Operation> {
    const { session = "", memory = "", kind, state } = options;
    const numbers = { kind: numberOf(Operation_Kind, "kind", kind) as Operation_Kind | undefined, state: numberOf(OperationState, "state", state) as OperationState | undefined };
    const request = { session, memory, pageSize: 1000, ...given(numbers) };
    return this.connection.all(this.connection.operations.listOperations, request, (page) => page.operations.map((one) => new Operation(this.connection, one)));
  }

  /** Yields all budgets and how much of each is spent: the tenant's, then by session. */
  budgets(): AsyncGenerator<Budget> {
    return this.listBudgets();
  }

  /** Returns the usage of all model calls, in lines by session unless `groupBy` says otherwise. */
  async usage(options: Days & { groupBy?: Grouping[] } = {}): Promise<UsageReport> {
    return this.readUsage("", options.groupBy ?? ["session"], options);
  }

  /** Returns how much is stored of the tenant by kind, with indexes: an estimate. */
  async storage(): Promise<StoredSize[]> {
    return this.readStorage();
  }

  /** Checks class source or a JSON Schema; returns the schema as models see it. Throws InvalidArgument (SCHEMA_INVALID). */
  async checkSchema(schema: Schema): Promise<string> {
    return (await this.connection.call(this.connection.memories.checkSchema, { schema: schemaOf("schema", schema) as { case: "schemaSource"; value: string } })).schemaSource;
  }

  /** Opens the loop of an agent with context compression. */
  async agent(session: string, options: AgentOptions = {}): Promise<Agent> {
    return Agent.open(this.connection, this.session(session), options);
  }

  /** Closes the connection; what is under way ends with an error. */
  close(): void {
    this.connection.close();
    this.#end();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
