// Calls the API by Connect over HTTP, and prints a line of JSON for each thing tried.
// `deadlines edit` and `deadlines append` instead make calls that do not end before their deadlines.
// Environment: PALIMPSEST_HTTP_URL, PALIMPSEST_TOKEN.
import { subscribe } from "node:diagnostics_channel";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { compressionGzip, createConnectTransport } from "@connectrpc/connect-node";
import { ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { AnswerService, Reader } from "./gen/palimpsest/v1/answer_service_pb.js";
import { MemoryService } from "./gen/palimpsest/v1/memory_service_pb.js";
import { SessionService } from "./gen/palimpsest/v1/session_service_pb.js";

const show = (name, result) => console.log(JSON.stringify({ name, result }));

// What is on the wire, which interceptors do not see.
let method;
subscribe("http.client.request.start", ({ request }) => (method = request.method));

function transport(options, seen = []) {
  const watch = (next) => async (request) => {
    const response = await next(request);
    seen.push(response.header.get("content-encoding"));
    return response;
  };
  return createConnectTransport({
    baseUrl: process.env.PALIMPSEST_HTTP_URL,
    httpVersion: "1.1",
    interceptors: [watch],
    ...options,
  });
}

async function failure(call) {
  try {
    await call();
    return "no error";
  } catch (error) {
    const failed = ConnectError.from(error);
    const [info] = failed.findDetails(ErrorInfoSchema);
    return [Code[failed.code], info?.reason, info?.metadata];
  }
}

async function all(stream) {
  const found = [];
  for await (const one of stream) found.push(one);
  return found;
}

const headers = { authorization: `Bearer ${process.env.PALIMPSEST_TOKEN}` };

// Of the session "s" with the memory "m". A deadline is the client's own, or known to the service alone.
async function deadlines(kind) {
  const call = (options, id, given) => {
    if (kind === "append") {
      const chunks = ["one", "two"].map((text) => ({ content: { case: "text", value: text } }));
      return createClient(SessionService, transport(options)).append({ session: "s", requestId: id, chunks }, given);
    }
    const edits = ["a", "b"].map((name) => ({ path: `$.${name}`, valueJson: `"${id}"` }));
    const request = { session: "s", memory: "m", requestId: id, edits };
    return createClient(MemoryService, transport(options)).editMemory(request, given);
  };
  const late = { client: { headers, timeoutMs: 2000 }, service: { headers: { ...headers, "connect-timeout-ms": "2000" } } };
  const all = [true, false].flatMap((useBinaryFormat) =>
    Object.entries(late).map(async ([whose, given]) => {
      const id = `${useBinaryFormat ? "proto" : "json"}-${whose}`;
      try {
        await call({ useBinaryFormat }, id, given);
        show(id, ["no error"]);
      } catch (error) {
        const { code, rawMessage } = ConnectError.from(error);
        show(id, whose === "client" ? [Code[code]] : [Code[code], rawMessage]);
      }
    }),
  );
  await Promise.all(all);
}

if (process.argv[2] === "deadlines") {
  await deadlines(process.argv[3]);
  process.exit(0);
}

const session = "from-connect-es";
const anonymous = createClient(SessionService, transport({ useBinaryFormat: true }));
show("no token", await failure(() => anonymous.getSession({ session })));

for (const useBinaryFormat of [true, false]) {
  const codec = useBinaryFormat ? "proto" : "json";
  const seen = [];
  const byPost = transport({ useBinaryFormat }, seen);
  const sessions = createClient(SessionService, byPost);
  const id = `${session}-${codec}`;
  const metadata = { key: "v".repeat(1000), other: "v".repeat(1000) };
  const made = await sessions.createSession({ session: { id, metadata } }, { headers });
  show(`${codec}: unary`, made.id);
  show(`${codec}: gzip of the response`, [method, seen.pop()]);
  const zipped = createClient(
    SessionService,
    transport({ useBinaryFormat, sendCompression: compressionGzip, compressMinBytes: 0 }),
  );
  const content = { case: "text", value: "The museum is closed on Mondays." };
  const appended = await zipped.append({ session: id, requestId: "1", chunks: [{ content }] }, { headers });
  show(`${codec}: gzip of the request`, String(appended.positions.last));
  const reads = createClient(SessionService, transport({ useBinaryFormat, useHttpGet: true }));
  show(`${codec}: read by GET`, [(await reads.getSession({ session: id }, { headers })).id, method]);
  show(`${codec}: error`, await failure(() => sessions.getSession({ session: "nobody" }, { headers })));
  const answers = createClient(AnswerService, byPost);
  const asked = { session: id, query: "When is the museum closed?", reader: Reader.WHOLE };
  const events = await all(answers.ask(asked, { headers }));
  show(`${codec}: stream`, events.at(-1).event.value.text.includes("Mondays"));
  const unknown = { ...asked, session: "nobody" };
  show(`${codec}: error of a stream`, await failure(() => all(answers.ask(unknown, { headers }))));
  const memories = createClient(MemoryService, byPost);
  await memories.createMemory({ memory: { session: id, id: "m", spec: { case: "tree", value: {} } } }, { headers });
  const watched = () => all(memories.watchMemory({ session: id, memory: "m" }, { headers, timeoutMs: 700 }));
  show(`${codec}: deadline of a stream`, (await failure(watched))[0]);
}
