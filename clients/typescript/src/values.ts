/** The values that calls take and return, to and from the proto's messages. */

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate, timestampFromDate, type Timestamp } from "@bufbuild/protobuf/wkt";
import { invalid } from "./errors.js";
import { type Chunk as ChunkMessage, ChunkFilterSchema, ChunkSchema, type Redaction as RedactionMessage, RedactionSchema, SourceTrust } from "./gen/palimpsest/v1/chunks_pb.js";
import type { PositionRange as RangeMessage, ReadPoint as ReadPointMessage, Retention as RetentionMessage } from "./gen/palimpsest/v1/common_pb.js";
import { plain, type Plain } from "./plain.js";

/** Any value that JSON has. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Positions of a log, both included. */
export interface PositionRange {
  first: number;
  last: number;
}

/** What a read returned: no read is silently stale. */
export interface ReadPoint {
  /** The revision of the memory; 0 where the log was read. */
  revision: number;
  /** All chunks up to this position were applied. */
  appliedPosition: number;
  /** For `after` of a later read, which then is at least as fresh. */
  readToken: string;
}

/**
 * How many days data is kept: the session after its last use or its creation, the content of chunks that
 * all memories have read, texts of model calls, answers, their trajectories, revisions. Undefined: as the
 * tenant's policy says. 0: for ever.
 */
export type Retention = { [Name in Exclude<keyof RetentionMessage, "$typeName" | "$unknown">]?: number | undefined };

/** What a chunk of any kind may have besides its content. */
export interface ChunkLabels {
  /** The conversation within the session that it belongs to. */
  thread?: string | undefined;
  /** The person, device, document or system that it comes from. */
  source?: string | undefined;
  /** When it happened. */
  occurredAt?: Date | string | undefined;
  /** Kept and returned; never shown to a model. */
  metadata?: Record<string, string> | undefined;
}

/** A turn of a conversation. */
export interface Turn {
  role: string;
  text: string;
}

/** A step of an agent; any part may be missing, not all. */
export interface Step {
  observation?: string;
  thought?: string;
  action?: string;
  /** Whether models read the observation before thought and action. */
  observedFirst?: boolean;
}

/** A chunk to append: a text, a message, or a step of an agent. */
export type NewChunk = ChunkLabels & ({ text: string } | { message: Turn } | { agentStep: Step });

/** A removal of the content of chunks. */
export type Redaction = Plain<RedactionMessage>;

/** A chunk of a log. */
export interface Chunk extends ChunkLabels {
  position: number;
  kind: "text" | "message" | "agent_step";
  /** Of a text and of a message; empty for a step. */
  text: string;
  /** Of a message; else empty. */
  role: string;
  /** Of a step; else undefined. */
  agentStep: Required<Step> | undefined;
  thread: string;
  source: string;
  occurredAt: Date | undefined;
  metadata: Record<string, string>;
  producerId: string;
  producerSequence: number;
  createdAt: Date | undefined;
  /** Whether its content was removed. */
  isRedacted: boolean;
  /** Why, and by whom; undefined: it has its content. */
  redaction: Redaction | undefined;
  /** How much its source is trusted now. */
  trust: "trusted" | "unverified" | "blocked" | "unknown";
}

/** Which chunks are wanted: those that match all that is given. */
export interface ChunkFilter {
  fromPosition?: number | undefined;
  toPosition?: number | undefined;
  threads?: string[] | undefined;
  excludedThreads?: string[] | undefined;
  sources?: string[] | undefined;
  occurredSince?: Date | string | undefined;
  occurredUntil?: Date | string | undefined;
  metadata?: Record<string, string> | undefined;
}

/** How fresh a read must be. */
export interface Freshness {
  /** A read token of a write: the read waits until that is applied. */
  after?: string | undefined;
  /** Waits until all that is in the log now is applied. */
  fullyApplied?: boolean | undefined;
}

/** Everything up to here is durable. */
export interface Ack {
  producerSequence: number;
  position: number;
  /** For `after` of a read that must see these chunks applied. */
  readToken: string;
}

const MAX_ROLE_CHARACTERS = 64;

export function timestamp(name: string, value: Date | string | undefined): Timestamp | undefined {
  if (value === undefined) return undefined;
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) throw invalid(`${name} is no time: ${String(value)}`);
  return timestampFromDate(date);
}

export function range(message: RangeMessage | undefined): PositionRange | undefined {
  return message && { first: Number(message.first), last: Number(message.last) };
}

export function readPoint(message: ReadPointMessage | undefined): ReadPoint {
  return { revision: Number(message?.revision ?? 0), appliedPosition: Number(message?.appliedPosition ?? 0), readToken: message?.readToken ?? "" };
}

export function retention(message: RetentionMessage | undefined): Retention {
  const { idleSessionDays, sessionDays, chunkDays, callDays, answerDays, trajectoryDays, historyDays } = message ?? {};
  return { idleSessionDays, sessionDays, chunkDays, callDays, answerDays, trajectoryDays, historyDays };
}

/** Returns the message of a new chunk. Throws InvalidArgument for what no service accepts. */
export function chunkMessage(given: NewChunk, which: string): ChunkMessage {
  const fields: MessageInitShape<typeof ChunkSchema> = {
    thread: given.thread ?? "",
    source: given.source ?? "",
    metadata: given.metadata ?? {},
  };
  const occurred = timestamp("occurredAt", given.occurredAt);
  if (occurred) fields.occurredAt = occurred;
  let texts: (string | undefined)[];
  if ("message" in given) {
    texts = [given.message.text];
    if (given.message.role.length < 1 || given.message.role.length > MAX_ROLE_CHARACTERS) {
      throw wrong(which, `its role must have 1 to ${MAX_ROLE_CHARACTERS} characters`);
    }
    fields.content = { case: "message", value: given.message };
  } else if ("agentStep" in given) {
    const step = given.agentStep;
    texts = [step.observation, step.thought, step.action];
    fields.content = { case: "agentStep", value: step };
  } else {
    texts = [given.text];
    fields.content = { case: "text", value: given.text };
  }
  if (!texts.some((text) => text)) throw wrong(which, "its text is empty");
  if ([...texts, ...Object.entries(given.metadata ?? {}).flat()].some((text) => text?.includes("\0"))) {
    throw wrong(which, "it holds a NUL character");
  }
  return create(ChunkSchema, fields);
}

function wrong(which: string, what: string): Error {
  return invalid(`${which}: ${what}`, { [which]: what });
}

export function chunk(message: ChunkMessage): Chunk {
  const { content } = message;
  const step = content.case === "agentStep" ? content.value : undefined;
  return {
    position: Number(message.position),
    kind: content.case === "message" ? "message" : step ? "agent_step" : "text",
    text: content.case === "text" ? content.value : content.case === "message" ? content.value.text : "",
    role: content.case === "message" ? content.value.role : "",
    agentStep: step && {
      observation: step.observation,
      thought: step.thought,
      action: step.action,
      observedFirst: step.observedFirst,
    },
    thread: message.thread,
    source: message.source,
    occurredAt: message.occurredAt && timestampDate(message.occurredAt),
    metadata: message.metadata,
    producerId: message.producerId,
    producerSequence: Number(message.producerSequence),
    createdAt: message.createdAt && timestampDate(message.createdAt),
    isRedacted: message.redaction !== undefined,
    redaction: message.redaction && plain(RedactionSchema, message.redaction),
    trust: trustOf(message.trust),
  };
}

function trustOf(trust: SourceTrust): Chunk["trust"] {
  // What is trusted, which nearly all is, has no field.
  if (trust === SourceTrust.UNSPECIFIED) return "trusted";
  return (SourceTrust[trust]?.toLowerCase() ?? "unknown") as Chunk["trust"];
}

export function filterMessage(given: ChunkFilter): MessageInitShape<typeof ChunkFilterSchema> {
  const filter: MessageInitShape<typeof ChunkFilterSchema> = {
    threads: given.threads ?? [],
    excludedThreads: given.excludedThreads ?? [],
    sources: given.sources ?? [],
    metadata: given.metadata ?? {},
  };
  if (given.fromPosition !== undefined || given.toPosition !== undefined) {
    filter.positions = { first: BigInt(given.fromPosition ?? 0), last: BigInt(given.toPosition ?? 0) };
  }
  const since = timestamp("occurredSince", given.occurredSince);
  const until = timestamp("occurredUntil", given.occurredUntil);
  if (since || until) filter.occurred = { ...(since && { start: since }), ...(until && { end: until }) };
  return filter;
}

/** Returns whether a filter excludes nothing. */
export function isOpen(given: ChunkFilter): boolean {
  return Object.values(given).every((one) => one === undefined || (Array.isArray(one) && one.length === 0));
}

export function consistency(given: Freshness): { atLeast: string; fullyApplied: boolean } | undefined {
  if (!given.after && !given.fullyApplied) return undefined;
  return { atLeast: given.after ?? "", fullyApplied: given.fullyApplied ?? false };
}
