/** The driver of the TypeScript client: clients/conformance/README.md. */

import { createInterface } from "node:readline";
import { z } from "zod";
import { connect as connectBrowser } from "../src/browser.js";
import * as palimpsest from "../src/index.js";
import { moreCalls } from "./administration.js";

type Args = Record<string, any>;

const Profile = z.object({
  name: z.string(),
  age: z.int(),
  allergies: z.array(z.string()),
  facts: z.record(z.string(), z.string()),
  address: z.object({ street: z.string(), city: z.string() }),
});
/** What `type` names. */
const TYPES: Record<string, z.ZodType> = { Profile };
/** Fields whose content is the program's own. */
const OPAQUE = new Set(["metadata", "fields", "value", "json_schema", "response_schema", "messages", "query"]);

/** Whether to drive the client of browsers, by Node.js's fetch. */
const IS_BROWSER = process.argv[2] === "browser";

let client: palimpsest.Client | undefined;
const handles = new Map<string, any>();

function session(args: Args): palimpsest.Session {
  if (!client) throw new TypeError("connect first");
  return client.session(args["session"]);
}

function memory(args: Args): palimpsest.Memory {
  const type = args["type"];
  return session(args).memory(args["memory"], type && TYPES[type]);
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

function amendments(found: palimpsest.Amendment[]): Args[] {
  return found.map(({ op, path, value, revision, positions }) => ({ op, path, value, revision, positions: positions ?? null }));
}

function chunkOf({ kind, text, role, agentStep, isRedacted: redacted, ...rest }: palimpsest.Chunk): Args {
  const content = kind === "message" ? { message: { role, text } } : agentStep ? { agentStep } : { text };
  return { ...rest, redacted, ...content };
}

const calls: Record<string, (args: Args) => Promise<unknown>> = {
  ...moreCalls(() => client!),
  async connect({ target, ...options }) {
    client?.close();
    client = undefined;
    if (IS_BROWSER) {
      if (options["caFile"] ?? process.env["PALIMPSEST_CA_FILE"]) return { unsupported: "a browser trusts the roots that its user has" };
      client = connectBrowser(target?.replace(/^grpc/, "http") ?? process.env["PALIMPSEST_HTTP_URL"], options);
    } else client = palimpsest.connect(target ?? process.env["PALIMPSEST_URL"], options);
    return { sdk: "typescript", version: "0.1.0" };
  },
  async create_session({ session: id, ...options }) {
    return (await client!.createSession(id, options)).info();
  },
  get_session: (args) => session(args).info(),
  async list_sessions() {
    return { sessions: await all(client!.sessions()) };
  },
  update_session: ({ session: id, ...options }) => client!.session(id).update(options),
  async delete_session({ session: id, ...options }) {
    await client!.session(id).delete(options);
    return {};
  },
  async remember({ session: id, messages, ...options }) {
    const found = await client!.session(id).remember(messages, options);
    return { ...found, positions: found.positions ?? null };
  },
  recall: ({ session: id, query, ...options }) => client!.session(id).recall(query, options),
  append: ({ session: id, chunks, ...options }) => client!.session(id).append(chunks, options),
  async list_chunks({ session: id, ...filter }) {
    return { chunks: (await all(client!.session(id).chunks(filter))).map(chunkOf) };
  },
  async search_chunks({ session: id, query, ...options }) {
    const { results, mode } = await client!.session(id).search(query, options);
    return { mode, results: results.map((one) => ({ ...one, chunk: chunkOf(one.chunk) })) };
  },
  async open_producer({ handle, session: id, producerId, ...options }) {
    const producer = await client!.session(id).producer(producerId, options);
    handles.set(handle, producer);
    return { lastAckedSequence: producer.lastAckedSequence };
  },
  async send({ handle, chunks }) {
    const producer: palimpsest.Producer = handles.get(handle);
    const sequences: number[] = [];
    for (const chunk of chunks) sequences.push(await producer.append(chunk));
    return { firstSequence: sequences[0], lastSequence: sequences.at(-1) };
  },
  async flush({ handle }) {
    return (await handles.get(handle).flush()) ?? { producerSequence: null, position: null, readToken: null };
  },
  async close_producer({ handle }) {
    const producer: palimpsest.Producer = handles.get(handle);
    await producer.close();
    return { lastAckedSequence: producer.lastAckedSequence };
  },
  async create_memory({ session: id, memory: name, type, schemaSource, jsonSchema, ...options }) {
    await client!.session(id).createMemory(name, type ? TYPES[type]! : (schemaSource ?? jsonSchema), options);
    return calls["get_memory"]!({ session: id, memory: name });
  },
  async get_memory({ session: id, memory: name, type, ...options }) {
    const { info, value, typed, ...rest } = await memory({ session: id, memory: name, type }).get(options);
    return { ...info, ...rest, value: type ? typed : value };
  },
  async list_memories(args) {
    return { memories: await session(args).memories() };
  },
  async delete_memory({ session: id, memory: name, ...options }) {
    await memory({ session: id, memory: name }).delete(options);
    return {};
  },
  async edit_memory({ session: id, memory: name, edits, ...options }) {
    const done = await memory({ session: id, memory: name }).edit(edits, options);
    return { revision: done.revision, amendments: amendments(done.amendments) };
  },
  wait_until_applied: ({ after, timeout, ...named }) => memory(named).waitUntilApplied(after, timeout),
  async get_provenance({ path, ...named }) {
    const { entries, ...why } = await memory(named).provenance(path);
    const found = entries.map((one) => ({
      ...amendments([one.amendment])[0],
      inEffect: one.inEffect,
      chunks: one.chunks.map(chunkOf),
    }));
    return { ...why, entries: found };
  },
  async watch_memory({ handle, session: id, memory: name, ...options }) {
    handles.set(handle, await memory({ session: id, memory: name }).watch(options));
    return {};
  },
  async next_revision({ handle }) {
    const event: palimpsest.Committed = await handles.get(handle).next();
    return { ...event, amendments: amendments(event.amendments) };
  },
  async close_watch({ handle }) {
    handles.get(handle).close();
    return { resumeToken: handles.get(handle).resumeToken };
  },
  ask: ({ session: id, query, ...options }) => client!.session(id).ask(query, options),
  async stream_ask({ handle, session: id, query, ...options }) {
    const stream = client!.session(id).streamAsk(query, options);
    handles.set(handle, stream);
    return { answerId: await stream.id() };
  },
  async next_piece({ handle }) {
    const stream: palimpsest.AnswerStream = handles.get(handle);
    return (await stream.next()) ?? { answer: stream.answer };
  },
  async close_stream({ handle }) {
    handles.get(handle).close();
    return {};
  },
  resume_answer: ({ session: id, answerId, ...options }) => client!.session(id).resumeAnswer(answerId, options),
  cancel_answer: (args) => session(args).cancelAnswer(args["answerId"]),
  get_answer: (args) => session(args).answer(args["answerId"]),
  async open_agent({ handle, session: id, ...options }) {
    const agent = await client!.agent(id, options);
    handles.set(handle, agent);
    return { step: agent.step };
  },
  async record_steps({ handle, steps }) {
    let ack;
    for (const step of steps) ack = await handles.get(handle).record(step);
    return ack;
  },
  async get_context({ handle }) {
    const found: palimpsest.WorkingContext = await handles.get(handle).context();
    return { ...found, recent: found.recent.map(chunkOf) };
  },
  async close_agent({ handle }) {
    await handles.get(handle).close();
    return { step: handles.get(handle).step };
  },
};

/** Returns a value with the names of its fields in the other style. */
function renamed(value: unknown, name: (text: string) => string): unknown {
  if (value instanceof Date) return value.toISOString().replace(".000Z", "Z");
  if (value === undefined || typeof value === "function") return null;
  if (Array.isArray(value)) return value.map((one) => renamed(one, name));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [name(key), OPAQUE.has(key) ? one : renamed(one, name)]),
  );
}

const camel = (text: string) => text.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
const snake = (text: string) => text.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function errorOf(thrown: unknown): Args {
  const known = thrown instanceof palimpsest.PalimpsestError ? thrown : new palimpsest.InvalidArgument(String(thrown), { code: thrown instanceof TypeError ? "INVALID_ARGUMENT" : "UNKNOWN" });
  const { name, code, reason, message, metadata, fields, retrySeconds } = known;
  return { type: name, code, reason, message, metadata, fields, retry_seconds: retrySeconds ?? null };
}

async function replyTo(call: string, args: Args): Promise<Args> {
  const known = calls[call];
  if (!known) return { unsupported: `the driver has no ${call}` };
  if (IS_BROWSER && ["open_producer", "open_agent", "import_session"].includes(call)) {
    return { unsupported: "a browser has no streams in both directions" };
  }
  if (IS_BROWSER && call === "export_session") return { unsupported: "a browser has no files" };
  const result = renamed(await known(renamed(args, camel) as Args), snake) as Args;
  return "unsupported" in result ? result : { result };
}

async function reply(line: string): Promise<void> {
  const { id, call, args } = JSON.parse(line) as { id: number; call: string; args: Args };
  let found: Args;
  try {
    found = await replyTo(call, args);
  } catch (thrown) {
    found = { error: errorOf(thrown) };
    if (!(thrown instanceof palimpsest.PalimpsestError)) console.error(thrown);
  }
  process.stdout.write(`${JSON.stringify({ id, ...found })}\n`);
}

createInterface({ input: process.stdin }).on("line", (line) => void reply(line)).on("close", () => process.exit());
