"""Alembic migrations of schema ``outbox``; shipped as ``outbox._migrations``."""
