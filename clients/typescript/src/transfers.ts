/** Exports and imports of sessions, a block at a time. */

import { Backoff, type Connection, mayRepeat, sleep } from "./connection.js";
import { Aborted, invalid, type PalimpsestError } from "./errors.js";
import type { ImportSessionResponse } from "./gen/palimpsest/v1/session_service_pb.js";
import { type ImportSessionRequest, ImportSessionRequestSchema } from "./gen/palimpsest/v1/session_service_pb.js";
import { create } from "@bufbuild/protobuf";

/** How far an export or an import is: bytes and lines from the beginning of the file, the header included. */
export interface TransferProgress {
  bytes: number;
  lines: number;
}

/** Where an interrupted export continues. */
export interface ExportPoint extends TransferProgress {
  exportId: string;
  /** The line of the last check. */
  checkLine: Uint8Array;
}

/** A block of an export: whole lines, after which it can be continued. */
export interface ExportBlock {
  data: Uint8Array;
  point: ExportPoint;
}

/** Returns the bytes of a file from its beginning, each time that it is called. */
export type Source = () => AsyncIterable<Uint8Array>;

/** Files, where the program has them. */
export interface Files {
  /** Writes an export, and continues one that is not complete. */
  write(path: string, session: string, blocks: (after: ExportPoint | undefined) => AsyncIterable<ExportBlock>): Promise<void>;
  read(path: string): Source;
}

const MAX_TRIES = 8;
const MAX_HEADER_BYTES = 16 * 1024;
/** Bytes of lines in one message. */
const DATA_BYTES = 512 * 1024;
const NEWLINE = 10;
const [CHECK, END] = ['{"record":"check"', '{"record":"end"'].map((text) => new TextEncoder().encode(text)) as [Uint8Array, Uint8Array];
const decoder = new TextDecoder();

function begins(line: Uint8Array, start: Uint8Array): boolean {
  return start.every((byte, at) => line[at] === byte);
}

/** Returns the header of an export. Throws InvalidArgument. */
export function headerOf(line: Uint8Array): { session: string; exportId: string } {
  try {
    const header = JSON.parse(decoder.decode(line)) as Record<string, unknown>;
    const { record, session, export_id: exportId } = header;
    if (record === "header" && typeof session === "string") return { session, exportId: String(exportId) };
  } catch {
    // It is said below.
  }
  throw invalid("the file is no export of a session: its first line is no header");
}

/** Cuts what an export sends into blocks that end with a check. */
export class LineReader {
  #parts: Uint8Array[] = [];
  /** Of the line that has begun. */
  #line: Uint8Array[] = [];
  #lines: number;
  #exportId: string;
  isEnded = false;

  constructor(public point: ExportPoint | undefined) {
    this.#lines = point?.lines ?? 0;
    this.#exportId = point?.exportId ?? "";
  }

  /** Yields the complete blocks. */
  *feed(data: Uint8Array): Generator<ExportBlock> {
    for (let start = 0; start < data.length; ) {
      const end = data.indexOf(NEWLINE, start);
      const part = data.subarray(start, end < 0 ? data.length : end + 1);
      this.#line.push(part);
      start += part.length;
      if (end < 0) return;
      const block = this.#completed(joined(this.#line));
      this.#line = [];
      if (block) yield block;
    }
  }

  /** Forgets what came after the last complete block. */
  restart(): void {
    [this.#parts, this.#line] = [[], []];
    this.#lines = this.point?.lines ?? 0;
    this.#exportId = this.point?.exportId ?? "";
  }

  #completed(line: Uint8Array): ExportBlock | undefined {
    this.#lines += 1;
    this.#exportId ||= headerOf(line).exportId;
    this.#parts.push(line);
    this.isEnded = begins(line, END);
    if (!this.isEnded && !begins(line, CHECK)) return undefined;
    const data = joined(this.#parts);
    this.#parts = [];
    this.point = { exportId: this.#exportId, checkLine: line, bytes: (this.point?.bytes ?? 0) + data.length, lines: this.#lines };
    return { data, point: this.point };
  }
}

function joined(parts: Uint8Array[]): Uint8Array {
  if (parts.length === 1) return parts[0] as Uint8Array;
  const whole = new Uint8Array(parts.reduce((sum, one) => sum + one.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Yields the blocks of an export, and continues it when the connection is lost. */
export async function* exportBlocks(connection: Connection, session: string, after: ExportPoint | undefined): AsyncGenerator<ExportBlock> {
  const reader = new LineReader(after);
  const backoff = new Backoff(0.05);
  for (let tries = 0; ; ) {
    const { point } = reader;
    const request = { session, ...(point && { resume: { exportId: point.exportId, checkLine: point.checkLine } }) };
    const ending = new AbortController();
    try {
      const signal = AbortSignal.any([ending.signal, connection.closing]);
      for await (const response of connection.sessions.exportSession(request, { signal })) {
        connection.reached = true;
        for (const block of reader.feed(response.data)) {
          tries = 0;
          backoff.restart();
          yield block;
        }
      }
      return;
    } catch (thrown) {
      const error = connection.failure(thrown);
      tries += 1;
      if (!mayRepeat(error) || tries >= MAX_TRIES || connection.closing.aborted) throw error;
      reader.restart();
      await sleep(backoff.pauseSeconds(error), connection.closing);
    } finally {
      ending.abort();
    }
  }
}

/** Returns where the export in a file continues, and whether it is complete. Throws InvalidArgument. */
export async function exportPoint(source: AsyncIterable<Uint8Array>, session: string): Promise<{ point: ExportPoint | undefined; isComplete: boolean }> {
  const reader = new LineReader(undefined);
  let header: Uint8Array | undefined = new Uint8Array();
  for await (const data of source) {
    if (header) {
      header = joined([header, data.subarray(0, MAX_HEADER_BYTES - header.length)]);
      const end = header.indexOf(NEWLINE);
      if (end >= 0 || header.length === MAX_HEADER_BYTES || header[0] !== 0x7b) {
        if (headerOf(header.subarray(0, Math.max(end, 0))).session !== session) throw invalid("the file has an export of another session: name another file");
        header = undefined;
      }
    }
    for (const _ of reader.feed(data));
  }
  return { point: reader.point, isComplete: reader.isEnded };
}

/** Returns the first line of an export. Throws InvalidArgument. */
export async function readHeader(source: AsyncIterable<Uint8Array>): Promise<Uint8Array> {
  let found: Uint8Array = new Uint8Array();
  for await (const data of source) {
    found = joined([found, data.subarray(0, MAX_HEADER_BYTES - found.length)]);
    const end = found.indexOf(NEWLINE);
    if (end >= 0) {
      const line = found.slice(0, end + 1);
      headerOf(line);
      return line;
    }
    if (found.length === MAX_HEADER_BYTES) break;
  }
  headerOf(new Uint8Array());
  return found;
}

/** Yields the bytes of a file after a line, in parts. Throws InvalidArgument when it has fewer lines. */
async function* dataAfter(source: AsyncIterable<Uint8Array>, line: number): AsyncGenerator<Uint8Array> {
  let left = line;
  for await (const data of source) {
    let start = 0;
    for (; left > 0 && start < data.length; left--) {
      const end = data.indexOf(NEWLINE, start);
      if (end < 0) break;
      start = end + 1;
    }
    if (left > 0) continue;
    for (; start < data.length; start += DATA_BYTES) yield data.subarray(start, start + DATA_BYTES);
  }
  if (left > 0) throw invalid(`the import was continued with a shorter file: it ends before line ${line - left + 1}`);
}

/** Sends the file of an export, in one stream or several. */
export class Upload {
  readonly #connection: Connection;
  readonly #source: Source;
  readonly #session: string;
  readonly #restoreDeleted: boolean;
  readonly #onProgress: ((progress: { lines: number }) => void) | undefined;
  /** The last line that is durable; undefined: the stream is not opened. */
  #through: number | undefined;
  #over = false;
  /** What the file is refused for before the service sees it. */
  #failure: PalimpsestError | undefined;
  #wake: () => void = () => undefined;

  constructor(connection: Connection, source: Source, session: string, options: { restoreDeleted?: boolean | undefined; onProgress?: ((progress: { lines: number }) => void) | undefined }) {
    this.#connection = connection;
    this.#source = source;
    this.#session = session;
    this.#restoreDeleted = options.restoreDeleted ?? false;
    this.#onProgress = options.onProgress;
  }

  /** Imports the file. */
  async run(): Promise<void> {
    const backoff = new Backoff(0.05);
    for (let tries = 0, reached = 0; ; ) {
      try {
        return await this.#send();
      } catch (thrown) {
        if (this.#failure) throw this.#failure;
        const error = this.#connection.failure(thrown);
        tries = (this.#through ?? 0) > reached ? 0 : tries + 1;
        reached = this.#through ?? 0;
        // The stream before may still be held by the service.
        const isOurs = error instanceof Aborted && error.reason === "IMPORT_CONFLICT" && reached > 0;
        if ((!mayRepeat(error) && !isOurs) || tries >= MAX_TRIES || this.#connection.closing.aborted) throw error;
        await sleep(backoff.pauseSeconds(error), this.#connection.closing);
      }
    }
  }

  async #send(): Promise<void> {
    [this.#through, this.#over] = [undefined, false];
    const ending = new AbortController();
    const signal = AbortSignal.any([ending.signal, this.#connection.closing]);
    try {
      for await (const response of this.#connection.sessions.importSession(this.#frames(), { signal })) this.#receive(response);
    } finally {
      this.#over = true;
      this.#wake();
      ending.abort();
    }
  }

  #receive({ frame }: ImportSessionResponse): void {
    this.#connection.reached = true;
    if (frame.case !== "opened" && frame.case !== "ack") return;
    this.#through = Number(frame.value.throughLine);
    this.#wake();
    this.#onProgress?.({ lines: this.#through });
  }

  async *#frames(): AsyncGenerator<ImportSessionRequest> {
    const header = await this.#checked(readHeader(this.#source()));
    const opening = { session: this.#session, header, restoreDeleted: this.#restoreDeleted };
    yield create(ImportSessionRequestSchema, { frame: { case: "open", value: opening } });
    while (this.#through === undefined && !this.#over) await new Promise<void>((resolve) => (this.#wake = resolve));
    if (this.#through === undefined) return;
    const parts = dataAfter(this.#source(), this.#through)[Symbol.asyncIterator]();
    for (;;) {
      const { done, value } = await this.#checked(parts.next());
      if (done || this.#over) return void (await parts.return(undefined));
      yield create(ImportSessionRequestSchema, { frame: { case: "data", value } });
    }
  }

  /** Keeps what the file is refused for: the call ends with what the library makes of it. */
  async #checked<T>(work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      this.#failure = error as PalimpsestError;
      throw error;
    }
  }
}
