"""What a person was shown: the pages as they lie in the file, held against the questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Whoever holds a question is shown nothing until then; a page that its group tells of is not sent.
QUESTIONS = """
SELECT e.id, e.reasons, e.closed_at, COALESCE(
    GREATEST(e.muted_until, e.acked_until) > outbox.clock(), false) AS held,
    EXISTS (SELECT FROM outbox.pages p WHERE p.escalation_id = e.id AND p.state = 'dropped'
        AND starts_with(p.detail, 'in group:')) AS grouped
FROM outbox.escalations e ORDER BY e.opened_at, e.id
"""


def problems(path: Path, questions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was to be shown and was not, once everything that was due has been sent."""
    lines = path.read_text().splitlines() if path.exists() else []
    pages = [json.loads(line) for line in lines]
    shown = [page["dedup_key"] for page in pages if page["action"] == "trigger"]
    resolved = {page["dedup_key"] for page in pages if page["action"] == "resolve"}
    for question in questions:
        if question["grouped"]:
            continue
        if question["closed_at"] is None:
            if not question["held"]:
                yield from _unseen(question, shown)
            continue
        left = [key for key in shown if _is_of(question, key) and key not in resolved]
        if left:
            yield f"{left[0]} is shown still, and its question is closed"


def _unseen(question: Mapping[str, Any], shown: Sequence[str]) -> Iterator[str]:
    for reason in question["reasons"]:
        key = f"outbox:{question['id']}:{reason}"
        if not any(one == key or one.startswith(f"{key}:") for one in shown):
            yield f"a question is open ({reason}), and nobody was paged"


def _is_of(question: Mapping[str, Any], key: str) -> bool:
    return key.startswith(f"outbox:{question['id']}:")
