/**
 * The TypeScript client of Palimpsest, for Node.js.
 *
 *     const client = connect();
 *     await client.session("alice").remember("Alice is allergic to peanuts.");
 *     const { text } = await client.session("alice").recall("What may she eat?");
 */

export * from "./exports.js";
export { connect, type ConnectOptions } from "./node.js";
