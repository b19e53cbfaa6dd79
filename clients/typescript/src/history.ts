/** Looking back at a memory, and changing it by hand. */

import type { Connection } from "./connection.js";
import { Unavailable } from "./errors.js";
import * as pb from "./gen/palimpsest/v1/memories_pb.js";
import { amendment, type Amendment, type Edit, type MemoryInfo, memoryInfo, type Provenance } from "./memories.js";
import { type EnumName, given, numberOf, plain, whole, type With } from "./plain.js";
import { Resource } from "./resource.js";
import type { Session } from "./session.js";
import { chunk, consistency, type Freshness, type Json, type PositionRange } from "./values.js";

/** What caused a revision. */
export type RevisionKind = EnumName<typeof pb.RevisionKind>;
/** A committed change of a memory. */
export type Revision = With<pb.Revision, { kind: RevisionKind; positions: PositionRange | undefined }>;
/** What a model proposed and the schema refused. */
export type Rejection = With<pb.Rejection, { positions: PositionRange | undefined }>;

/** A place where two states differ; undefined: there is nothing. */
export interface Difference {
  op: "add" | "update" | "remove";
  path: string;
  old: Json | undefined;
  new: Json | undefined;
}

/** How a memory is changed. */
export interface ChangeOptions {
  /** What the newest revision must be. */
  expectedRevision?: number | undefined;
  comment?: string | undefined;
  requestId?: string | undefined;
}

/** The part of `Memory` that is about its history and changes by hand. */
export class MemoryHistory extends Resource {
  constructor(
    connection: Connection,
    readonly session: Session,
    readonly id: string,
  ) {
    super(connection, { session: session.id, memory: id });
  }

  protected get named(): { session: string; memory: string } {
    return this.place;
  }

  /** Yields the amendments that made the memory, oldest first: at or below a path, of steps over some positions. */
  amendments(options: Freshness & { path?: string; fromPosition?: number; toPosition?: number } = {}): AsyncGenerator<Amendment> {
    const { path = "", fromPosition = 0, toPosition = 0 } = options;
    const positions = { first: BigInt(fromPosition), last: BigInt(toPosition) };
    const request = { ...this.named, pathPrefix: path, positions, pageSize: 1000, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.memories.listAmendments, request, (page) => page.amendments.map(amendment));
  }

  /** Yields the model's proposals that the schema or a limit refused, oldest first. */
  rejections(options: Freshness = {}): AsyncGenerator<Rejection> {
    const request = { ...this.named, pageSize: 1000, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.memories.listRejections, request, (page) => page.rejections.map((one): Rejection => plain(pb.RejectionSchema, one)));
  }

  /** Yields every revision and what caused it, oldest first. */
  revisions(options: Freshness = {}): AsyncGenerator<Revision> {
    const request = { ...this.named, pageSize: 1000, ...given({ consistency: consistency(options) }) };
    return this.connection.all(this.connection.memories.listRevisions, request, (page) => page.revisions.map((one): Revision => plain(pb.RevisionSchema, one)));
  }

  /** Returns the value at a path, and the amendments that made it, newest first. */
  async provenance(path: string, options: Freshness & { revision?: number } = {}): Promise<Provenance> {
    const request = { ...this.named, path, ...given({ revision: whole("revision", options.revision), consistency: consistency(options) }) };
    let found: Provenance | undefined;
    for await (const page of this.connection.pages(this.connection.memories.getProvenance, request)) {
      found ??= {
        path: page.path,
        exists: page.valueJson !== undefined,
        value: page.valueJson === undefined ? null : (JSON.parse(page.valueJson) as Json),
        entries: [],
      };
      for (const entry of page.entries) {
        if (!entry.amendment) continue;
        found.entries.push({
          amendment: amendment(entry.amendment),
          inEffect: entry.inEffect,
          isOrigin: entry.origin,
          chunks: entry.chunks.map(chunk),
        });
      }
    }
    if (!found) throw new Unavailable("the service sent no page", { code: "UNAVAILABLE" });
    return found;
  }

  /**
   * Compares `revision`, the old side, with `otherRevision` of this memory or of `other`, another one of
   * the session. Undefined is the newest revision.
   */
  async diff(options: Freshness & { revision?: number; other?: string | MemoryHistory; otherRevision?: number } = {}): Promise<Difference[]> {
    const { revision, other = "", otherRevision } = options;
    const revisions = { revision: whole("revision", revision), otherRevision: whole("otherRevision", otherRevision) };
    const otherMemory = typeof other === "string" ? other : other.id;
    const request = { ...this.named, otherMemory, pageSize: 1000, ...given({ ...revisions, consistency: consistency(options) }) };
    const found: Difference[] = [];
    for await (const page of this.connection.pages(this.connection.memories.diffMemories, request)) {
      for (const { path, oldJson, newJson } of page.differences) {
        const op = oldJson === undefined ? "add" : newJson === undefined ? "remove" : "update";
        found.push({ op, path, old: parsed(oldJson), new: parsed(newJson) });
      }
    }
    return found;
  }

  /** Makes all edits, in order, as one revision; or none. */
  async edit(edits: readonly Edit[], options: ChangeOptions = {}): Promise<{ info: MemoryInfo; revision: number; amendments: Amendment[] }> {
    const { expectedRevision, comment = "", requestId = "" } = options;
    const request = {
      ...this.named,
      edits: edits.map((one) => ({
        op: one.op === "put" ? pb.AmendmentOp.UNSPECIFIED : (numberOf(pb.AmendmentOp, "op", one.op) as pb.AmendmentOp),
        path: one.path,
        valueJson: one.op === "remove" ? "" : JSON.stringify(one.value ?? null),
      })),
      comment,
      requestId,
      ...given({ expectedRevision: whole("expectedRevision", expectedRevision) }),
    };
    const done = await this.connection.call(this.connection.memories.editMemory, request, { retry: requestId !== "" });
    const info = changed(done.memory);
    return { info, revision: info.revision, amendments: done.amendments.map(amendment) };
  }

  /** Restores an earlier revision, as a new revision. Throws OutOfRange, Aborted (REVISION_CONFLICT). */
  async rollback(revision: number, options: ChangeOptions = {}): Promise<MemoryInfo> {
    const { expectedRevision, comment = "", requestId = "" } = options;
    const request = { ...this.named, revision: whole("revision", revision) as bigint, comment, requestId, ...given({ expectedRevision: whole("expectedRevision", expectedRevision) }) };
    return memoryInfo(await this.connection.call(this.connection.memories.rollbackMemory, request, { retry: requestId !== "" }));
  }

  /** Writes the amendments into a new base; the value stays. `folded`: whether there was something to fold. */
  async fold(options: { requestId?: string } = {}): Promise<{ info: MemoryInfo; folded: boolean }> {
    const request = { ...this.named, requestId: options.requestId ?? "" };
    const { memory, folded } = await this.connection.call(this.connection.memories.foldMemory, request);
    return { info: changed(memory), folded };
  }
}

function parsed(json: string | undefined): Json | undefined {
  return json === undefined ? undefined : (JSON.parse(json) as Json);
}

function changed(message: pb.Memory | undefined): MemoryInfo {
  if (!message) throw new Unavailable("the service sent no memory", { code: "UNAVAILABLE" });
  return memoryInfo(message);
}
