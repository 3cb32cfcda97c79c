"""Fingerprints, keys and requests of many intents, as one process computes them.

Run as a program it reads a pickled list of intents from stdin and writes the same as JSON: another
process, with another hash seed, must come to the same bytes.
"""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from outbox.errors import Invalid
from outbox.fingerprint import RULES
from outbox.intent import Draft, draft
from outbox.tool import Scope, WriteTool


@dataclass(frozen=True)
class Asked:
    """One enqueue as an application says it: which tool, whose, with what."""

    tool: str = "pay"
    once_per: str = "run"
    all_is_identity: bool = False
    tenant: str = "acme"
    run_id: str = "run"
    account: str = "default"
    epoch: str = "turn"
    occurrence: int = 0
    supersedes: UUID | None = None
    identity: Any = "in_1"
    guard: Any = 100
    free: Any = "memo"

    def drafted(self) -> Draft:
        """Raises ``Invalid``."""
        tool = WriteTool(
            self.tool,
            vendor="stripe",
            operation="customers.create",
            identity=() if self.all_is_identity else ("identity",),
            guard=() if self.all_is_identity else ("guard",),
            lane=("identity",),
            once_per=self.once_per,  # type: ignore[arg-type]
            request=lambda args: {"description": "fixed", "metadata": {"n": len(args)}},
        )
        scope = Scope(self.tenant, self.run_id, account=self.account, epoch=self.epoch)
        args = {"identity": self.identity, "guard": self.guard, "free": self.free}
        return draft(tool, scope, args, occurrence=self.occurrence, supersedes=self.supersedes)


def computed(asked: Asked) -> dict[str, Any]:
    """Every byte that another process would have to come to; or the field that is refused."""
    try:
        made = asked.drafted()
    except Invalid as refused:
        return {"refused": refused.field, "why": refused.problem}
    return {
        "id": str(made.id),
        "ever": {
            v: [r.fingerprint.hex(), r.key.hex()] for v, r in zip(RULES, made.ever, strict=True)
        },
        "texts": [made.identity, made.guard, made.args],
        "request": made.columns["request"],
        "lane": made.columns["lane"],
        "gate": made.columns["gate"],
    }


def main() -> None:
    """The program."""
    asked = pickle.load(sys.stdin.buffer)
    json.dump([computed(each) for each in asked], sys.stdout)


if __name__ == "__main__":
    main()
