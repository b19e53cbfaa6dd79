/** What the conformance suite does not reach: pure parts of the client. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { z } from "zod";
import { conversation, cut } from "../src/conversations.js";
import { connect, InvalidArgument, jsonSchemaOf } from "../src/index.js";

test("a call of a tool and its result are one step, in each form", () => {
  const openai = [
    { role: "assistant", content: "I look.", tool_calls: [{ id: "1", function: { name: "look", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "1", content: "a door" },
  ];
  const anthropic = [
    { role: "assistant", content: [{ type: "text", text: "I look." }, { type: "tool_use", id: "1", name: "look", input: {} }] },
    { role: "user", content: [{ type: "tool_result", tool_use_id: "1", content: "a door" }] },
  ];
  for (const messages of [openai, anthropic]) {
    const { chunks, skipped } = conversation(messages, {}, false);
    const [step, ...others] = chunks.map((one) => one.content.value as unknown as Record<string, string>);
    assert.deepEqual([step?.["thought"], step?.["action"], step?.["observation"]], ["I look.", "look({})", "a door"]);
    assert.deepEqual([others.length, skipped], [0, 0]);
  }
});

test("pieces of a text are the text, and no character is cut", () => {
  const loneSurrogate = /^[\udc00-\udfff]|[\ud800-\udbff]$/;
  for (const unit of ["word ", "line\n", "𝄞", "no-blank"]) {
    const text = unit.repeat(1500).trim();
    const pieces = cut(text, 2000);
    assert.equal(pieces.join(""), text);
    assert.ok(pieces.length > 1 && pieces.every((one) => one.length <= 2000 && !loneSurrogate.test(one)));
  }
});

test("schemas of zod are without what the service does not know", () => {
  const schema = z.object({ age: z.int(), size: z.int().min(1), facts: z.record(z.string(), z.string()) });
  const found = JSON.stringify(jsonSchemaOf(schema));
  assert.doesNotMatch(found, /9007199254740991|propertyNames|\$schema/);
  assert.match(found, /"minimum":1/);
});

test("targets and tokens that cannot be used are refused", () => {
  for (const target of ["http://h", "grpc://h/x", "grpcs://"]) assert.throws(() => connect(target), InvalidArgument);
  for (const token of ["", " ", "a b", "é"]) assert.throws(() => connect("127.0.0.1", { token: token || " " }), InvalidArgument);
  assert.throws(() => connect("grpc://memory.example", { token: "pk_a" }), /plain text/);
  assert.equal(connect("localhost").address, "localhost:50051");
  assert.equal(connect("grpc://[::1]:7").address, "[::1]:7");
});
