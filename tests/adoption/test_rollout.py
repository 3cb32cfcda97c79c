"""A roll-out: the schema first, then processes of two releases side by side for a while.

The release before is this repository's own history, run from its files beside ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from outbox import schema
from tests.workers.floor import new_account, query, wait_until
from vendors.sandbox.client import Sandbox

# The last commit of revision 1_0001: what the migrations after it must not break.
PREVIOUS = "e806951"
HERE = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.heavy

ENQUEUE = """
import sys
import psycopg
from outbox import Outbox, Scope, WriteTool

outbox = Outbox.from_env()
charge = WriteTool("charge_invoice", vendor="stripe", operation="payment_intents.create",
                   side_effect="charge", identity=("invoice_id",),
                   guard=("amount", "currency", "customer"), money=("amount", "currency"),
                   lane=("customer",), on_doubt="hold")
args = {"amount": 4900, "currency": "usd", "customer": "cus_demo", "confirm": True,
        "payment_method": "pm_card_visa"}
with psycopg.connect(outbox.settings.database_url.replace("+psycopg", "")) as connection:
    for invoice in sys.argv[1:]:
        scope = Scope(tenant="acme", run_id="roll-out")
        print(outbox.enqueue(connection, charge, scope, {**args, "invoice_id": invoice}).intent_id)
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the release before."""
    packed = subprocess.run(
        ["git", "archive", PREVIOUS], cwd=HERE, capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip("the release before is not in this copy's history")
    folder = tmp_path_factory.mktemp("previous")
    # By the program: the module's safe way is not in every Python that is supported.
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


class Rollout:
    """One database, one vendor account, and programs of either release."""

    def __init__(self, database: str, sandbox: Sandbox, previous: Path, pages: Path) -> None:
        self.database, self.sandbox, self.previous = database, sandbox, previous
        self.account = new_account()
        sandbox.set_account(self.account, any_customer=True)
        self.env: Mapping[str, str] = {
            "PATH": os.environ["PATH"],
            "DATABASE_URL": database,
            "OUTBOX_PROFILE": "demo",
            "OUTBOX_PAGERS": f"file:{pages}",
            "STRIPE_API_KEY": sandbox.api_key(self.account),
            "STRIPE_API_BASE": sandbox.url,
        }

    def command(self, release: Path, *args: str) -> list[str]:
        main = "from workers.cli import main; main()"
        return [sys.executable, "-c", main, *args]

    def environment(self, release: Path) -> dict[str, str]:
        return {**self.env, "PYTHONPATH": str(release)}

    def run(self, release: Path, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(release, *args),
            env=self.environment(release), cwd=release, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    @contextmanager
    def worker(self, release: Path) -> Iterator[subprocess.Popen[bytes]]:
        """A polling worker, ready to send."""
        process = subprocess.Popen(
            self.command(release, "worker"),
            env=self.environment(release), cwd=release, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            said = b""
            while b"ready to send" not in said:
                line = process.stderr.readline()
                assert line, said.decode()
                said += line
            yield process
        finally:
            process.kill()
            process.wait()
            process.stderr.close()

    def enqueue(self, release: Path, *invoices: str) -> list[UUID]:
        done = subprocess.run(
            [sys.executable, "-c", ENQUEUE, *invoices],
            env=self.environment(release), cwd=release, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [UUID(line) for line in done.stdout.split()]

    def settled(self) -> bool:
        unsettled = "SELECT id FROM outbox.intents WHERE settled_at IS NULL"
        return not query(self.database, unsettled)


@pytest.fixture
def rollout(database: str, sandbox: Sandbox, previous: Path, tmp_path: Path) -> Rollout:
    return Rollout(database, sandbox, previous, tmp_path / "pages.jsonl")


def test_the_release_before_goes_on_and_starts_again_on_the_newer_schema(rollout: Rollout) -> None:
    assert schema.current(rollout.database) == schema.head() != "1_0001"
    for args in (("schema", "check"), ("schema", "upgrade"), ("intent", "list")):
        ran = rollout.run(rollout.previous, *args)
        assert ran.returncode == 0, ran.stderr
    assert schema.current(rollout.database) == schema.head()
    for n in range(2):
        with rollout.worker(rollout.previous):
            rollout.enqueue(rollout.previous, f"in_{n}")
            wait_until(rollout.settled)


def test_agents_and_workers_of_two_releases_do_each_write_once(rollout: Rollout) -> None:
    for fault in ("lost_ack", "rate_limited_429", "late_commit", "lost_request"):
        rollout.sandbox.fault(fault, account=rollout.account, attempts=[1], times=3, after_s=1.0)
    invoices = [f"in_{n}" for n in range(10)]
    with rollout.worker(rollout.previous) as old, rollout.worker(HERE):
        ids = rollout.enqueue(rollout.previous, *invoices)
        (one_more,) = rollout.enqueue(HERE, "in_new")
        assert rollout.enqueue(HERE, *invoices) == ids
        old.kill()  # in the middle of it, as a deploy does
        with rollout.worker(rollout.previous):
            wait_until(rollout.settled)
    effects = rollout.sandbox.oracle(rollout.account)["effects_by_intent"]
    counted = {UUID(name): one["count"] for name, one in effects.items()}
    assert counted == dict.fromkeys((*ids, one_more), 1)
    assert rollout.sandbox.oracle(rollout.account)["violations"] == []
    lanes = query(rollout.database, "SELECT DISTINCT lane FROM outbox.intents")
    assert len(lanes) == 1  # whichever release wrote the row
