/** The trace that a call belongs to, where the program has OpenTelemetry. */

import type { Interceptor } from "@connectrpc/connect";

/** What the API package of OpenTelemetry registers for all its copies in a program; nothing without an SDK. */
interface OpenTelemetry {
  context?: { active(): unknown };
  propagation?: { inject(context: unknown, carrier: Headers, setter: { set(carrier: Headers, name: string, value: string): void }): void };
}

const API = Symbol.for("opentelemetry.js.api.1");
const SETTER = { set: (carrier: Headers, name: string, value: string) => carrier.set(name, value) };

function inject(headers: Headers): void {
  const { context, propagation } = (globalThis as { [API]?: OpenTelemetry })[API] ?? {};
  if (context) propagation?.inject(context.active(), headers, SETTER);
}

/** Sends the current span with each call, as the program's propagator writes it. */
export const traced: Interceptor = (next) => (request) => {
  inject(request.header);
  return next(request);
};

/** Returns the current span as one header; empty without one. */
export function traceparent(): string {
  const headers = new Headers();
  inject(headers);
  return headers.get("traceparent") ?? "";
}

/** Returns the trace that a header names if it is sampled; else empty. */
export function traceOf(traceparent: string): string {
  return /[13579bdf]$/.test(traceparent) ? traceparent.slice(3, 35) : "";
}
