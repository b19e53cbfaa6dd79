/** The middleware with the AI SDK's own code and mock model, and a real service. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { generateText, streamText, tool, stepCountIs, wrapLanguageModel } from "ai";
import { MockLanguageModelV4, simulateReadableStream } from "ai/test";
import { z } from "zod";
import { memory } from "../src/ai-sdk.js";
import { type Client, connect } from "../src/index.js";

const USAGE = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

async function withClient(work: (client: Client, id: string) => Promise<void>): Promise<void> {
  const client = connect();
  try {
    await work(client, `ai-${crypto.randomUUID()}`);
  } finally {
    client.close();
  }
}

function says(text: string): MockLanguageModelV4 {
  const finishReason = { unified: "stop" as const, raw: "stop" };
  const chunks = [
    { type: "text-start" as const, id: "1" },
    { type: "text-delta" as const, id: "1", delta: text },
    { type: "text-end" as const, id: "1" },
    { type: "finish" as const, finishReason, usage: USAGE },
  ];
  return new MockLanguageModelV4({
    doGenerate: { content: [{ type: "text", text }], finishReason, usage: USAGE, warnings: [] },
    doStream: async () => ({ stream: simulateReadableStream({ chunks, chunkDelayInMs: null, initialDelayInMs: null }) }),
  });
}

async function log(client: Client, id: string): Promise<string[]> {
  const found: string[] = [];
  for await (const { role, text, thread, agentStep } of client.session(id).chunks()) {
    found.push(agentStep ? `${agentStep.action}${agentStep.observation}` : `${role}/${thread}: ${text}`);
  }
  return found;
}

test("a turn is remembered, and another conversation recalls it", () =>
  withClient(async (client, id) => {
    const first = says("Noted.");
    const model = wrapLanguageModel({ model: first, middleware: memory(client.session(id), { thread: "a" }) });
    await generateText({ model, system: "Be brief.", prompt: "I am allergic to peanuts." });
    assert.deepEqual(await log(client, id), ["user/a: I am allergic to peanuts.", "assistant/a: Noted."]);
    assert.doesNotMatch(JSON.stringify(first.doGenerateCalls[0]?.prompt), /is known/);

    const second = says("No peanuts.");
    const other = wrapLanguageModel({ model: second, middleware: memory(client.session(id), { thread: "b" }) });
    const { text } = await generateText({ model: other, system: "Be brief.", prompt: "What may I eat?" });
    assert.equal(text, "No peanuts.");
    const prompt = second.doGenerateCalls[0]?.prompt;
    assert.equal(prompt?.[0]?.content, "Be brief.");
    assert.match(JSON.stringify(prompt?.at(-1)?.content), /allergic to peanuts.*What may I eat\?/s);
    assert.deepEqual((await log(client, id)).slice(2), ["user/b: What may I eat?", "assistant/b: No peanuts."]);
  }));

test("a streamed turn is remembered when the stream has ended", () =>
  withClient(async (client, id) => {
    const model = wrapLanguageModel({ model: says("Hello there."), middleware: memory(client.session(id)) });
    let text = "";
    for await (const piece of streamText({ model, prompt: "Hi." }).textStream) text += piece;
    assert.equal(text, "Hello there.");
    assert.deepEqual(await log(client, id), ["user/: Hi.", "assistant/: Hello there."]);
  }));

test("each message of a tool loop is remembered once", () =>
  withClient(async (client, id) => {
    const call = { type: "tool-call" as const, toolCallId: "1", toolName: "look", input: '{"at":"door"}' };
    const results = [[call], [{ type: "text" as const, text: "It is open." }]];
    const finish = (at: number) => ({ unified: at === 0 ? ("tool-calls" as const) : ("stop" as const), raw: undefined });
    let at = 0;
    const mock = new MockLanguageModelV4({
      doGenerate: async () => ({ content: results[at] ?? [], finishReason: finish(at++), usage: USAGE, warnings: [] }),
    });
    const model = wrapLanguageModel({ model: mock, middleware: memory(client.session(id)) });
    const look = tool({ inputSchema: z.object({ at: z.string() }), execute: async () => "an open door" });
    await generateText({ model, prompt: "Is the door open?", tools: { look }, stopWhen: stepCountIs(3) });
    assert.deepEqual(await log(client, id), ["user/: Is the door open?", 'look({"at":"door"})', "an open door", "assistant/: It is open."]);
  }));

test("a service that is away fails no turn", async () => {
  const client = connect("127.0.0.1:9", { reachSeconds: 0.1 });
  const errors: unknown[] = [];
  const model = wrapLanguageModel({ model: says("Fine."), middleware: memory(client.session("s"), { onError: (error) => errors.push(error) }) });
  assert.equal((await generateText({ model, prompt: "How are you?" })).text, "Fine.");
  assert.equal(errors.length, 2);
  client.close();
});
