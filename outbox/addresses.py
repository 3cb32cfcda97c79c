"""Addresses as people write them, read before anything connects to one."""

from __future__ import annotations

from urllib.parse import urlsplit

from outbox.errors import Invalid

_LAST_PORT = 65535


def database_url(raw: str) -> str:
    """A Postgres URL as psycopg and SQLAlchemy read it; ``Invalid`` for anything else."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo

    scheme, _, rest = raw.partition(":")
    if scheme.lower() not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise Invalid("DATABASE_URL", "must begin with postgres:// or postgresql://")
    url = f"postgresql+psycopg:{rest}"
    try:
        known = conninfo_to_dict(f"postgresql:{rest}")
        timeout_from_conninfo(known)
        ports = [int(port or 0) for port in str(known.get("port", "")).split(",")]
    except (ValueError, ProgrammingError):
        # Their words quote what they could not read: a part of the password, perhaps.
        raise Invalid(
            "DATABASE_URL",
            "cannot be read: postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with % written as "
            "%25, and after ? only options that libpq knows",
        ) from None
    if not known.get("host"):
        raise Invalid("DATABASE_URL", "names no host")
    if not all(0 <= port <= _LAST_PORT for port in ports):
        raise Invalid("DATABASE_URL", f"its port must be 1 to {_LAST_PORT}")
    return url


def scheme_of(url: str) -> str:
    """What an address begins with; empty where it is none."""
    try:
        parts = urlsplit(url)
        return parts.scheme if parts.port is None or parts.port > 0 else ""
    except ValueError:  # brackets that do not match, a port that is no number
        return ""
