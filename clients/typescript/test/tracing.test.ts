/** The trace of calls, with the API of OpenTelemetry. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { context, propagation, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { connect as connectBrowser } from "../src/browser.js";
import { traceOf, traceparent } from "../src/tracing.js";

test("a call is part of the trace that it is made in", async () => {
  const sent: (string | null)[] = [];
  const fetch = async (_: unknown, init?: RequestInit) => {
    sent.push(new Headers(init?.headers).get("traceparent"));
    throw new TypeError("no network");
  };
  const client = connectBrowser("http://127.0.0.1:1", { fetch, reachSeconds: 0, timeout: 0.1 });
  const info = () => assert.rejects(client.session("s").info(), /cannot reach/);
  assert.equal(traceparent(), "");
  await info();
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  const span = { traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331", traceFlags: 1 };
  const header = `00-${span.traceId}-${span.spanId}-01`;
  await context.with(trace.setSpanContext(context.active(), span), async () => {
    assert.equal(traceparent(), header);
    await info();
  });
  await info();
  assert.deepEqual(sent, [null, header, null]);
  assert.deepEqual([traceOf(header), traceOf(header.replace(/1$/, "0"))], [span.traceId, ""]);
});
