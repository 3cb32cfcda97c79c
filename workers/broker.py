"""What the application, its servers and their tests call the broker and its queues."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

DRAIN_TASK = "outbox.drain"
SEND_QUEUE = "outbox.send"
RESOLVE_QUEUE = "outbox.resolve"


def broker_url_of(redis_url: str) -> str:
    """Celery's spelling of a redis-py URL; the two differ for sockets only."""
    parts = urlsplit(redis_url)
    if parts.scheme != "unix":
        return redis_url
    database = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={database}"
