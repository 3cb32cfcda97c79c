"""Drills: each shows on real parts what the outbox promises, beside what others do."""
