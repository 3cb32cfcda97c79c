"""What the measurements stand on: the vendor that falls ill, the large backlog, the memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from outbox import Outbox, Scope
from outbox.contract import Account, Call
from outbox.outcomes import Absent, Found, Lost, NotSent, Receipt
from outbox.store.claims import Claimer
from outbox.store.connection import Store
from resolvers.directory import Directory
from resolvers.doctoring import findings
from tests.bench import vendor
from tests.bench.backlog import Owner, pile_up
from tests.bench.effects import Ledger
from tests.bench.fairness import p99
from tests.bench.memory import pss_bytes
from tests.bench.stage import Place
from tests.statements import Statements
from vendors.registry import build

_ACCOUNT = Account("default", "test", credential="none", vendor_account=vendor.OWNER)
_PARENT = """
import subprocess, sys
child = "import sys; kept = bytearray(b'x' * 2**25); print('there', flush=True); sys.stdin.read()"
subprocess.run([sys.executable, "-c", child])
"""


def call(intent_id: UUID | None = None) -> Call:
    """One write of a bench vendor's."""
    intent_id = intent_id or uuid4()
    key = intent_id.bytes * 2
    return Call(intent_id, key, "writes.create", "POST", "/writes", "1", {}, _ACCOUNT)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds the vendor of a name that writes into the test's folder."""
    vendor.install()
    monkeypatch.setenv(vendor.LEDGER, str(tmp_path))
    return build


def test_one_answer_of_so_many_is_lost_after_its_effect(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(vendor.LOST_EVERY, "3")
    adapter = built(vendor.NAME)
    kinds = [type(adapter.perform(call())) for _ in range(6)]
    assert kinds == [Receipt, Receipt, Lost] * 2
    assert len(Ledger(tmp_path)) == 6


def test_a_patient_that_is_down_takes_nothing_and_one_that_is_well_again_does(
    built: Any, tmp_path: Path
) -> None:
    patient = built(vendor.PATIENT)
    vendor.fall(tmp_path, "down")
    assert isinstance(patient.perform(call()), NotSent)
    assert len(Ledger(tmp_path)) == 0
    vendor.fall(tmp_path, "well")
    assert isinstance(patient.perform(call()), Receipt)
    assert len(Ledger(tmp_path)) == 1


def test_only_the_patient_is_slow(
    built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("tests.bench.vendor.time.sleep", waited.append)
    vendor.fall(tmp_path, "slow")
    built(vendor.NAME).perform(call())
    assert waited == []
    built(vendor.PATIENT).perform(call())
    assert waited == [vendor.SLOW_S]


def test_a_look_up_finds_what_any_process_has_written_down_by_now(
    built: Any, tmp_path: Path
) -> None:
    adapter, there, later = built(vendor.NAME), call(), call()
    adapter.perform(there)
    assert isinstance(adapter.look_up(there, 0), Found)
    assert isinstance(adapter.look_up(later, 0), Absent)
    adapter.perform(later)
    assert isinstance(adapter.look_up(later, 0), Found)
    # What another process, which was killed in between, has written down.
    (own,) = tmp_path.glob("effects-*")
    other, written = tmp_path / "effects-other", call()
    built(vendor.NAME).perform(written)
    record = own.read_bytes()[-72:].replace(written.intent_id.bytes, b"o" * 16)
    other.write_bytes(record[:40])
    assert not Ledger(tmp_path).knows(b"o" * 16)
    ledger = Ledger(tmp_path)
    assert not ledger.knows(b"o" * 16)
    other.write_bytes(record)
    assert ledger.knows(b"o" * 16)
    assert ledger.knows(there.intent_id.bytes)


@pytest.fixture
def place(database: str, tmp_path: Path) -> Iterator[Place]:
    vendor.install()
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(
        f'[{vendor.NAME}.default]\ncredential = "none"\nmode = "test"\n'
        f'vendor_account = "{vendor.OWNER}"\n'
    )
    env = {"DATABASE_URL": database, "OUTBOX_ACCOUNTS": str(accounts), "OUTBOX_PAGERS": "none"}
    with closing(Statements(database)) as sql:
        yield Place(cast(Any, None), "none", database, env, Ledger(tmp_path), sql)


def test_a_large_backlog_is_what_so_many_calls_would_have_made(place: Place) -> None:
    pile_up(place, 20, Owner(tenant="zeta"), run="many")
    scope, outbox = Scope(tenant="zeta", run_id="many"), Outbox(place.settings)
    connection = place.sql.connection()
    with closing(outbox), connection.transaction():
        for number in (0, 1, 19, 20):
            args = {"number": number, "amount": 4900, "text": "x"}
            answer = outbox.enqueue(connection, vendor.write_tool(), scope, args)
            assert answer.deduplicated is (number < 20)
    assert place.unsettled() == 21


def test_a_large_backlog_breaks_no_rule_and_is_all_due(place: Place) -> None:
    store, directory = Store(place.settings, size=1), Directory.of(place.settings)

    def broken() -> set[str]:
        return {found.check for found in findings(store, directory) if not found.ok}

    with closing(store), closing(directory):
        before = broken()  # what a place without any worker has
        pile_up(place, 20)
        assert broken() == before
        claimer = Claimer(store, directory.sendable(), owner="test", lease_s=60.0)
        assert len(claimer.claim(64)) == 20


@pytest.mark.parametrize(
    ("waited", "found"), [([5.0], 5.0), ([1.0] * 99 + [9.0], 1.0), ([1.0] * 98 + [9.0] * 2, 9.0)]
)
def test_one_of_a_hundred_may_wait_longer_and_no_second(waited: list[float], found: float) -> None:
    assert p99(waited) == found


def test_the_memory_of_a_program_is_that_of_all_that_it_started() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        assert 2**25 < pss_bytes(process.pid) < 2**28
        process.communicate()
    assert pss_bytes(process.pid) == 0
