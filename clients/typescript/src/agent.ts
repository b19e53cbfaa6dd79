/** An agent's loop with periodic context compression (PCC): state memories. */

import type { Connection } from "./connection.js";
import type { WorkingContext } from "./contexts.js";
import { Aborted, DeadlineExceeded, invalid, InvalidArgument, PalimpsestError, reworded, Unavailable } from "./errors.js";
import type { Producer } from "./producer.js";
import type { Session } from "./session.js";
import type { StateSettings } from "./trees.js";
import type { Ack, ChunkLabels, Step } from "./values.js";

/** Settings of the loop, and of its state memory, which is created if it is missing. */
export interface AgentOptions extends StateSettings {
  /** The state memory ("state"). */
  memory?: string | undefined;
  /** The loop's name within the session ("agent"). */
  producerId?: string | undefined;
  /** Seconds that a context waits for a compression that is due (30). */
  waitSeconds?: number | undefined;
  /** Seconds after which a lost service ends the loop (60). */
  giveUpSeconds?: number | undefined;
}

const OPENING_TRIES = 5;
const NOT_MADE: ReadonlySet<string> = new Set(["NOT_APPLIED_IN_TIME", "MEMORY_STALLED", "BUDGET_EXHAUSTED"]);

/**
 * The context before each step, and a place for the step.
 *
 * A loop that starts again continues after its durable steps. Of two loops on one session the later
 * one continues, and the next step of the other throws Aborted (PRODUCER_FENCED).
 */
export class Agent {
  #producer: Producer | undefined;
  #failure: unknown;
  #epoch = 0;
  #head = 0;
  #last: Promise<unknown> = Promise.resolve();
  readonly #memory: string;

  private constructor(
    readonly connection: Connection,
    readonly session: Session,
    readonly options: AgentOptions,
  ) {
    this.#memory = options.memory ?? "state";
  }

  /** Opens the loop; creates the session and its state memory if they are missing. */
  static async open(connection: Connection, session: Session, options: AgentOptions): Promise<Agent> {
    const agent = new Agent(connection, session, options);
    await session.create({ existOk: true });
    await agent.#createMemory();
    agent.#producer = await agent.#fence();
    try {
      agent.#head = (await session.info()).head;
    } catch (error) {
      await agent.#producer.abandon();
      throw error;
    }
    return agent;
  }

  /** The number of the next step, from 1 on. */
  get step(): number {
    return this.#head + 1;
  }

  /** Returns what the model reads before the next step; waits for a compression that is due. */
  async context(): Promise<WorkingContext> {
    const wait = this.options.waitSeconds ?? 30;
    const found = (wait > 0 ? await this.#waited(wait) : undefined) ?? (await this.#read(false));
    this.#head = Math.max(this.#head, found.head);
    return found;
  }

  /** Appends a step; it is durable, and in the next context, when this returns. */
  async record(step: Step, labels: ChunkLabels = {}): Promise<Ack> {
    if (!step.observation && !step.thought && !step.action) throw invalid("a step needs an observation, a thought or an action");
    return this.#append((producer) => producer.append({ agentStep: step, ...labels }));
  }

  /** Appends a message, such as the user's, which counts as a step. */
  async note(role: string, text: string, labels: ChunkLabels = {}): Promise<Ack> {
    return this.#append((producer) => producer.append({ message: { role, text }, ...labels }));
  }

  /** Closes the loop once all recorded steps are durable. */
  async close(): Promise<void> {
    const producer = this.#producer;
    this.#producer = undefined;
    await (this.#failure === undefined ? producer?.close() : producer?.abandon());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #createMemory(): Promise<void> {
    const { memory: _, producerId: __, waitSeconds: ___, giveUpSeconds: ____, ...settings } = this.options;
    await this.session.createState(this.#memory, { ...settings, existOk: true });
  }

  async #waited(seconds: number): Promise<WorkingContext | undefined> {
    try {
      return await this.#read(true, seconds);
    } catch (error) {
      const isLate = error instanceof DeadlineExceeded || error instanceof Unavailable;
      if (isLate || (error instanceof PalimpsestError && NOT_MADE.has(error.reason))) return undefined;
      throw error;
    }
  }

  async #read(fullyApplied: boolean, timeout?: number): Promise<WorkingContext> {
    return this.session.state(this.#memory).context({ fullyApplied, timeout });
  }

  /** Appends one step after the other, also when callers do not wait. */
  #append(append: (producer: Producer) => Promise<number>): Promise<Ack> {
    const done = this.#last.then(() => this.#appended(append));
    this.#last = done.catch(() => undefined);
    return done;
  }

  async #appended(append: (producer: Producer) => Promise<number>): Promise<Ack> {
    try {
      const producer = await this.#usable();
      await append(producer);
      const ack = await producer.flush();
      if (!ack) throw new Unavailable("the step was not acked", { code: "UNAVAILABLE" });
      this.#head = Math.max(this.#head, ack.position);
      return ack;
    } catch (error) {
      this.#failure = error;
      if (!(error instanceof Aborted) || error.reason !== "PRODUCER_FENCED") throw error;
      throw reworded(error, `another loop has taken over session ${JSON.stringify(this.session.id)}; this one must end`);
    }
  }

  /** Returns the producer; after a refused step a new one of the same epoch. */
  async #usable(): Promise<Producer> {
    if (!this.#producer) throw new TypeError("this agent is closed");
    if (this.#failure instanceof InvalidArgument) {
      await this.#producer.abandon();
      this.#producer = await this.#open();
      this.#failure = undefined;
    }
    return this.#producer;
  }

  /** Returns a producer that fences off those of earlier loops. */
  async #fence(): Promise<Producer> {
    this.#epoch = Math.max(this.#epoch, Date.now() * 1000);
    for (let tries = OPENING_TRIES; ; tries--) {
      try {
        return await this.#open();
      } catch (error) {
        if (!(error instanceof Aborted) || error.reason !== "PRODUCER_FENCED" || tries === 1) throw error;
        // The clock of the earlier loop was ahead of ours.
        this.#epoch = Number(error.metadata["epoch"]) + 1;
      }
    }
  }

  #open(): Promise<Producer> {
    const { producerId = "agent", giveUpSeconds } = this.options;
    return this.session.producer(producerId, { epoch: this.#epoch, giveUpSeconds });
  }
}
