/** The package as programs install it. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { test } from "node:test";
import { AccessService } from "../src/gen/palimpsest/v1/access_service_pb.js";
import { AnswerService } from "../src/gen/palimpsest/v1/answer_service_pb.js";
import { BillingService } from "../src/gen/palimpsest/v1/billing_service_pb.js";
import { MemoryService } from "../src/gen/palimpsest/v1/memory_service_pb.js";
import { OperationService } from "../src/gen/palimpsest/v1/operation_service_pb.js";
import { SessionService } from "../src/gen/palimpsest/v1/session_service_pb.js";
import { StateService } from "../src/gen/palimpsest/v1/state_service_pb.js";
import { TreeService } from "../src/gen/palimpsest/v1/tree_service_pb.js";

/** The folder of the package. */
const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** Returns the packages that a module and all that it imports of its own folder import. */
async function imports(path: string, seen = new Set<string>()): Promise<Set<string>> {
  const found = new Set<string>();
  if (seen.has(path)) return found;
  seen.add(path);
  for (const [, name = ""] of (await readFile(path, "utf8")).matchAll(/(?:from|import)\s*\(?\s*"([^"]+)"/g)) {
    if (!name.startsWith(".")) found.add(name);
    else for (const one of await imports(join(dirname(path), name), seen)) found.add(one);
  }
  return found;
}

test("the module of browsers imports nothing of Node.js", async () => {
  const [browser, node] = await Promise.all(["browser", "index"].map((name) => imports(join(ROOT, `dist/src/${name}.js`))));
  const ofNode = (one: string) => one.startsWith("node:") || one.includes("connect-node");
  assert.deepEqual([...(browser ?? [])].filter(ofNode), []);
  assert.ok([...(node ?? [])].some(ofNode) && browser?.has("@connectrpc/connect-web"));
});

test("the package has its modules with their types, and nothing else", async () => {
  const packed = await promisify(execFile)("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: ROOT, maxBuffer: 1 << 24 });
  const [{ files }] = JSON.parse(packed.stdout) as [{ files: { path: string }[] }];
  const paths = files.map((one) => one.path);
  assert.deepEqual(paths.filter((one) => !one.startsWith("dist/src/")).sort(), ["LICENSE", "README.md", "package.json"]);
  const { exports } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8")) as { exports: Record<string, Record<string, string>> };
  for (const one of Object.values(exports).flatMap((entry) => Object.values(entry))) assert.ok(paths.includes(one.slice(2)), one);
});

test("each method of the API is called by the client", async () => {
  const names = (await readdir(join(ROOT, "dist/src"))).filter((one) => one.endsWith(".js"));
  const sources = (await Promise.all(names.map((one) => readFile(join(ROOT, "dist/src", one), "utf8")))).join("\n");
  const services = [AccessService, AnswerService, BillingService, MemoryService, OperationService, SessionService, StateService, TreeService];
  const methods = services.flatMap((service) => service.methods.map((one) => one.localName));
  assert.ok(methods.length >= 74, String(methods.length));
  assert.deepEqual(methods.filter((one) => !new RegExp(`\\.${one}\\b[,(]`).test(sources)), []);
});
