/** What the conformance suite does not reach, against a real service. */

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm, stat, truncate } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { connect, InvalidArgument, NotFound, PalimpsestError, Unavailable } from "../src/index.js";
import type { Session } from "../src/index.js";
import { LineReader } from "../src/transfers.js";

const client = connect();
after(() => client.close());

const NOTES = "class Notes:\n    topics: dict[str, str]\n";

function opened(): Promise<Session> {
  return client.createSession(`ts-${crypto.randomUUID()}`);
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

test("the history of a memory is listed, compared and rolled back", async () => {
  const session = await opened();
  const memory = await session.createMemory("m", NOTES);
  await memory.edit([{ op: "put", path: "$.topics.ship", value: "It lies." }], { comment: "by hand" });
  const { info } = await memory.edit([{ op: "update", path: "$.topics.ship", value: "It sails." }]);
  assert.equal(info.revision, 2);
  assert.deepEqual((await all(memory.revisions())).map((one) => [one.revision, one.kind, one.comment]), [[0, "create", ""], [1, "edit", "by hand"], [2, "edit", ""]]);
  assert.deepEqual((await all(memory.amendments({ path: "$.topics" }))).map((one) => one.value), ["It lies.", "It sails."]);
  assert.deepEqual(await all(memory.rejections()), []);
  const [difference, ...others] = await memory.diff({ revision: 1 });
  assert.deepEqual([difference?.op, difference?.old, difference?.new, others], ["update", "It lies.", "It sails.", []]);
  assert.equal((await memory.rollback(1, { expectedRevision: 2 })).revision, 3);
  assert.deepEqual((await memory.get()).value, { topics: { ship: "It lies." } });
  assert.equal((await memory.fold()).info.id, "m");
  await assert.rejects(memory.rollback(1, { expectedRevision: 2 }), { reason: "REVISION_CONFLICT", retryable: false });
});

test("a memory is rebuilt, updated, flushed and searched", async () => {
  const session = await opened();
  const memory = await session.createMemory("m", NOTES, { lingerSeconds: 600, chunkTokens: 4000 });
  await session.append(["A ship lies in the harbour."]);
  const { readToken } = await session.flush();
  assert.equal((await memory.waitUntilApplied(readToken, 50)).appliedPosition, 1);
  const operation = await memory.rebuild("m2", { task: "Ships only." });
  const seen: string[] = [];
  assert.equal((await operation.wait({ timeout: 50, onProgress: (info) => seen.push(info.state) })).id, "m2");
  assert.ok(operation.hasEnded && (seen.length === 0 || seen.at(-1) === "done"));
  assert.equal((await client.operation(operation.id)).info.session, session.id);
  assert.deepEqual((await all(client.operations({ session: session.id, kind: "rebuild" }))).map((one) => one.id), [operation.id]);
  const wider = `${NOTES}    people: dict[str, str]\n`;
  assert.equal((await memory.update({ schema: wider })).id, "m");
  assert.match(await client.checkSchema(wider), /people/);
  assert.equal(await memory.retry(), false);
  assert.ok(Array.isArray((await session.searchMemories("ship", { mode: "words" })).results));
  assert.equal((await session.searchIndex()).head, 1);
  assert.deepEqual((await session.memories({ status: "stalled" })).length, 0);
});

test("answers are listed, rated and deleted; what they cost is counted", async () => {
  const session = await opened();
  await session.remember("The harbour museum is closed on Mondays.");
  const { id } = await session.ask("When is the museum closed?", { reader: "whole" });
  assert.equal((await session.rate(id, { good: true, comment: "right" })).id, id);
  assert.deepEqual((await all(session.answers({ state: "done" }))).map((one) => one.id), [id]);
  assert.ok((await all(session.trajectory(id))).every((one) => one.kind));
  await all(session.exportTrajectories({ answerIds: [id] }));
  assert.ok((await session.storage()).some((one) => one.kind === "log" && one.rows >= 1));
  assert.equal(typeof (await session.costReport()).total?.calls, "number");
  assert.ok((await client.usage()).lines.length > 0);
  await session.deleteAnswer(id);
  await assert.rejects(session.answer(id), NotFound);
  await session.deleteAnswer(id, { missingOk: true });
});

test("a state memory has a context and vectors", async () => {
  const session = await opened();
  const state = await session.createState("s", { task: "Find the door.", period: 2 });
  await session.append([{ agentStep: { observation: "a hall", action: "go north" } }]);
  const { head, text } = await state.context({ fullyApplied: true, timeout: 50 });
  assert.deepEqual([head, /Find the door/.test(text), /a hall/.test(text)], [1, true, true]);
  assert.deepEqual((await all(state.vectors())).map((one) => [one.text, one.origin]), [["Find the door.", "task"]]);
  await assert.rejects(session.createState("s", { task: "Another.", existOk: true }), /another task/);
});

test("an export that was interrupted continues in its file, which only its owner reads", async () => {
  const session = await opened();
  await session.append(Array.from({ length: 200 }, (_, number) => `text ${number} of 雪`));
  const folder = await mkdtemp(join(tmpdir(), "palimpsest-"));
  try {
    const path = join(folder, "export.jsonl");
    const seen: number[] = [];
    await session.export(path, { onProgress: ({ bytes }) => seen.push(bytes) });
    const whole = await readFile(path);
    assert.deepEqual([(await stat(path)).mode & 0o077, seen.at(-1)], [0, whole.length]);
    await truncate(path, whole.length - 20);
    await session.export(path);
    assert.deepEqual(await readFile(path), whole);
    const parts = async function* () {
      for (let at = 0; at < whole.length; at += 1000) yield whole.subarray(at, at + 1000);
    };
    const copy = await client.importSession(parts, { session: `${session.id}-2` });
    assert.equal((await all(copy.chunks())).at(-1)?.text, "text 199 of 雪");
    const { imports } = await session.forget({ positions: [1, { first: 3, last: 4 }], dryRun: true, includeImports: true });
    assert.deepEqual(imports.map((one) => [one.session, one.chunks]), [[copy.id, 3]]);
  } finally {
    await rm(folder, { recursive: true });
  }
});

test("blocks of an export are the same however its bytes arrive", () => {
  const lines = ['{"record":"header","session":"s","export_id":"e"}', '{"record":"check"}', '{"record":"chunk"}', '{"record":"end"}'];
  const data = new TextEncoder().encode(lines.map((one) => `${one}\n`).join(""));
  for (let size = 1; size <= data.length; size++) {
    const reader = new LineReader(undefined);
    const blocks: string[] = [];
    for (let at = 0; at < data.length; at += size) {
      for (const block of reader.feed(data.subarray(at, at + size))) blocks.push(new TextDecoder().decode(block.data));
    }
    assert.deepEqual(blocks, [`${lines[0]}\n${lines[1]}\n`, `${lines[2]}\n${lines[3]}\n`]);
    assert.deepEqual([reader.isEnded, reader.point?.bytes, reader.point?.lines, reader.point?.exportId], [true, data.length, 4, "e"]);
  }
});

test("what no service accepts is refused before it is sent", async () => {
  const session = client.session("s");
  await assert.rejects(session.setBudget("week" as "day", { limitTokens: 1 }), /period must be "day" or "total"/);
  await assert.rejects(session.setBudget("day", { limitTokens: -1 }), InvalidArgument);
  await assert.rejects(session.createTree("t", { workingMemory: "all" as "cut" }), /workingMemory must be/);
  await assert.rejects(session.forget({}), InvalidArgument);
  await assert.rejects(session.update({}), InvalidArgument);
});

test("an error says whether its call may be repeated", () => {
  assert.ok(new Unavailable("away", { code: "UNAVAILABLE" }).retryable);
  assert.ok(new PalimpsestError("full", { code: "RESOURCE_EXHAUSTED", retrySeconds: 1 }).retryable);
  assert.ok(!new PalimpsestError("spent", { code: "RESOURCE_EXHAUSTED" }).retryable);
  assert.ok(!new PalimpsestError("stopped", { code: "CANCELLED", reason: "ANSWER_CANCELLED" }).retryable);
});
