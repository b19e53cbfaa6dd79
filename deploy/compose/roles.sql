-- Run by psql as the superuser when the volume is made: docs/guides/running.md#roles.
\set ON_ERROR_STOP on
\set owner_password `cat /run/secrets/owner_password`
\set service_password `cat /run/secrets/service_password`

-- What row-level security binds, and what sees only what has work. `migrate` would make them, with
-- a login that may create roles; this owner may not.
CREATE ROLE palimpsest_app NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;
CREATE ROLE palimpsest_sweeper NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE;

-- `migrate` uses this login.
CREATE ROLE palimpsest_owner LOGIN PASSWORD :'owner_password';
-- All other processes use this one.
CREATE ROLE palimpsest_service LOGIN PASSWORD :'service_password';
GRANT palimpsest_app, palimpsest_sweeper TO palimpsest_owner, palimpsest_service;

ALTER DATABASE :"DBNAME" OWNER TO palimpsest_owner;
REVOKE ALL ON DATABASE :"DBNAME" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"DBNAME" TO palimpsest_service;

-- The first takes a superuser; the second makes searches of long sessions fast.
CREATE EXTENSION IF NOT EXISTS vector;
CREATE EXTENSION IF NOT EXISTS btree_gin;
