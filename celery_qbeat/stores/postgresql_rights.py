"""Whether another role of a PostgreSQL database could misuse what we made in it."""

# Built from this package's own constants.
# ruff: noqa: S608

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from celery_qbeat.stores.triggers import POSTGRESQL_FUNCTIONS, POSTGRESQL_PATH

_NAMES = ", ".join(f"'{name}'" for name in POSTGRESQL_FUNCTIONS)

UNSAFE = f"""
SELECT DISTINCT f.proname, CASE WHEN pg_has_role(f.proowner, c.relowner, 'USAGE') THEN ''
 ELSE pg_get_userbyid(f.proowner) END
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc f ON f.oid = t.tgfoid
WHERE t.tgrelid IN (to_regclass('qbeat_jobs'), to_regclass('qbeat_workers'), to_regclass('qbeat_requests'))
 AND f.proname IN ({_NAMES}) AND (
  NOT f.prosecdef OR f.proconfig IS DISTINCT FROM ARRAY['search_path={POSTGRESQL_PATH}']
  OR has_function_privilege('public', f.oid, 'EXECUTE') OR NOT pg_has_role(f.proowner, c.relowner, 'USAGE'))
"""
"""The functions of our triggers that are unsafe, and their owner where it has no rights on the tables.

Unsafe: any role may set it on a table of its own, it finds functions and operators of other roles, or its owner, who
may change it at any time, has no rights on the tables. Functions of older versions are unsafe; those that were restored
without privileges (`pg_restore --no-privileges`) are, too.
"""

_SCHEMA = """
SELECT n.nspname, '' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('qbeat_jobs') AND has_schema_privilege('public', n.oid, 'CREATE')
"""

_HIDDEN = """
SELECT c.relname, '' FROM pg_class c
WHERE c.relrowsecurity AND starts_with(c.relname::text, 'qbeat_') AND pg_table_is_visible(c.oid)
 AND row_security_active(c.oid) AND NOT EXISTS (
  SELECT FROM pg_policy p, unnest(p.polroles) AS of_role WHERE p.polrelid = c.oid AND p.polcmd IN ('r', '*')
  AND CASE WHEN of_role = 0 THEN true ELSE pg_has_role(of_role, 'USAGE') END)
"""


@dataclass(frozen=True, slots=True)
class Rights:
    """What `inspect` found; each is empty when all is well.

    `trouble`: unsafe functions, which a migration makes anew. `hidden`: tables of which this role sees no row. With
    either no beat starts. `warning`: what is not for this package to change.
    """

    trouble: str = ""
    hidden: str = ""
    warning: str = ""


def inspect(connection: sa.Connection) -> Rights:
    """Look into the catalog, in one query; on other databases nothing is looked at."""
    if connection.dialect.name != "postgresql":
        return Rights()
    parts = (("function", UNSAFE), ("schema", _SCHEMA), ("table", _HIDDEN))
    query = " UNION ALL ".join(f"SELECT '{kind}', found.* FROM ({part}) found" for kind, part in parts)
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind, _ in parts}
    for kind, name, owner in connection.exec_driver_sql(query):
        found[kind].append((name, owner))
    return Rights(_trouble(sorted(found["function"])), _hidden(sorted(found["table"])), _warning(found["schema"]))


def _trouble(functions: list[tuple[str, str]]) -> str:
    foreign = [f"{name} belongs to {owner}" for name, owner in functions if owner]
    unsafe = [name for name, _ in functions]
    if foreign:
        return (
            f"the trigger function {foreign[0]}, a role without the rights of the tables' owner: drop the function "
            "(DROP FUNCTION ... CASCADE)"
        )
    if unsafe:
        return (
            f"the trigger functions {', '.join(unsafe)} are unsafe, because other roles could run them, or make them "
            "run something else"
        )
    return ""


def _hidden(hidden: list[tuple[str, str]]) -> str:
    if not hidden:
        return ""
    names = ", ".join(name for name, _ in hidden)
    return (
        f"row-level security shows this role no row of {names}, because no policy is for it: "
        "CREATE POLICY ... TO (this role) USING (true)"
    )


def _warning(schemas: list[tuple[str, str]]) -> str:
    if not schemas:
        return ""
    schema = schemas[0][0]
    return (
        f"every role may create objects in schema {schema!r}, and so make functions and operators that the SQL of "
        f'other roles then calls: REVOKE CREATE ON SCHEMA "{schema}" FROM PUBLIC'
    )
