/** Memories of all kinds, to and from the proto's messages; creating them. */

import type { Connection } from "./connection.js";
import { AlreadyExists, type PalimpsestError, reworded } from "./errors.js";
import { OnFailure, ReplyFormat } from "./gen/palimpsest/v1/common_pb.js";
import * as pb from "./gen/palimpsest/v1/memories_pb.js";
import { duration, given, numberOf } from "./plain.js";
import { jsonSchemaOf, type Schema } from "./schemas.js";
import { type Chunk, type Json, type PositionRange, range } from "./values.js";

/** A memory and its progress. */
export interface MemoryInfo {
  session: string;
  id: string;
  kind: "prism" | "tree" | "state";
  status: "active" | "stalled" | "sealed" | "waiting" | "over_budget" | "unknown";
  /** Why it does not advance; empty: it does. */
  blocked: string;
  task: string;
  model: string;
  revision: number;
  /** All chunks up to here are in it. */
  appliedPosition: number;
  head: number;
}

/** A memory's value at one revision. */
export interface MemoryState<T> {
  info: MemoryInfo;
  value: Json;
  /** The value in the type of the memory's schema; undefined while it does not fit, as before the first step. */
  typed: T | undefined;
  revision: number;
  appliedPosition: number;
  /** For `after` of a later read, which then is at least as fresh. */
  readToken: string;
}

/** How a PRISM memory is made; what is not given is the service's default. */
export interface MemoryOptions extends CreateOptions {
  task?: string | undefined;
  question?: string | undefined;
  /** The form, length or language of answers. */
  finalTask?: string | undefined;
  model?: string | undefined;
  /** How it is written into prompts ("adaptive"). */
  encoding?: "adaptive" | "amendments" | "in_place" | undefined;
  allowedOps?: "add_and_update" | "add_only" | undefined;
  /** What happens to a value of another type than the schema's. */
  coercion?: "refuse" | "lossless" | undefined;
  replyFormat?: "text" | "structured" | undefined;
  /** What a step sees of a memory of more than `memoryTokens`: all, so it is consolidated; or the part that fits. */
  steps?: "whole" | "focused" | undefined;
  /** A step reads chunks up to this many tokens. */
  chunkTokens?: number | undefined;
  /** Amendments are folded into a new base when they pass this many tokens. */
  foldTokens?: number | undefined;
  memoryTokens?: number | undefined;
  /** How long a step with few chunks waits for more. */
  lingerSeconds?: number | undefined;
  /** Whether a step that failed for good is skipped; else the memory stalls. */
  skipFailures?: boolean | undefined;
}

/** How a memory of any kind is created. */
export interface CreateOptions {
  /** Uses an existing memory that has the given settings. */
  existOk?: boolean | undefined;
  requestId?: string | undefined;
}

/** A change by hand. `put` adds or updates. */
export interface Edit {
  op: "put" | "add" | "update" | "remove";
  path: string;
  value?: Json;
}

/** A change of a memory. */
export interface Amendment {
  revision: number;
  op: "add" | "update" | "remove" | "unknown";
  path: string;
  value: Json;
  positions: PositionRange | undefined;
}

/** A value, and the amendments that made it, newest first. */
export interface Provenance {
  path: string;
  exists: boolean;
  value: Json;
  entries: { amendment: Amendment; inEffect: boolean; isOrigin: boolean; chunks: Chunk[] }[];
}

export function memoryInfo(message: pb.Memory): MemoryInfo {
  const spec = message.spec.value;
  const status = pb.Memory_Status[message.status]?.toLowerCase() ?? "unknown";
  return {
    session: message.session,
    id: message.id,
    kind: message.spec.case ?? "prism",
    status: status as MemoryInfo["status"],
    blocked: message.blocked?.cause ?? "",
    task: spec && "task" in spec ? spec.task : "",
    model: spec?.model ?? "",
    revision: Number(message.revision),
    appliedPosition: Number(message.appliedPosition),
    head: Number(message.head),
  };
}

export function amendment(message: pb.Amendment): Amendment {
  const op = pb.AmendmentOp[message.op]?.toLowerCase() ?? "unknown";
  return {
    revision: Number(message.revision),
    op: op as Amendment["op"],
    path: message.path,
    value: message.valueJson ? (JSON.parse(message.valueJson) as Json) : null,
    positions: range(message.positions),
  };
}

/** Returns the spec of a PRISM memory, with what is given. */
export function prismSpec(id: string, schema: Schema | undefined, options: MemoryOptions): Record<string, unknown> {
  const { existOk: _, requestId: __, encoding, allowedOps, coercion, replyFormat, steps, lingerSeconds, skipFailures, ...rest } = options;
  return given({
    ...rest,
    schema: schema === undefined ? undefined : schemaOf(id, schema),
    encoding: numberOf(pb.PrismSpec_Encoding, "encoding", encoding),
    allowedOps: numberOf(pb.PrismSpec_AllowedOps, "allowedOps", allowedOps),
    coercion: numberOf(pb.PrismSpec_Coercion, "coercion", coercion),
    steps: numberOf(pb.PrismSpec_Steps, "steps", steps),
    linger: duration(lingerSeconds),
    ...sharedSpec({ replyFormat, skipFailures }),
  });
}

/** Returns the fields of a spec that all kinds have. */
export function sharedSpec({ replyFormat, skipFailures }: { replyFormat?: string | undefined; skipFailures?: boolean | undefined }) {
  const onFailure = skipFailures === undefined ? undefined : skipFailures ? OnFailure.SKIP : OnFailure.STALL;
  return { replyFormat: numberOf(ReplyFormat, "replyFormat", replyFormat), onFailure };
}

/** Returns a schema as the proto has it. */
export function schemaOf(id: string, schema: Schema): { case: "schemaSource" | "jsonSchema"; value: string } {
  if (typeof schema === "string") return { case: "schemaSource", value: schema };
  return { case: "jsonSchema", value: JSON.stringify(titled(jsonSchemaOf(schema), id)) };
}

/** Creates a memory of a kind. Throws AlreadyExists that names the settings that differ. */
export async function createMemory(
  connection: Connection,
  place: { session: string; id: string },
  kind: MemoryInfo["kind"],
  settings: Record<string, unknown>,
  { existOk = false, requestId = "" }: CreateOptions = {},
): Promise<void> {
  const memory = { ...place, spec: { case: kind, value: settings } as { case: "tree"; value: object } };
  try {
    await connection.call(connection.memories.createMemory, { memory, requestId }, { retry: existOk || requestId !== "" });
  } catch (error) {
    if (!existOk || !(error instanceof AlreadyExists) || error.reason !== "MEMORY_EXISTS") throw error;
    const existing = (await listMemories(connection, place.session)).find((one) => one.id === place.id);
    if (!existing) throw error;
    const others = existing.spec.case === kind ? await differing(connection, settings, existing.spec.value) : ["kind"];
    if (others.length > 0) throw differs(error, place.id, others);
  }
}

/** Returns the names of the given settings that an existing memory has not. */
async function differing(connection: Connection, settings: Record<string, unknown>, existing: object): Promise<string[]> {
  const { schema, ...others } = settings;
  const there = existing as Record<string, unknown>;
  const found = Object.keys(others).filter((name) => written(others[name]) !== written(there[name]));
  if (schema === undefined) return found;
  const checked = await connection.call(connection.memories.checkSchema, { schema: schema as { case: "schemaSource"; value: string } });
  const kept = there["schema"] as { case?: string; value?: string };
  return kept.value === checked.schemaSource ? found : [...found, "schema"];
}

/** Returns a setting as a text to compare. */
function written(value: unknown): string {
  return JSON.stringify(value ?? null, (name, one) => (name === "$typeName" ? undefined : typeof one === "bigint" ? Number(one) : one));
}

function differs(error: PalimpsestError, id: string, names: string[]): PalimpsestError {
  return reworded(error, `memory ${JSON.stringify(id)} is there already with another ${names.join(", ")}: use its settings, or choose another id`);
}

/** Class source needs a name, which some libraries do not give. */
function titled(schema: { [key: string]: Json }, id: string): { [key: string]: Json } {
  const words = id.split(/[^A-Za-z0-9]+/).filter(Boolean);
  const name = words.map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join("");
  return "title" in schema ? schema : { title: /^[A-Z]/.test(name) ? name : "Memory", ...schema };
}

/** Returns the memories of a session, of one status if given. */
export async function listMemories(connection: Connection, session: string, status = pb.Memory_Status.UNSPECIFIED): Promise<pb.Memory[]> {
  const found: pb.Memory[] = [];
  for await (const page of connection.pages(connection.memories.listMemories, { session, status, pageSize: 1000 })) found.push(...page.memories);
  return found;
}

