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
SELECT n.nspname, '*' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass('qbeat_jobs') AND has_schema_privilege('public', n.oid, 'CREATE')
"""


@dataclass(frozen=True, slots=True)
class Rights:
    """What `inspect` found: `trouble` keeps a beat from starting, `warning` does not. Empty when all is well."""

    trouble: str = ""
    warning: str = ""


def inspect(connection: sa.Connection) -> Rights:
    """Look into the catalog, in one query; on other databases nothing is looked at."""
    if connection.dialect.name != "postgresql":
        return Rights()
    rows = connection.exec_driver_sql(f"{UNSAFE} UNION ALL {_SCHEMA}").all()
    schemas = [name for name, mark in rows if mark == "*"]
    foreign = [f"{name} belongs to {owner}" for name, owner in sorted(rows) if owner not in ("", "*")]
    unsafe = sorted(name for name, owner in rows if owner != "*")
    return Rights(_trouble(unsafe, foreign), _warning(schemas[0]) if schemas else "")


def _trouble(unsafe: list[str], foreign: list[str]) -> str:
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


def _warning(schema: str) -> str:
    return (
        f"every role may create objects in schema {schema!r}, and so make functions and operators that the SQL of "
        f'other roles then calls: REVOKE CREATE ON SCHEMA "{schema}" FROM PUBLIC'
    )
