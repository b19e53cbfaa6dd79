/** The driver's calls that forget, move, summarize, pay for and administer sessions. */

import * as palimpsest from "../src/index.js";

type Args = Record<string, any>;

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) found.push(item);
  return found;
}

/** Returns the calls by their names. */
export function moreCalls(client: () => palimpsest.Client): Record<string, (args: Args) => Promise<unknown>> {
  const session = (args: Args) => client().session(args["session"]);
  const tree = (args: Args) => session(args).tree(args["memory"]);
  const access = () => client().access;
  const resource = ({ session, memory }: Args) => {
    if (!session) return client();
    return memory ? client().session(session).memory(memory) : client().session(session);
  };
  return {
    async ask_all({ session: id, queries, ...options }) {
      const found = await client().session(id).askAll(queries, options);
      return { answers: found.map((one) => (one instanceof palimpsest.PalimpsestError ? { error: { code: one.code, reason: one.reason } } : one)) };
    },
    async forget({ session: id, ...options }) {
      const { operation, ...found } = await client().session(id).forget(options);
      return { ...found, operation: operation?.id };
    },
    async wait_operation({ operation: id, ...options }) {
      const operation = await client().operation(id);
      await operation.wait(options);
      return { ...operation.info, result: null };
    },
    async export_session({ path, ...named }) {
      await session(named).export(path);
      return {};
    },
    import_session: async ({ path, ...options }) => (await client().importSession(path, options)).info(),
    set_budget: ({ session, memory, period, ...limits }) => resource({ session, memory }).setBudget(period, limits),
    list_budgets: async (args) => ({ budgets: await all(args["session"] ? session(args).budgets() : client().budgets()) }),
    async delete_budget({ session, memory, period, ...options }) {
      await resource({ session, memory }).deleteBudget(period, options);
      return {};
    },
    list_usage: ({ session, memory, ...options }) => resource({ session, memory }).usage(options),
    create_tree: async ({ session: id, memory, ...options }) => (await (await client().session(id).createTree(memory, options)).outline()).info,
    get_tree: ({ session, memory, ...options }) => tree({ session, memory }).outline(options),
    get_node: (args) => tree(args).node(args["node"]),
    list_nodes: async (args) => ({ nodes: await all(args["parent"] ? tree(args).children(args["parent"]) : tree(args).level(args["level"])) }),
    get_node_text: async (args) => ({ parts: await all(tree(args).text(args["node"])) }),
    seal_tree: async (args) => ({ operation: (await tree(args).seal()).id }),
    create_tenant: ({ tenant, ...options }) => access().createTenant(tenant, options),
    get_tenant: ({ tenant }) => access().tenant(tenant),
    list_tenants: async () => ({ tenants: await all(access().tenants()) }),
    update_tenant: ({ tenant, ...changes }) => access().updateTenant(tenant, changes),
    delete_tenant: ({ tenant, ...options }) => access().deleteTenant(tenant, options),
    get_quota: (args) => access().quota(args),
    update_quota: ({ changes, ...options }) => access().updateQuota(changes, options),
    create_key: ({ scopes, ...options }) => access().createKey(scopes, options),
    list_keys: async (args) => ({ keys: await all(access().keys(args)) }),
    rotate_key: ({ id, ...options }) => access().rotateKey(id, options),
    revoke_key: ({ id, ...options }) => access().revokeKey(id, options),
    list_erasures: async (args) => ({ erasures: await all(access().erasures(args)) }),
    async get_erasure_receipt({ id, ...options }) {
      const { json, publicKey } = await access().erasureReceipt(id, options);
      return { json, publicKey: Array.from(publicKey, (byte) => byte.toString(16).padStart(2, "0")).join("") };
    },
    list_kept_out_texts: async (args) => ({ texts: await all(access().keptOutTexts(args["session"])) }),
    allow_text: (args) => access().allowText(args["session"], args["id"]),
    list_audit_events: async (args) => ({ events: (await all(access().auditEvents(args))).map(({ digest: _, ...one }) => one) }),
    async check_audit_log(args) {
      let [sequence, digest, intact] = [0, palimpsest.NO_DIGEST, true];
      for await (const event of access().auditEvents(args)) {
        intact &&= await event.follows(sequence, digest);
        [sequence, digest] = [event.sequence, event.digest];
      }
      const head = await access().auditHead(args);
      return { events: sequence, intact: intact && head.sequence === sequence && String(head.digest) === String(digest) };
    },
    set_source_trust: ({ source, trust, ...options }) => access().setSourceTrust(source, trust, options),
    list_sources: async (args) => ({ sources: await access().sources(args["session"]) }),
    quarantine_source: (args) => access().quarantineSource(args["session"], args["source"]),
    release_source: (args) => access().releaseSource(args["session"], args["source"]),
  };
}
