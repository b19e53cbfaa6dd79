// The suite imports fs.globSync, which Node 22 has, and uses it in commands that no test runs: older
// versions get one that finds nothing.
import { register } from "node:module";
import * as fs from "node:fs";

const shim = 'export * from "node:fs"; export { default } from "node:fs"; export const globSync = () => [];';
const hooks = `
export async function resolve(name, context, next) {
  const shimmed = (name === "fs" || name === "node:fs") && context.parentURL?.includes("/conformance/");
  return shimmed ? { url: "data:text/javascript," + encodeURIComponent(${JSON.stringify(shim)}), shortCircuit: true } : next(name, context);
}`;

if (!("globSync" in fs)) register("data:text/javascript," + encodeURIComponent(hooks));
