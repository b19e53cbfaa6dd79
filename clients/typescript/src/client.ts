/** The client: what belongs to no session. */

import { Agent, type AgentOptions } from "./agent.js";
import type { Connection } from "./connection.js";
import { Session, type SessionInfo, sessionInfo, type SessionOptions } from "./session.js";

/** A connection to the service; all sessions share it. */
export class Client {
  readonly #connection: Connection;
  readonly #end: () => void;

  constructor(connection: Connection, end: () => void) {
    this.#connection = connection;
    this.#end = end;
  }

  /** The address of the service. */
  get address(): string {
    return this.#connection.address;
  }

  /** Returns a session by its id; nothing is sent. */
  session(id: string): Session {
    return new Session(this.#connection, id);
  }

  /** Creates a session. Throws AlreadyExists, unless `existOk`. */
  async createSession(id: string, options: SessionOptions = {}): Promise<Session> {
    const session = this.session(id);
    await session.create(options);
    return session;
  }

  /** Yields all sessions, by id. */
  async *sessions(): AsyncGenerator<SessionInfo> {
    for await (const page of this.#connection.pages(this.#connection.sessions.listSessions, { pageSize: 1000 })) {
      yield* page.sessions.map(sessionInfo);
    }
  }

  /** Opens the loop of an agent with context compression. */
  async agent(session: string, options: AgentOptions = {}): Promise<Agent> {
    return Agent.open(this.#connection, this.session(session), options);
  }

  /** Closes the connection; what is under way ends with an error. */
  close(): void {
    this.#connection.close();
    this.#end();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
