/** Answers: following them across lost connections until they have ended. */

import { Backoff, type Connection, isUnbegun, now, sleep } from "./connection.js";
import { fromStatus, PalimpsestError, ResourceExhausted, Unavailable } from "./errors.js";
import { type Answer as AnswerMessage, type AskEvent, Reader } from "./gen/palimpsest/v1/answer_service_pb.js";
import { OperationState } from "./gen/palimpsest/v1/common_pb.js";
import { jsonSchemaOf, type Schema } from "./schemas.js";
import { type ChunkFilter, consistency, filterMessage, type Freshness, isOpen, type Json } from "./values.js";

/** How a session answers; `undefined`: the service chooses. */
export type ReaderName = "prism" | "memwalker" | "pcc" | "dciso" | "whole" | "auto";

/** Options of a question. */
export interface AskOptions extends Freshness, Omit<ChunkFilter, "fromPosition" | "toPosition"> {
  memory?: string | undefined;
  reader?: ReaderName | undefined;
  /** A schema of the answer's `value`. */
  responseSchema?: Exclude<Schema, string> | undefined;
  /** The answer is one of them, or there is none. */
  options?: string[] | undefined;
  model?: string | undefined;
  /** Seconds (60). */
  timeout?: number | undefined;
}

/** Where a claim of an answer is from. */
export interface Citation {
  position: number;
  excerpt: string;
  path: string;
  thread: string;
  source: string;
}

/** An answer with its citations. */
export interface Answer {
  id: string;
  query: string;
  state: string;
  /** Empty when there is no answer; `cause` says why. */
  text: string;
  cause: string;
  citations: Citation[];
  /** Of a question with a schema; else null. */
  value: Json;
  model: string;
}

/** A piece of a text that is being written; one that `restarts` voids those before it. */
export interface TextPiece {
  text: string;
  restarts: boolean;
}

type Event = { piece: TextPiece } | { answerId: string } | { answer: Answer };

export function answerOf(message: AnswerMessage): Answer {
  return {
    id: message.id,
    query: message.query,
    state: OperationState[message.state]?.toLowerCase() ?? "unknown",
    text: message.text,
    cause: message.cause,
    citations: message.citations.map((one) => ({
      position: Number(one.position),
      excerpt: one.excerpt,
      path: one.path,
      thread: one.thread,
      source: one.source,
    })),
    value: message.valueJson ? (JSON.parse(message.valueJson) as Json) : null,
    model: message.model,
  };
}

/** The request of a question. */
export function question(session: string, query: string, options: AskOptions, streamText: boolean) {
  const { after, fullyApplied, timeout: _, memory, reader, responseSchema, options: choices, model, ...filter } = options;
  const fresh = consistency({ after, fullyApplied });
  return {
    session,
    query,
    memory: memory ?? "",
    reader: reader ? Reader[reader.toUpperCase() as Uppercase<ReaderName>] : Reader.UNSPECIFIED,
    responseSchema: responseSchema ? JSON.stringify(jsonSchemaOf(responseSchema)) : "",
    options: choices ?? [],
    model: model ?? "",
    streamText,
    ...(fresh && { consistency: fresh }),
    ...(isOpen(filter) ? {} : { filter: filterMessage(filter) }),
  };
}

/** How a question ended: its answer, or its error. */
export type Asked = Answer | PalimpsestError;

/** Questions of one call; more are asked in several, one after the other. */
export const MANY_QUESTIONS = 32;

/** Asks up to 32 questions; returns how each of them ended. Throws what ends them all. */
export async function askMany(connection: Connection, session: string, questions: ReturnType<typeof question>[], seconds: number): Promise<Asked[]> {
  const until = now() + seconds;
  const ended = new Map<number, Asked>();
  const ids = new Map<number, string>();
  let lost: PalimpsestError | undefined;
  try {
    for await (const { index, event } of connection.responses(connection.answers.askMany, { questions }, seconds)) {
      if (event.case === "reading") ids.set(index, event.value.answer);
      else if (event.case === "error") ended.set(index, fromStatus(event.value));
      else if (event.case === "answer") ended.set(index, answerOf(event.value));
    }
  } catch (thrown) {
    lost = connection.failure(thrown);
    // Refused as a whole, or it is unknown whether it was accepted.
    if (ended.size + ids.size === 0) throw lost;
  }
  return Promise.all(questions.map((_, number) => ended.get(number) ?? resumed(number)));

  /** Follows one answer by itself, where the call of all was lost. */
  async function resumed(number: number): Promise<Asked> {
    const id = ids.get(number);
    if (!id) return lost ?? new PalimpsestError("the service ended the call without an answer");
    try {
      return await lastOf(new Listening(connection, session, Math.max(until - now(), 0.001)).resume(id, 0, 0));
    } catch (error) {
      return error as PalimpsestError;
    }
  }
}

/** Follows an answer until it has ended, or the time is up; each event is yielded once. */
export class Listening {
  readonly #connection: Connection;
  readonly #session: string;
  readonly #until: number;
  readonly #signal: AbortSignal | undefined;
  readonly #backoff = new Backoff(0.1);
  #answerId = "";
  #event = 0;
  #piece = 0;

  constructor(connection: Connection, session: string, seconds: number, signal?: AbortSignal) {
    this.#connection = connection;
    this.#session = session;
    this.#until = now() + seconds;
    this.#signal = signal;
  }

  async *ask(request: ReturnType<typeof question>): AsyncGenerator<Event> {
    const { answers } = this.#connection;
    yield* this.#events(this.#connection.responses(answers.ask, request, this.#left(), this.#signal));
  }

  async *resume(answerId: string, afterEvent: number, afterText: number): AsyncGenerator<Event> {
    [this.#answerId, this.#event, this.#piece] = [answerId, afterEvent, afterText];
    yield* this.#events(this.#resumed());
  }

  #resumed(): AsyncGenerator<AskEvent> {
    const request = { session: this.#session, answer: this.#answerId, afterEvent: this.#event, afterText: this.#piece };
    return this.#connection.responses(this.#connection.answers.resumeAnswer, request, this.#left(), this.#signal);
  }

  async *#events(responses: AsyncGenerator<AskEvent>): AsyncGenerator<Event> {
    for (;;) {
      try {
        for await (const response of responses) {
          const event = this.#newEvent(response);
          if (!event) continue;
          this.#backoff.restart();
          yield event;
          if ("answer" in event) return;
        }
        throw new PalimpsestError("the service ended the call without an answer");
      } catch (thrown) {
        const error = this.#connection.failure(thrown);
        const pause = this.#backoff.pauseSeconds(error);
        if (this.#signal?.aborted || !this.#answerId || pause > this.#left() || !mayResume(error)) throw error;
        await sleep(pause, this.#signal);
        responses = this.#resumed();
      }
    }
  }

  #newEvent({ event }: AskEvent): Event | undefined {
    if (event.case === "reading" && !this.#answerId) {
      this.#answerId = event.value.answer;
      return { answerId: this.#answerId };
    }
    if (event.case === "trajectoryEvent") this.#event = Math.max(this.#event, event.value.ordinal);
    if (event.case === "text" && event.value.ordinal > this.#piece) {
      this.#piece = event.value.ordinal;
      return { piece: { text: event.value.text, restarts: event.value.restarts } };
    }
    return event.case === "answer" ? { answer: answerOf(event.value) } : undefined;
  }

  #left(): number {
    return Math.max(this.#until - now(), 0.001);
  }
}

function mayResume(error: PalimpsestError): boolean {
  if (error instanceof ResourceExhausted) return isUnbegun(error);
  return (error.code === "CANCELLED" && error.reason === "") || error instanceof Unavailable;
}

/** Returns the answer, which is the last event. */
export async function lastOf(events: AsyncIterable<Event>): Promise<Answer> {
  for await (const event of events) if ("answer" in event) return event.answer;
  throw new PalimpsestError("the service ended the call without an answer");
}

/** The text of an answer as it is written: iterate over it, then read `answer`. */
export class AnswerStream implements AsyncIterable<TextPiece> {
  readonly #events: AsyncIterator<Event>;
  readonly #leaving: AbortController;
  #kept: TextPiece[] = [];
  #answer: Answer | undefined;
  #answerId = "";

  constructor(events: AsyncIterable<Event>, leaving: AbortController) {
    this.#events = events[Symbol.asyncIterator]();
    this.#leaving = leaving;
  }

  /** The whole answer. Throws before the last piece. */
  get answer(): Answer {
    if (!this.#answer) throw new TypeError("the answer is not there yet: iterate to the end first");
    return this.#answer;
  }

  /** Waits until the service has named the answer, for `session.resumeAnswer` and `cancelAnswer`. */
  async id(): Promise<string> {
    while (!this.#answerId) {
      const event = await this.#next();
      if (!event) return this.answer.id;
      if ("piece" in event) this.#kept.push(event.piece);
    }
    return this.#answerId;
  }

  /** Returns the next piece; undefined after the last. */
  async next(): Promise<TextPiece | undefined> {
    const kept = this.#kept.shift();
    if (kept) return kept;
    for (let event = await this.#next(); event; event = await this.#next()) if ("piece" in event) return event.piece;
    return undefined;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TextPiece> {
    try {
      for (let piece = await this.next(); piece; piece = await this.next()) yield piece;
    } finally {
      if (!this.#answer) this.close();
    }
  }

  /** Leaves; the service may continue for a while. */
  close(): void {
    this.#leaving.abort();
  }

  async #next(): Promise<Event | undefined> {
    if (this.#answer) return undefined;
    const { done, value } = await this.#events.next();
    if (done) return undefined;
    if ("answerId" in value) this.#answerId = value.answerId;
    if ("answer" in value) this.#answer = value.answer;
    return value;
  }
}
