/** Converts conversations to chunks: messages, and calls of tools with their results as steps. */

import type { Chunk as ChunkMessage } from "./gen/palimpsest/v1/chunks_pb.js";
import { invalid } from "./errors.js";
import { chunkMessage, type ChunkLabels, type NewChunk, type Step } from "./values.js";

/** A part of a message, as OpenAI's and Anthropic's clients and the AI SDK have it. */
export interface ContentPart {
  type: string;
  text?: string;
  [name: string]: unknown;
}

/** A message as OpenAI's and Anthropic's clients and the AI SDK have it. */
export interface Message extends ChunkLabels {
  role: string;
  content?: string | readonly ContentPart[] | null;
  tool_calls?: readonly { id?: string; function?: { name: string; arguments: string } }[] | null;
  tool_call_id?: string;
}

/** What can be remembered: a text, a message, or a list of them. */
export type Rememberable = string | Message;

/** Characters of a piece of plain text, and of a message or a part of a step. */
const TEXT_CHARACTERS = 2000;
const TURN_CHARACTERS = 8000;
const INSTRUCTIONS: ReadonlySet<string> = new Set(["system", "developer"]);
const TEXTS: ReadonlySet<string> = new Set(["text", "input_text", "output_text", "refusal"]);
const THOUGHTS: ReadonlySet<string> = new Set(["thinking", "redacted_thinking", "reasoning"]);
const CALLS: ReadonlySet<string> = new Set(["tool_use", "tool-call"]);
const RESULTS: ReadonlySet<string> = new Set(["tool_result", "tool-result"]);

interface Entry {
  number: number;
  labels: ChunkLabels;
  role: string;
  text: string;
  step?: Step;
  callId?: string;
}

/** Returns the chunks of a conversation, and how many messages nothing is kept of. */
export function conversation(
  messages: Rememberable | readonly Rememberable[],
  labels: ChunkLabels,
  includeSystem: boolean,
): { chunks: ChunkMessage[]; skipped: number } {
  const given = typeof messages === "string" || !Array.isArray(messages) ? [messages as Rememberable] : messages;
  if (given.length === 0 || (given.length === 1 && given[0] === "")) {
    throw invalid("there is nothing to remember: give a text or at least one message");
  }
  const entries: Entry[] = [];
  let skipped = 0;
  given.forEach((message: Rememberable, at: number) => {
    if (!read(message, at + 1, entries, includeSystem)) skipped += 1;
  });
  const chunks = entries.flatMap((entry) =>
    pieces(entry).map((piece) =>
      chunkMessage(
        { ...labels, ...entry.labels, metadata: { ...labels.metadata, ...entry.labels.metadata }, ...piece } as NewChunk,
        `message ${entry.number}`,
      ),
    ),
  );
  return { chunks, skipped };
}

/** Reads a message; returns whether anything of it is kept. */
function read(message: Rememberable, number: number, entries: Entry[], includeSystem: boolean): boolean {
  if (typeof message === "string") return add(entries, { number, labels: {}, role: "", text: message });
  if (typeof message !== "object" || message === null || typeof message.role !== "string") {
    throw invalid(`message ${number}: it is not a text or a message with role and content`);
  }
  const { role } = message;
  if (INSTRUCTIONS.has(role) && !includeSystem) return false;
  const labels = labelsOf(message);
  const parts = typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content ?? []);
  if (role === "tool" && message.tool_call_id !== undefined) {
    return addResult(entries, { number, labels, role: "", text: "" }, message.tool_call_id, textOf(parts, number));
  }
  let said = "";
  let thought = "";
  let kept = false;
  for (const part of parts) {
    if (TEXTS.has(part.type)) said += (said ? "\n" : "") + (part.text ?? "");
    else if (THOUGHTS.has(part.type)) thought += part.text ?? "";
    else if (CALLS.has(part.type)) {
      const call = { id: String(part["id"] ?? part["toolCallId"] ?? ""), name: String(part["name"] ?? part["toolName"] ?? "") };
      kept = addCall(entries, { number, labels, role: "", text: "" }, call.id, `${call.name}(${JSON.stringify(part["input"] ?? {})})`, said || thought) || kept;
      said = thought = "";
    } else if (RESULTS.has(part.type)) {
      const id = String(part["tool_use_id"] ?? part["toolCallId"] ?? "");
      kept = addResult(entries, { number, labels, role: "", text: "" }, id, resultText(part, number)) || kept;
    } else throw noText(number, part.type);
  }
  for (const call of message.tool_calls ?? []) {
    const action = `${call.function?.name ?? ""}(${call.function?.arguments ?? ""})`;
    kept = addCall(entries, { number, labels, role: "", text: "" }, call.id ?? "", action, said) || kept;
    said = "";
  }
  return add(entries, { number, labels, role, text: said }) || kept;
}

function labelsOf(message: Message): ChunkLabels {
  const { thread, source, occurredAt, metadata } = message;
  const given = { thread, source, occurredAt, metadata };
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
}

function noText(number: number, type: string): Error {
  return invalid(`message ${number}: its part of type ${JSON.stringify(type)} is no text: leave it out, or describe it in words`);
}

function textOf(parts: readonly ContentPart[], number: number): string {
  const other = parts.find((part) => !TEXTS.has(part.type));
  if (other) throw noText(number, other.type);
  return parts.map((part) => part.text ?? "").join("\n");
}

function resultText(part: ContentPart, number: number): string {
  const output = part["content"] ?? part["output"] ?? part["result"] ?? "";
  if (typeof output === "string") return output;
  if (Array.isArray(output)) return textOf(output as ContentPart[], number);
  const value = (output as { value?: unknown }).value ?? output;
  return typeof value === "string" ? value : JSON.stringify(value);
}

function addCall(entries: Entry[], entry: Entry, callId: string, action: string, thought: string): boolean {
  entries.push({ ...entry, callId, step: { thought, action } });
  return true;
}

/** Adds a result to the step of its call; without one it is a step of its own. */
function addResult(entries: Entry[], entry: Entry, callId: string, observation: string): boolean {
  const waits = (one: Entry) => one.callId === callId && one.step !== undefined && one.step.observation === undefined;
  const call = [...entries].reverse().find(waits);
  if (call?.step) {
    call.step.observation = observation;
    return true;
  }
  if (!observation.trim()) return false;
  entries.push({ ...entry, step: { observation } });
  return true;
}

function add(entries: Entry[], entry: Entry): boolean {
  if (!entry.text.trim()) return false;
  entries.push(entry);
  return true;
}

function pieces(entry: Entry): ({ text: string } | { message: { role: string; text: string } } | { agentStep: Step })[] {
  const { role, step, text } = entry;
  if (step) return steps(step).map((agentStep) => ({ agentStep }));
  if (role) return cut(text, TURN_CHARACTERS).map((piece) => ({ message: { role, text: piece } }));
  return cut(text, TEXT_CHARACTERS).map((piece) => ({ text: piece }));
}

/** Returns a step, and what of it follows in further ones, in the order of reading. */
function steps(whole: Step): Step[] {
  const found: Step[] = [];
  let step: Step = {};
  for (const name of ["thought", "action", "observation"] as const) {
    for (const piece of cut(whole[name] ?? "", TURN_CHARACTERS)) {
      if (step[name] !== undefined) {
        found.push(step);
        step = {};
      }
      step[name] = piece;
    }
  }
  return [...found, step];
}

/** Returns a text in pieces of at most so many characters, cut after blank lines, lines or words. */
export function cut(given: string, characters: number): string[] {
  if (given.length <= characters) return given.trim() ? [given] : [];
  const text = given.replaceAll("\r\n", "\n").trim();
  const found: string[] = [];
  for (let start = 0; start < text.length; ) {
    const end = border(text, start, characters);
    const piece = text.slice(start, end);
    if (piece.trim()) found.push(piece);
    start = end;
  }
  return found;
}

function border(text: string, start: number, characters: number): number {
  const limit = start + characters;
  if (limit >= text.length) return text.length;
  // A cut in the first half would leave needlessly small chunks.
  const least = start + Math.floor(characters / 2);
  for (const mark of ["\n\n", "\n", " "]) {
    const at = text.lastIndexOf(mark, limit - mark.length);
    if (at >= least) return at + mark.length;
  }
  // No surrogate pair is cut.
  const unit = text.charCodeAt(limit - 1);
  return unit >= 0xd800 && unit <= 0xdbff ? limit - 1 : limit;
}
