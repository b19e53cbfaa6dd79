/** The client of browsers, by the Connect protocol over fetch: all but producers and agents. */

import { createConnectTransport } from "@connectrpc/connect-web";
import { Client } from "./client.js";
import { Connection, REACH_SECONDS } from "./connection.js";
import { invalid } from "./errors.js";
import { traced } from "./tracing.js";

export * from "./exports.js";

/** How to connect. */
export interface ConnectOptions {
  /** A key or token, or a function that returns it and is called before each call. */
  token?: string | (() => string | Promise<string>) | undefined;
  /** Seconds of calls that have no timeout of their own. */
  timeout?: number | undefined;
  reachSeconds?: number | undefined;
  /** In place of the browser's. */
  fetch?: typeof globalThis.fetch | undefined;
}

/**
 * Returns a client of the service at a URL, such as `https://memory.example:50080`, whose
 * PALIMPSEST_HTTP_ORIGINS must name the page's origin.
 */
export function connect(url: string, options: ConnectOptions = {}): Client {
  const { token } = options;
  const { protocol, hostname, host } = new URL(url);
  if (protocol !== "https:" && protocol !== "http:") throw invalid(`${JSON.stringify(url)} is no URL of the service's HTTP port: give https://HOST:PORT`);
  if (token && protocol === "http:" && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname)) {
    throw invalid(`a token is not sent to ${host} in plain text: connect to https://${host}`);
  }
  const transport = createConnectTransport({
    baseUrl: url.replace(/\/+$/, ""),
    useHttpGet: true,
    ...(options.fetch && { fetch: options.fetch }),
    interceptors: [
      traced,
      (next) => async (request) => {
        if (token) request.header.set("authorization", `Bearer ${typeof token === "function" ? await token() : token}`);
        return next(request);
      },
    ],
  });
  const connection = new Connection(transport, host, options.timeout, options.reachSeconds ?? REACH_SECONDS, false);
  return new Client(connection, () => undefined);
}
