"""The consuming side over a vendor that only a file describes: real ledger, real adapter, the
sandbox's JSON faces. Nothing runs by itself."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import requests

from outbox import Outbox, Scope, WriteTool
from outbox.contracts.keys import RENDERED_CHARS, rendered
from outbox.outcomes import Outcome
from outbox.store import intents
from resolvers.joining import join_once
from resolvers.receiving import receive
from tests.statements import Statements
from tests.vendors.recipe_calls import contracts_as_before
from tests.workers.floor import PRODUCTION, Floor
from vendors.sandbox import RECIPES
from vendors.sandbox.client import Sandbox
from workers.testing import open_box

SECRET = "whsec_" + base64.b64encode(b"a secret of Standard Webhooks").decode()
# The face of the sandbox that stands for each recipe's vendor.
FACES = {
    "payments": "keys",
    "contacts": "external_ids",
    "tickets": "references",
    "messages": "nothing",
}
# Reads that tell whose the credential is.
_ASKING = frozenset({"payments.account", "contacts.me", "account.retrieve"})
_number = iter(range(10**9))


@dataclass
class RecipeFloor(Floor):
    vendor: str = ""
    folder: Path = Path()

    def ask(self, tool: WriteTool, **args: Any) -> UUID:
        """One new intent in a run of its own."""
        outbox = Outbox(self.settings)
        connection = self.statements.connection()
        with connection.transaction():
            scope = Scope(tenant="acme", run_id=f"run-{next(_number)}")
            answer = outbox.enqueue(connection, tool, scope, args)
        outbox.close()
        return answer.intent_id

    def sent(self, intent_id: UUID) -> dict[str, Any]:
        """The frozen request."""
        frozen: dict[str, Any] = json.loads(self.row(intent_id)["request"])
        return frozen

    def keys(self, intent_id: UUID) -> set[str]:
        """The intent's key in every rendering."""
        key = bytes(self.row(intent_id)["key"])
        return {rendered(key, rendering) for rendering in RENDERED_CHARS}

    def effects(self, intent_id: UUID) -> int:
        found = self.sandbox.oracle(self.account)["effects_by_intent"]
        names = {str(intent_id), *(f"acct_{self.account}:{k}" for k in self.keys(intent_id))}
        return sum(int(found[name]["count"]) for name in names if name in found)

    def posts(self, intent_id: UUID | None = None) -> list[dict[str, Any]]:
        rows = self.sandbox.requests(self.account)
        wanted = self.keys(intent_id) if intent_id else None
        return [
            r
            for r in rows
            if r["method"] == "POST"
            and r["origin"] == "client"
            and (wanted is None or r["key"] in wanted)
        ]

    def reads(self) -> list[dict[str, Any]]:
        rows = [r for r in self.sandbox.requests(self.account) if r["method"] == "GET"]
        return [r for r in rows if r["operation"] not in _ASKING]

    def perform(self, intent_id: UUID) -> Outcome:
        """One call of the adapter for the row as it is, past every gate of the ledger."""
        with self.store.transaction() as tx:
            row = intents.read(tx, intent_id)
        reached = self.directory.reach(self.vendor, "default")
        assert row is not None
        assert reached is not None
        return reached[0].perform(row.call(reached[1]))

    def until_due(self, intent_id: UUID) -> None:
        """Time passes until the row is due, and one round of everything is done."""
        self.jump(intent_id)
        self.round()


@contextmanager
def open_recipe_floor(
    database: str,
    sandbox: Sandbox,
    vendor: str,
    folder: Path,
    env: Mapping[str, str] = PRODUCTION,
    changes: Mapping[str, str] | None = None,
) -> Iterator[RecipeFloor]:
    """A floor for one recipe; ``changes`` replaces parts of its text."""
    files = files_of(sandbox, vendor, folder, changes)
    with contracts_as_before(), open_box(database, sandbox, {**env, **files}) as box:
        floor = RecipeFloor(box, Statements(database), vendor=vendor, folder=folder)
        try:
            yield floor
        finally:
            for sender in floor.senders:
                sender.close()
            for looker in floor.lookers:
                looker.close()
            floor.statements.close()
    assert [v for v in floor.violations() if v["check"] not in floor.provoked] == []


def files_of(
    sandbox: Sandbox,
    vendor: str,
    folder: Path,
    changes: Mapping[str, str] | None = None,
    **account: str,
) -> dict[str, str]:
    """The settings of one vendor that its recipe describes, at the sandbox; ``account`` adds to
    its account and replaces. The credential is the box's."""
    text = (RECIPES / f"{vendor}.toml").read_text()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    recipe, accounts = folder / f"{vendor}.toml", folder / "accounts"
    recipe.write_text(text)
    fields = {
        "mode": "test",
        "base_url": sandbox.json_url(FACES[vendor]),
        # Who can be asked whose it is, is asked.
        **({} if "[whoami]" in text else {"vendor_account": "acct_told"}),
        **({} if "credential" in account else {"credential_env": "STRIPE_API_KEY"}),
        **account,
    }
    lines = [f'{name} = "{value}"' for name, value in fields.items()]
    secrets = f'webhook_secrets = ["{SECRET}"]'
    accounts.write_text("\n".join([f"[{vendor}.default]", *lines, secrets]))
    return {"OUTBOX_VENDORS": str(recipe), "OUTBOX_ACCOUNTS": str(accounts)}


@contextmanager
def hooks(floor: RecipeFloor) -> Iterator[list[int]]:
    """The vendor's webhooks, received over HTTP by this floor; yields the statuses answered."""
    answered: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, _ = receive(
                floor.store,
                floor.directory,
                vendor=floor.vendor,
                account="default",
                headers=dict(self.headers.items()),
                body=body,
            )
            answered.append(status)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/webhooks/{floor.vendor}/default"
        floor.sandbox.add_endpoint(floor.account, url, SECRET)
        yield answered
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def delivered(floor: RecipeFloor) -> None:
    """Every event of the vendor has arrived, and is joined."""
    assert floor.sandbox.wait_for_deliveries(floor.account)
    join_once(floor.store, floor.directory)


def post(floor: RecipeFloor, path: str, body: dict[str, Any], key: str) -> int:
    """A write of somebody else under a key of ours; returns the status."""
    url = floor.sandbox.json_url(FACES[floor.vendor]) + path
    headers = {
        "Authorization": f"Bearer {floor.sandbox.api_key(floor.account)}",
        "Idempotency-Key": key,
    }
    return requests.post(url, json=body, headers=headers, timeout=10).status_code
