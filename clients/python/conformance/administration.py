"""The driver's calls that forget, move, summarize, pay for and administer sessions."""

from typing import Any

import palimpsest

Args = dict[str, Any]


class MoreCalls:
    """The calls by their names; `client` is the driver's."""

    @property
    def client(self) -> palimpsest.Client:
        raise NotImplementedError

    async def ask_all(self, session: str, queries: list[str], **options: Any) -> Any:
        found = await self.client.session(session).ask_all(queries, **options)
        failed = palimpsest.PalimpsestError
        return {"answers": [{"error": one} if isinstance(one, failed) else one for one in found]}

    async def forget(self, session: str, positions: Any = (), **options: Any) -> Any:
        ranges = [(one["first"], one["last"]) for one in positions]
        found = await self.client.session(session).forget(positions=ranges, **options)
        operation = found.operation and found.operation.id
        return {
            "chunks": found.chunks,
            "positions": found.positions,
            "kept_out": found.kept_out,
            "operation": operation,
        }

    async def wait_operation(self, operation: str, **options: Any) -> Any:
        found = await self.client.operation(operation)
        await found.wait(**options)
        return found.info

    async def export_session(self, session: str, path: str) -> Any:
        await self.client.session(session).export(path)
        return {}

    async def import_session(self, path: str, session: str = "", **options: Any) -> Any:
        made = await self.client.import_session(path, session, **options)
        return await made.info()

    def _resource(self, session: str, memory: str) -> Any:
        if not session:
            return self.client
        found = self.client.session(session)
        return found.memory(memory) if memory else found

    async def set_budget(self, session: str = "", memory: str = "", **options: Any) -> Any:
        return await self._resource(session, memory).set_budget(**options)

    async def list_budgets(self, session: str = "") -> Any:
        return {"budgets": [one async for one in self._resource(session, "").budgets()]}

    async def delete_budget(self, session: str = "", memory: str = "", **options: Any) -> Any:
        await self._resource(session, memory).delete_budget(**options)
        return {}

    async def list_usage(self, session: str = "", memory: str = "", **options: Any) -> Any:
        if not session:
            return await self.client.usage(**options)
        return await self.client.session(session).usage(memory, **options)

    async def create_tree(self, session: str, memory: str, **options: Any) -> Any:
        made = await self.client.session(session).create_tree(memory, **options)
        return await made.look()

    def _tree(self, session: str, memory: str) -> palimpsest.Tree:
        return self.client.session(session).tree(memory)

    async def get_tree(self, session: str, memory: str, **options: Any) -> Any:
        return await self._tree(session, memory).outline(**options)

    async def get_node(self, session: str, memory: str, node: str) -> Any:
        return await self._tree(session, memory).node(node)

    async def list_nodes(self, session: str, memory: str, parent: str = "", level: int = 0) -> Any:
        tree = self._tree(session, memory)
        found = tree.children(parent) if parent else tree.level(level)
        return {"nodes": [one async for one in found]}

    async def get_node_text(self, session: str, memory: str, node: str) -> Any:
        return {"parts": [one async for one in self._tree(session, memory).text(node)]}

    async def seal_tree(self, session: str, memory: str, **options: Any) -> Any:
        return {"operation": (await self._tree(session, memory).seal(**options)).id}

    async def create_tenant(self, tenant: str, **options: Any) -> Any:
        return await self.client.access.create_tenant(tenant, **options)

    async def get_tenant(self, tenant: str = "") -> Any:
        return await self.client.access.tenant(tenant)

    async def list_tenants(self) -> Any:
        return {"tenants": [one async for one in self.client.access.tenants()]}

    async def update_tenant(self, tenant: str, **options: Any) -> Any:
        return await self.client.access.update_tenant(tenant, **retained(options))

    async def delete_tenant(self, tenant: str, **options: Any) -> Any:
        return await self.client.access.delete_tenant(tenant, **options)

    async def get_quota(self, tenant: str = "") -> Any:
        return await self.client.access.quota(tenant=tenant)

    async def update_quota(self, changes: Any, tenant: str = "") -> Any:
        return await self.client.access.update_quota(changes, tenant=tenant)

    async def create_key(self, scopes: Any, **options: Any) -> Any:
        return self._created(await self.client.access.create_key(scopes, **options))

    async def rotate_key(self, id: str, **options: Any) -> Any:
        return self._created(await self.client.access.rotate_key(id, **options))

    def _created(self, made: palimpsest.CreatedApiKey) -> Args:
        return {"key": made.key, "info": made.info}

    async def list_keys(self, tenant: str = "") -> Any:
        return {"keys": [one async for one in self.client.access.keys(tenant=tenant)]}

    async def revoke_key(self, id: str, **options: Any) -> Any:
        return await self.client.access.revoke_key(id, **options)

    async def list_erasures(self, tenant: str = "") -> Any:
        return {"erasures": [one async for one in self.client.access.erasures(tenant=tenant)]}

    async def get_erasure_receipt(self, id: str, tenant: str = "") -> Any:
        return await self.client.access.erasure_receipt(id, tenant=tenant)

    async def list_kept_out_texts(self, session: str) -> Any:
        return {"texts": [one async for one in self.client.access.kept_out_texts(session)]}

    async def allow_text(self, session: str, id: str) -> Any:
        return await self.client.access.allow_text(session, id)

    async def list_audit_events(self, **options: Any) -> Any:
        return {"events": [one async for one in self.client.access.audit_events(**options)]}

    async def check_audit_log(self, tenant: str = "") -> Any:
        sequence, digest, intact = 0, palimpsest.NO_DIGEST, True
        async for event in self.client.access.audit_events(tenant=tenant):
            intact = intact and event.follows(sequence, digest)
            sequence, digest = event.sequence, event.digest
        head = await self.client.access.audit_head(tenant=tenant)
        return {"events": sequence, "intact": intact and head.digest == digest}

    async def set_source_trust(self, source: str, trust: Any, session: str = "") -> Any:
        return await self.client.access.set_source_trust(source, trust, session=session)

    async def list_sources(self, session: str = "") -> Any:
        return {"sources": await self.client.access.sources(session)}

    async def quarantine_source(self, session: str, source: str) -> Any:
        return await self.client.access.quarantine_source(session, source)

    async def release_source(self, session: str, source: str) -> Any:
        return await self.client.access.release_source(session, source)


def retained(options: Args) -> Args:
    """Returns options with their retention as the client has it."""
    found = options.get("retention")
    return options if found is None else {**options, "retention": palimpsest.Retention(**found)}
