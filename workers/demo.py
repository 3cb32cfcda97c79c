"""``outbox demo``: every fault at once, on real parts, in real time; and what others make of it."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outbox import Outbox, Scope, Settings, WriteTool, schema
from outbox.answers import Answer
from outbox.settings import process_environment
from outbox.store import reading
from outbox.store.connection import Store, Transaction
from vendors.sandbox.client import Sandbox
from workers.demo_faults import Fault, arm, faults, parameters
from workers.demo_others import STRATEGIES, Client
from workers.demo_table import Row, show
from workers.servers import Servers
from workers.stack import VERBS, Stack

_LIMIT_S = 75.0
_TICK_S = 0.25
# Long enough for the demo's replay window (30 s of it usable) to have closed.
_WINDOW_OPENS_READS_S = 33.0
# So many open rows are named in a line of progress, which must fit a terminal.
_NAMES = 3
_SECRET = "whsec_demo"  # noqa: S105 - the sandbox's, which guards nothing

CHARGE = WriteTool(
    "charge_invoice",
    vendor="stripe",
    operation="payment_intents.create",
    side_effect="charge",
    identity=("invoice_id",),
    guard=("amount", "currency", "customer"),
    money=("amount", "currency"),
)


def run(*, as_json: bool = False) -> int:
    """Runs the demo and prints its table. The exit code is 0 only if every row of ours is one of
    the allowed ones, else 3. Uses neither ``DATABASE_URL`` nor ``REDIS_URL``."""
    shown = faults()
    with contextlib.ExitStack() as stopping:
        folder = Path(stopping.enter_context(tempfile.TemporaryDirectory()))
        rows = _Demo(folder, shown, stopping).run()
    show(rows, shown, as_json=as_json)
    return 0 if all(r.ok for r in rows if r.strategy == "outbox") else 3


class _Demo:
    def __init__(
        self,
        folder: Path,
        shown: tuple[Fault, ...],
        stopping: contextlib.ExitStack,
    ) -> None:
        self.faults = shown
        self._began = time.monotonic()
        self._patience = threading.Event()
        self._log = (folder / "processes.log").open("a", encoding="utf-8")
        stopping.callback(self._log.close)
        self._say("starting Postgres, Valkey and the sandbox vendor")
        self.servers = stopping.enter_context(Servers.start(None))
        schema.upgrade(self.servers.database_url)
        self.sandbox = stopping.enter_context(Sandbox.start(folder / "vendor.sqlite"))
        self.pages = folder / "pages.jsonl"
        self.settings = self._settings(folder)
        self.outbox = Outbox(self.settings)
        stopping.callback(self.outbox.close)
        self.store = Store(self.settings)
        stopping.callback(self.store.close)
        self.stack = Stack(self.servers, self._env, echo=self._echo)
        stopping.callback(self.stack.stop)

    def _settings(self, folder: Path) -> Settings:
        accounts = folder / "accounts.toml"
        accounts.write_text(
            "".join(
                f"[stripe.{fault.name}]\n"
                f'credential = "{self.sandbox.api_key("outbox-" + fault.name)}"\n'
                f'base_url = "{self.sandbox.url}"\n'
                f'webhook_secrets = ["{_SECRET}"]\n'
                for fault in self.faults
            ),
            encoding="utf-8",
        )
        plain = {
            name: value
            for name, value in process_environment().items()
            if not name.startswith(("OUTBOX_", "STRIPE_")) and name != "PORT"
        }
        self._env = {
            **plain,
            "DATABASE_URL": self.servers.database_url,
            "REDIS_URL": self.servers.redis_url,
            "OUTBOX_ACCOUNTS": str(accounts),
            "OUTBOX_PAGERS": f"file:{self.pages}",
            "OUTBOX_PROFILE": "demo",
            "PORT": "0",
        }
        return Settings.from_env(self._env)

    def run(self) -> list[Row]:
        """All faults, all strategies, to the last settled row."""
        self.stack.start(*VERBS)
        for fault in self.faults:
            for strategy in ("outbox", *STRATEGIES):
                arm(self.sandbox, fault.name, f"{strategy}-{fault.name}")
            url = f"{self.stack.said('web')}/webhooks/stripe/{fault.name}"
            self.sandbox.add_endpoint(f"outbox-{fault.name}", url, _SECRET)
        with ThreadPoolExecutor(len(STRATEGIES) * len(self.faults)) as pool:
            others = self._start_others(pool)
            answers = self._start_ours()
            self._wait_for_ours(answers)
            told_by_others = {key: future.result() for key, future in others.items()}
        self._say("reading the vendor's ledger")
        rows = [self._our_row(fault, answers[fault.name]) for fault in self.faults]
        return rows + [self._row(*key, told) for key, told in told_by_others.items()]

    # -- ours --------------------------------------------------------------------------------

    def _start_ours(self) -> dict[str, Answer]:
        """The killed worker first: its row is on the wire when the others are enqueued."""
        self._say("enqueuing; killing the worker with a call on the wire (kill -9)")
        answers = {"worker_killed": self._enqueue("worker_killed")}
        account = "outbox-worker_killed"
        self._until(lambda: bool(self.sandbox.effects(account)))
        self.stack.kill("worker")
        for fault in self.faults:
            answers.setdefault(fault.name, self._enqueue(fault.name))
        self.stack.start("worker")
        return answers

    def _enqueue(self, fault: str) -> Answer:
        args = {"invoice_id": f"in_{fault}", **parameters(fault)}
        scope = Scope(tenant="demo", run_id="run_1", account=fault)
        with self.store.transaction() as tx:
            answer = self.outbox.enqueue(tx.connection, CHARGE, scope, args)
        self.outbox.ring()
        return answer

    def _wait_for_ours(self, answers: dict[str, Answer]) -> None:
        """Until each row is settled, or a person has been paged and nothing more can be known."""
        ids = {answer.intent_id: name for name, answer in answers.items()}
        reads_open = False
        last = ""
        while True:
            with self.store.transaction() as tx:
                rows = {ids[r.id]: r for r in reading.intents(tx, limit=len(ids)) if r.id in ids}
                first = rows["window_closed"].first_sent_at
                closed_s = reading.age_s(tx, first) if first else 0.0
            if closed_s > _WINDOW_OPENS_READS_S and not reads_open:
                self.sandbox.clear_faults("outbox-window_closed")
                reads_open = True
            open_ = sorted(n for n, r in rows.items() if r.settled_at is None)
            more = [f"{len(open_) - _NAMES} more"] if len(open_) > _NAMES else []
            names = ", ".join([*open_[:_NAMES], *more])
            summary = f"{len(rows) - len(open_)} of {len(rows)} settled; open: {names}"
            if summary != last and len(open_) < len(rows):
                self._say(summary)
                last = summary
            if open_ in ([], ["lost_for_ever"]) and self._paged("lost_for_ever", answers):
                return
            if time.monotonic() - self._began > _LIMIT_S:
                self._say("time is up")
                return
            self._patience.wait(_TICK_S)

    def _paged(self, fault: str, answers: dict[str, Answer]) -> bool:
        with self.store.transaction() as tx:
            return self._pages(tx, answers[fault]) > 0

    def _pages(self, tx: Transaction, answer: Answer) -> int:
        """Pages as the pager's own file has them."""
        escalation = reading.escalation_of(tx, answer.intent_id)
        if escalation is None or not self.pages.exists():
            return 0
        lines = [json.loads(line) for line in self.pages.read_text("utf-8").splitlines()]
        mark = str(escalation["id"])
        return sum(1 for p in lines if p["action"] == "trigger" and mark in p["dedup_key"])

    def _our_row(self, fault: Fault, answer: Answer) -> Row:
        told = self.outbox.wait(answer, timeout_s=0)
        account = f"outbox-{fault.name}"
        with self.store.transaction() as tx:
            (row,) = [r for r in reading.intents(tx, limit=100) if r.id == answer.intent_id]
            pages = self._pages(tx, answer)
            open_ = reading.escalation_of(tx, answer.intent_id)
        effects = self._effects(account)
        seen = {"told": told.told, "status": row.status, "effects": effects}
        asked = open_ is not None and open_["closed_at"] is None
        ok = seen in [dict(a) for a in fault.allowed]
        ok = ok and (row.settled_at is not None or asked) and (not fault.paged or pages > 0)
        ok = ok and not self.sandbox.oracle(account)["violations"]
        return Row(
            "outbox",
            fault.name,
            self._posts(account),
            effects,
            told.told,
            row.status,
            row.settled_by or "",
            pages,
            ok,
        )

    # -- the others --------------------------------------------------------------------------

    def _start_others(self, pool: ThreadPoolExecutor) -> dict[tuple[str, str], Future[str]]:
        started = {}
        for strategy in STRATEGIES:
            for fault in self.faults:
                client = Client(
                    self.sandbox.api_key(f"{strategy}-{fault.name}"),
                    self.sandbox.url,
                    self.settings.policy.call_deadline_s,
                    self._patience.wait,
                )
                started[strategy, fault.name] = pool.submit(
                    client.run, strategy, parameters(fault.name), f"in_{fault.name}"
                )
        return started

    def _row(self, strategy: str, fault: str, told: str) -> Row:
        account = f"{strategy}-{fault}"
        effects = self._effects(account)
        honest = effects == (1 if told == "settled" else 0)
        return Row(strategy, fault, self._posts(account), effects, told, "", "", 0, honest)

    def _effects(self, account: str) -> int:
        return sum(1 for e in self.sandbox.effects(account) if e["outcome"] == "applied")

    def _posts(self, account: str) -> int:
        """Requests that the client put on the wire; a transport's own copies are not its doing."""
        return sum(
            1
            for r in self.sandbox.requests(account)
            if r["method"] == "POST" and r["origin"] == "client"
        )

    # -- talk --------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", file=sys.stderr, flush=True)

    def _echo(self, verb: str, line: str) -> None:
        self._log.write(f"{verb} | {line}\n")

    def _until(self, true: Any) -> None:
        while not true():
            if time.monotonic() - self._began > _LIMIT_S:
                return
            self._patience.wait(_TICK_S)
