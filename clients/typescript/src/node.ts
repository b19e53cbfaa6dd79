/** Connections of Node.js: gRPC over HTTP/2, credentials, and the environment. */

import { readFileSync, statSync } from "node:fs";
import type { SecureClientSessionOptions } from "node:http2";
import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client } from "./client.js";
import { Connection, REACH_SECONDS } from "./connection.js";
import { invalid } from "./errors.js";
import { FILES } from "./files.js";
import { traced } from "./tracing.js";

const DEFAULT_PORT = 50051;
const MAX_SENT_BYTES = 4 * 1024 * 1024;
const MAX_RECEIVED_BYTES = 8 * 1024 * 1024;
const KEEPALIVE_MILLISECONDS = 30_000;

/** How to connect. */
export interface ConnectOptions {
  /** A key or token, or a function that returns it and is called before each call (PALIMPSEST_TOKEN, PALIMPSEST_TOKEN_FILE). */
  token?: string | (() => string | Promise<string>) | undefined;
  /** The roots that are trusted, in PEM (PALIMPSEST_CA_FILE; default: those of Node.js). */
  caFile?: string | undefined;
  /** The client's own certificate and its key (PALIMPSEST_CERTIFICATE_FILE, PALIMPSEST_KEY_FILE). */
  certificateFile?: string | undefined;
  keyFile?: string | undefined;
  /** Allows a token to another machine without TLS (PALIMPSEST_PLAIN_TOKEN). */
  plainToken?: boolean | undefined;
  /** Seconds of calls that have no timeout of their own. */
  timeout?: number | undefined;
  /** Seconds to try a service that was never reached (2.5). */
  reachSeconds?: number | undefined;
}

/**
 * Returns a client of the service at a target: HOST:PORT, grpc://HOST:PORT or grpcs://HOST:PORT (TLS).
 * The default is PALIMPSEST_ADDRESS, else 127.0.0.1. Nothing is sent before the first call.
 */
export function connect(target?: string, options: ConnectOptions = {}): Client {
  const { host, isSecure } = parseTarget(target ?? process.env["PALIMPSEST_ADDRESS"] ?? "127.0.0.1");
  const token = tokenOf(options);
  const allowsPlain = options.plainToken ?? ["1", "true"].includes(process.env["PALIMPSEST_PLAIN_TOKEN"] ?? "");
  if (token && !isSecure && !isLocal(host) && !allowsPlain) {
    throw invalid(`a token is not sent to ${host} in plain text: connect to grpcs://${host}, or allow it by plainToken (PALIMPSEST_PLAIN_TOKEN)`);
  }
  const baseUrl = `${isSecure ? "https" : "http"}://${host}`;
  const sessionManager = new Http2SessionManager(
    baseUrl,
    { pingIntervalMs: KEEPALIVE_MILLISECONDS, pingTimeoutMs: 10_000, pingIdleConnection: false },
    isSecure ? tls(options) : {},
  );
  const transport = createGrpcTransport({
    baseUrl,
    sessionManager,
    interceptors: token ? [authorized(token), traced] : [traced],
    readMaxBytes: MAX_RECEIVED_BYTES,
    writeMaxBytes: MAX_SENT_BYTES,
  });
  const connection = new Connection(transport, host, options.timeout, options.reachSeconds ?? REACH_SECONDS, true, FILES);
  return new Client(connection, () => sessionManager.abort());
}

/** Sends a token with each call. */
export function authorized(token: () => string | Promise<string>): Interceptor {
  return (next) => async (request) => {
    request.header.set("authorization", `Bearer ${await token()}`);
    return next(request);
  };
}

function parseTarget(target: string): { host: string; isSecure: boolean } {
  const [, scheme = "grpc", rest = ""] = /^(?:([a-z]+):\/\/)?([^/]+)\/?$/.exec(target.trim()) ?? [];
  if (!rest || (scheme !== "grpc" && scheme !== "grpcs")) {
    throw invalid(`${JSON.stringify(target)} is no address of the service: give HOST:PORT, grpc://HOST:PORT or grpcs://HOST:PORT (TLS)`);
  }
  const hasPort = /:\d+$/.test(rest) && (!rest.slice(0, rest.lastIndexOf(":")).includes(":") || rest.startsWith("["));
  const host = rest.includes(":") && !hasPort && !rest.startsWith("[") ? `[${rest}]` : rest;
  return { host: hasPort ? host : `${host}:${DEFAULT_PORT}`, isSecure: scheme === "grpcs" };
}

function isLocal(host: string): boolean {
  return /^(localhost|127\.\d+\.\d+\.\d+|\[::1\]):\d+$/.test(host);
}

function tokenOf(options: ConnectOptions): (() => string | Promise<string>) | undefined {
  const { token } = options;
  if (typeof token === "function") return async () => checked(await token());
  const text = token ?? process.env["PALIMPSEST_TOKEN"];
  const file = process.env["PALIMPSEST_TOKEN_FILE"];
  if (token === undefined && text && file) throw invalid("PALIMPSEST_TOKEN and PALIMPSEST_TOKEN_FILE are both set: set one of them");
  if (text !== undefined && text !== "") {
    const found = checked(text);
    return () => found;
  }
  return file ? fileToken(file) : undefined;
}

/** Reads the file again when it has changed. */
function fileToken(file: string): () => string {
  let [stamp, found] = ["", ""];
  return () => {
    const { mtimeMs, size, ino } = statSync(file);
    if (stamp !== `${mtimeMs} ${size} ${ino}`) {
      found = checked(readFileSync(file, "ascii"));
      stamp = `${mtimeMs} ${size} ${ino}`;
    }
    return found;
  };
}

function checked(token: string): string {
  const text = token.trim();
  if (!/^[\x21-\x7e]{1,16384}$/.test(text)) throw invalid("the token is empty, or has characters that no token has: give it as it was issued");
  return text;
}

function tls(options: ConnectOptions): SecureClientSessionOptions {
  const ca = options.caFile ?? process.env["PALIMPSEST_CA_FILE"];
  const certificate = options.certificateFile ?? process.env["PALIMPSEST_CERTIFICATE_FILE"];
  const key = options.keyFile ?? process.env["PALIMPSEST_KEY_FILE"];
  if (!certificate !== !key) throw invalid("a client's certificate needs its key: give certificateFile and keyFile");
  return {
    ...(ca ? { ca: readFileSync(ca) } : {}),
    ...(certificate && key ? { cert: readFileSync(certificate), key: readFileSync(key) } : {}),
  };
}
