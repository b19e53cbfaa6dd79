"""What the database's catalogues list is kept apart by tenant, or says why it need not be."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import ROOT
from tests.support.harness import Servers

#: Tables that belong to no tenant, and why.
OF_NO_TENANT = {
    "alembic_version": "the number of the newest migration",
    "deployment": "one row: keys that sign tokens and mark texts",
    "process": "unused; the next release drops it",
    "model_condition": "circuits of models, whose cause has no text of a tenant",
    "worker": "heartbeats of workers",
    "claim": "which worker has which item, by keys alone",
}
#: Tables with a tenant that the role of all tenants writes, for dispatch, and why.
OF_DISPATCH = {
    "wanted": "which memories a read waits for, by keys alone",
    "tenant_turn": "how much work each tenant had, in seconds",
}
APART = {*OF_NO_TENANT, *OF_DISPATCH}
#: Functions that run with the rights of their owner, and why.
DEFINERS = {"is_claimed": "compares keys of an item with claims, which belong to no tenant"}
#: Columns of content or secrets: the role that sees all tenants may not read them. Of the hash
#: of a key it may: it is looked up before its tenant is known.
SWEEPER_READS = {"secret_hash", "response", "error", "digest", "trace_id", "span_id"}
CONTENT_TYPES = ("jsonb", "bytea", "tsvector")
#: Shapes of keys in Redis, and what keeps those of tenants apart.
REDIS_KEYS = {
    "pc:{}:seg": "the id of a memory, which is made of its tenant",
    "pc:d:{}:{}": "a deployment of a model: how busy it is, without a text",
    "s:{}": "the end of such a key",
    "palimpsest:quota:{}:{}": "the id of a tenant",
    "palimpsest:slots:{}:{}": "the id of a tenant",
    "pc:g:{}:seg": "a keyed hash over tenant, model and the beginning of a prompt",
}

TABLES = """
SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity AS is_secured,
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id'
        AND NOT a.attisdropped AND a.attnotnull) AS has_tenant,
    EXISTS (SELECT FROM pg_policies p WHERE p.tablename = c.relname AND p.permissive = 'PERMISSIVE'
        AND 'palimpsest_app' = ANY (p.roles) AND p.qual LIKE '%%tenant_id = %%app.tenant%%'
        AND p.with_check LIKE '%%tenant_id = %%app.tenant%%') AS has_policy,
    (SELECT count(*) FROM pg_policies p WHERE p.tablename = c.relname
        AND p.permissive = 'PERMISSIVE' AND NOT 'palimpsest_sweeper' = ANY (p.roles)) AS policies
FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'f')
"""
VIEWS = """
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
    AND (relkind = 'm' OR relkind = 'v'
        AND NOT coalesce('security_invoker=true' = ANY (reloptions), false))
"""
FUNCTIONS = """
SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
"""
SWEEPER_COLUMNS = """
SELECT g.table_name, g.column_name, c.data_type
FROM information_schema.column_privileges g
JOIN information_schema.columns c USING (table_schema, table_name, column_name)
WHERE g.grantee = 'palimpsest_sweeper' AND g.privilege_type = 'SELECT'
    AND g.table_schema = 'public'
"""
SUPERPOWERS = """
SELECT rolname FROM pg_roles WHERE rolname IN ('palimpsest_app', 'palimpsest_sweeper')
    AND (rolsuper OR rolbypassrls OR rolcanlogin OR rolcreaterole)
"""


@pytest.fixture(scope="module")
def catalogue(servers: Servers) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """Yields a connection to a migrated database, as a superuser."""
    url = servers.new_database()
    with psycopg.connect(servers.as_superuser(url)) as connection:
        yield connection


def broken(catalogue: "psycopg.Connection[tuple[object, ...]]") -> dict[str, tuple[object, ...]]:
    """Returns the tables that are not kept apart."""
    found = {str(name): tuple(rest) for name, *rest in catalogue.execute(TABLES)}
    assert len(found) > 40
    return {name: rest for name, rest in found.items() if rest[:3] != (True, True, True)}


def test_every_table_is_of_a_tenant(catalogue: "psycopg.Connection[tuple[object, ...]]") -> None:
    assert set(broken(catalogue)) == APART


def test_no_policy_lets_a_tenant_see_more(
    catalogue: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    """Permissive policies add up: besides that of the tenant there may be none for the service."""
    several = {name: number for name, *_, number in catalogue.execute(TABLES) if number != 1}
    assert set(several) <= APART


def test_every_view_has_the_rights_of_its_reader(
    catalogue: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    assert catalogue.execute(VIEWS).fetchall() == []


def test_functions_have_the_rights_of_their_caller(
    catalogue: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    assert {name for (name,) in catalogue.execute(FUNCTIONS)} == set(DEFINERS)


def test_the_roles_do_not_bypass_policies(
    catalogue: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    assert catalogue.execute(SUPERPOWERS).fetchall() == []


def test_the_role_that_sees_all_tenants_reads_no_content(
    catalogue: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    found = catalogue.execute(SWEEPER_COLUMNS).fetchall()
    assert len(found) > 60
    content = {
        column
        for table, column, kind in found
        if kind in CONTENT_TYPES and (table, column) != ("tenant", "retention")
    }
    assert content <= SWEEPER_READS
    named = {"text", "thought", "action", "observation", "value", "words", "query", "prompt"}
    assert not named & {column for _, column, _ in found}


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE extra (n int)",
        "CREATE TABLE extra (tenant_id uuid NOT NULL)",
        "ALTER TABLE budget NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY budget_of_tenant ON budget",
    ],
)
def test_a_new_table_without_a_tenant_fails(
    catalogue: "psycopg.Connection[tuple[object, ...]]", change: str
) -> None:
    with catalogue.transaction(force_rollback=True):
        catalogue.execute(change)
        assert set(broken(catalogue)) - APART == {"extra" if "extra" in change else "budget"}


def redis_shapes() -> set[str]:
    """Returns the shapes of keys in the modules that write to Redis."""
    found: set[str] = set()
    for path in (ROOT / "storage").rglob("*.py"):
        source = path.read_text()
        if "redis_link" in source:
            found |= shapes_in(path, source)
    return found


def shapes_in(path: Path, source: str) -> set[str]:
    """Returns the formatted texts with a colon and no blank in them, with {} for what varies."""
    shapes = set()
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.JoinedStr):
            parts = (
                re.sub(r"[{}]", "", str(part.value)) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
            text = "".join(parts)
            if ":" in text and " " not in text:
                shapes.add(text)
    return shapes


def test_every_key_in_redis_is_of_a_tenant_s_memory_or_hash() -> None:
    found = redis_shapes()
    assert "pc:{}:seg" in found
    assert found <= set(REDIS_KEYS)
