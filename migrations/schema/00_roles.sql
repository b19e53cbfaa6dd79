-- The two roles that the service's processes take on. Their own login only has to be a member.
--
-- palimpsest_app       does the service's work. Row-level security shows it the rows of one tenant.
-- palimpsest_sweeper   sees of all tenants what there is to do, and little else.
--
-- How the rows of tenants are kept apart: every table that has them has the column tenant_id and a
-- policy NAME_of_tenant, which compares it with the setting app.tenant of the transaction. An unset
-- tenant raises an error instead of matching nothing: both fail closed, and this one is noticed.
-- FORCE binds the owner of the tables as well.
--
-- How rows are kept from being lost: what only the removal of a deleted session or memory may
-- delete has a restrictive policy NAME_removed besides, which asks for a row in `removal`.

DO $$
DECLARE
    role text;
    able boolean;
BEGIN
    FOREACH role IN ARRAY ARRAY['palimpsest_app', 'palimpsest_sweeper'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
                EXECUTE format(
                    'CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE', role);
            END IF;
            -- Since PostgreSQL 16 being a member and being able to SET ROLE are two things.
            able := pg_has_role(current_user, role, CASE
                WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET'
                ELSE 'MEMBER'
            END);
            IF NOT able THEN
                EXECUTE format('GRANT %I TO %I', role, current_user);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            -- Another database of this server creates the same role at this moment.
            NULL;
        END;
    END LOOP;
END
$$;

GRANT USAGE ON SCHEMA public TO palimpsest_app, palimpsest_sweeper;
-- Every process checks at its start that the database is not behind.
GRANT SELECT ON alembic_version TO palimpsest_app;
