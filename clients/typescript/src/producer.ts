/** Producers: appending to a session's log, with batching, resume and retry. */

import { create, toBinary } from "@bufbuild/protobuf";
import { Backoff, type Connection, mayRepeat, now, sleep } from "./connection.js";
import { type PalimpsestError, ProducerClosed, reworded, Unavailable } from "./errors.js";
import { type Chunk as ChunkMessage, ChunkSchema } from "./gen/palimpsest/v1/chunks_pb.js";
import {
  type AppendChunksRequest,
  type AppendChunksRequest_Open,
  AppendChunksRequest_OpenSchema,
  AppendChunksRequestSchema,
  type AppendChunksResponse_Ack,
  type AppendChunksResponse_Opened,
} from "./gen/palimpsest/v1/session_service_pb.js";
import { traceOf, traceparent } from "./tracing.js";
import { type Ack, chunkMessage, type NewChunk } from "./values.js";

/** Chunks and bytes of a batch. */
export const BATCH_CHUNKS = 256;
export const BATCH_BYTES = 1024 * 1024;

/** How a producer is opened. */
export interface ProducerOptions {
  /** A higher epoch fences older streams off. */
  epoch?: number | undefined;
  /** The position that the log must end at. */
  expectedHead?: number | undefined;
  /** Seconds after which a lost service ends the producer (60). */
  giveUpSeconds?: number | undefined;
}

interface Sent {
  chunk: ChunkMessage;
  bytes: number;
  /** The span in which it was appended, as one header; empty without one. */
  traceparent: string;
}

/** Returns how much credit a chunk takes. */
export function sizeBytes(chunk: ChunkMessage): number {
  return toBinary(ChunkSchema, chunk).length;
}

/**
 * Appends chunks in order, each exactly once, over one long-lived stream.
 *
 * Chunks are kept until they are acked, and sent again when the connection is lost. A producer that
 * is opened again under the same id, in any process, continues after the durable chunks.
 */
export class Producer {
  readonly #connection: Connection;
  readonly #opening: AppendChunksRequest_Open;
  readonly #giveUpSeconds: number;
  readonly #waiting: Sent[] = [];
  #underWay: Sent[] = [];
  #bytes = 0;
  #credits = { chunks: 1, bytes: 1 };
  #nextSequence = 1;
  #acked = 0;
  #lastAck: Ack | undefined;
  #opened = false;
  #failure: PalimpsestError | undefined;
  #reported = false;
  readonly #closing = new AbortController();
  #ended = false;
  #wakes: (() => void)[] = [];
  #running: Promise<void> = Promise.resolve();

  private constructor(connection: Connection, session: string, producerId: string, options: ProducerOptions) {
    this.#connection = connection;
    this.#giveUpSeconds = options.giveUpSeconds ?? 60;
    this.#opening = create(AppendChunksRequest_OpenSchema, {
      session,
      producerId,
      epoch: BigInt(options.epoch ?? 0),
      ...(options.expectedHead === undefined ? {} : { expectedHead: BigInt(options.expectedHead) }),
    });
  }

  /** Opens a producer. Throws what the service refuses it with. */
  static async open(connection: Connection, session: string, producerId: string, options: ProducerOptions): Promise<Producer> {
    if (!connection.hasProducers) {
      throw new TypeError("producers need streams in both directions, which browsers have not: use session.append");
    }
    const producer = new Producer(connection, session, producerId, options);
    producer.#running = producer.#run();
    try {
      await producer.#until(() => producer.#opened);
    } catch (error) {
      await producer.#stop();
      throw error;
    }
    return producer;
  }

  /** The highest sequence that is durable; 0 when there is none. */
  get lastAckedSequence(): number {
    return this.#acked;
  }

  /** Appends a chunk; returns its sequence. It is durable when `flush` returns. Waits only for credit. */
  async append(given: NewChunk | string): Promise<number> {
    if (this.#closing.signal.aborted) throw new ProducerClosed("the producer is closed");
    const chunk = chunkMessage(typeof given === "string" ? { text: given } : given, `append ${this.#nextSequence}`);
    const bytes = sizeBytes(chunk);
    await this.#until(() => this.#hasCredit(bytes));
    const sequence = this.#nextSequence++;
    chunk.producerSequence = BigInt(sequence);
    this.#waiting.push({ chunk, bytes, traceparent: traceparent() });
    this.#bytes += bytes;
    this.#wake();
    return sequence;
  }

  /** Waits until all appended chunks are durable; returns the newest ack of this run. */
  async flush(): Promise<Ack | undefined> {
    const wanted = this.#nextSequence - 1;
    await this.#until(() => this.#acked >= wanted);
    return this.#lastAck;
  }

  /** Waits until everything is durable, unless an error was thrown before; then ends the stream. */
  async close(): Promise<void> {
    try {
      if (!this.#reported) await this.flush();
    } finally {
      await this.#stop();
    }
  }

  /** Ends the stream without waiting for what is not durable. */
  async abandon(): Promise<void> {
    await this.#stop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #hasCredit(bytes: number): boolean {
    const count = this.#waiting.length + this.#underWay.length;
    if (count === 0) return true;
    return count < this.#credits.chunks && this.#bytes + bytes <= this.#credits.bytes;
  }

  #wake(): void {
    const wakes = this.#wakes;
    this.#wakes = [];
    for (const wake of wakes) wake();
  }

  #changed(): Promise<void> {
    return new Promise((resolve) => this.#wakes.push(resolve));
  }

  async #until(reached: () => boolean): Promise<void> {
    for (;;) {
      if (this.#failure !== undefined) {
        if (this.#reported) throw new ProducerClosed(`the producer has ended: ${this.#failure.message}`);
        this.#reported = true;
        throw this.#failure;
      }
      if (reached()) return;
      if (this.#ended) throw new ProducerClosed("the producer is closed");
      await this.#changed();
    }
  }

  async #stop(): Promise<void> {
    this.#closing.abort();
    this.#wake();
    await this.#running;
  }

  async #run(): Promise<void> {
    try {
      await this.#keepOpen();
    } catch (error) {
      this.#failure = error as PalimpsestError;
    } finally {
      this.#ended = true;
      this.#wake();
    }
  }

  async #keepOpen(): Promise<void> {
    const backoff = new Backoff(0.05);
    let progress = this.#acked;
    let since = now();
    while (!this.#closing.signal.aborted) {
      const stream = { opened: false, over: false };
      const error = await this.#stream(stream);
      // A stream that ended while there was nothing to send did all that was asked of it.
      const isIdle = stream.opened && this.#waiting.length + this.#underWay.length === 0;
      if (isIdle || this.#acked > progress) {
        progress = this.#acked;
        since = now();
        backoff.restart();
      }
      if (now() - since > this.#connection.trySeconds(this.#giveUpSeconds)) throw error;
      await sleep(backoff.pauseSeconds(error), this.#closing.signal);
    }
  }

  /** Returns what a stream ended with, after which another can be opened; throws where none can. */
  async #stream(stream: { opened: boolean; over: boolean }): Promise<PalimpsestError> {
    const ending = new AbortController();
    const signal = AbortSignal.any([ending.signal, this.#closing.signal, this.#connection.closing]);
    try {
      for await (const { frame } of this.#connection.sessions.appendChunks(this.#requests(stream), { signal })) {
        this.#connection.reached = true;
        if (frame.case === "opened") {
          this.#begin(frame.value);
          stream.opened = true;
        } else if (frame.case === "ack") this.#takeAck(frame.value);
        this.#wake();
      }
    } catch (thrown) {
      if (this.#connection.closing.aborted) throw new ProducerClosed("the client of this producer is closed");
      const error = this.#connection.failure(thrown);
      if (!this.#closing.signal.aborted && !mayRepeat(error)) throw this.#refusal(error);
      return error;
    } finally {
      stream.over = true;
      ending.abort();
      this.#wake();
    }
    return new Unavailable("the service ended the stream without a reason", { code: "UNAVAILABLE" });
  }

  async *#requests(stream: { opened: boolean; over: boolean }): AsyncGenerator<AppendChunksRequest> {
    yield create(AppendChunksRequestSchema, { frame: { case: "open", value: this.#opening } });
    for (;;) {
      while (!stream.over && !(stream.opened && this.#waiting.length > 0)) await this.#changed();
      if (stream.over) return;
      yield create(AppendChunksRequestSchema, { frame: { case: "batch", value: this.#nextBatch() } });
    }
  }

  #nextBatch(): { chunks: ChunkMessage[]; traceparent: string } {
    const most = Math.min(BATCH_CHUNKS, Math.max(this.#credits.chunks, 1));
    let count = 0;
    for (let bytes = 0; count < Math.min(most, this.#waiting.length); count++) {
      bytes += this.#waiting[count]?.bytes ?? 0;
      if (count > 0 && bytes > BATCH_BYTES) break;
    }
    const batch = this.#waiting.splice(0, count);
    this.#underWay.push(...batch);
    // The first that is sampled, else the first: as many traces as a batch has, it names one.
    const parents = batch.map((one) => one.traceparent).filter(Boolean);
    return { chunks: batch.map((one) => one.chunk), traceparent: parents.find(traceOf) ?? parents[0] ?? "" };
  }

  #begin(opened: AppendChunksResponse_Opened): void {
    const { credits } = opened;
    if (credits) this.#credits = { chunks: credits.chunks, bytes: Number(credits.bytes) };
    // Chunks that may be durable are sent again all the same: that writes nothing, and repeats the ack.
    this.#waiting.unshift(...this.#underWay);
    this.#underWay = [];
    if (!this.#opened) {
      this.#acked = Number(opened.lastProducerSequence);
      this.#nextSequence = this.#acked + 1;
      this.#opened = true;
    }
    // The head was checked; what is appended here moves it on.
    delete this.#opening.expectedHead;
  }

  #takeAck(ack: AppendChunksResponse_Ack): void {
    this.#acked = Number(ack.throughProducerSequence);
    this.#lastAck = { producerSequence: this.#acked, position: Number(ack.throughPosition), readToken: ack.readToken };
    while (this.#underWay[0] && this.#underWay[0].chunk.producerSequence <= ack.throughProducerSequence) {
      this.#bytes -= this.#underWay.shift()?.bytes ?? 0;
    }
  }

  #refusal(error: PalimpsestError): PalimpsestError {
    const number = error.metadata["producer_sequence"];
    if (number === undefined) return error;
    return reworded(error, `append ${number} was refused: ${error.message}. It has ended this producer; what was appended up to ${this.#acked} is durable`);
  }
}
