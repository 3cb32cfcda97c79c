"""The turn of a worker's own round: held by a lease while it goes on, at rest once it is whole."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from outbox import Settings
from outbox.store import switches
from resolvers import pruning
from tests.retention.attic import DAY_S, Attic
from tests.retention.test_prune_round import runtime
from tests.workers.floor import wait_until
from workers.runtime import Runtime, Slots

LEASE_S = pruning._LEASE_S


@pytest.fixture(autouse=True)
def _row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 1)


def _is_killed_after_a_piece(settings: Settings) -> None:
    """A process of its own: kill -9 asks nobody."""

    def kill() -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    pruning._PIECE = 1
    Runtime(settings, slots=Slots(1), stopping=kill).run("prune")


def _killed(attic: Attic) -> None:
    with runtime(attic) as worker:
        process = multiprocessing.get_context("spawn").Process(
            target=_is_killed_after_a_piece, args=(worker.settings,)
        )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_what_a_killed_worker_left_is_gone_on_with_and_then_there_is_a_days_rest(
    attic: Attic,
) -> None:
    ids = [attic.landed() for _ in range(3)]
    attic.days(61)
    _killed(attic)
    assert [attic.is_empty(i) for i in ids] == [True, False, False]
    with runtime(attic) as worker:
        # It might still be at work.
        assert worker.run("prune") == 0
        attic.desk.forward(LEASE_S + 1)
        assert worker.run("prune") == 2
        attic.landed()
        _make_older(attic)
        attic.days(0.9)
        assert worker.run("prune") == 0
        attic.days(0.2)
        assert worker.run("prune") == 1


def test_a_worker_that_was_told_to_end_leaves_the_rest_to_the_same_day(attic: Attic) -> None:
    for _ in range(3):
        attic.landed()
    attic.days(61)
    with runtime(attic, stopping=lambda: True) as worker:
        assert worker.run("prune") == 1
    attic.desk.forward(LEASE_S + 1)
    with runtime(attic) as worker:
        assert worker.run("prune") == 2


def test_a_long_round_stays_with_its_worker_piece_by_piece(attic: Attic) -> None:
    for _ in range(5):
        attic.landed()
    attic.days(61)
    others: list[int] = []
    with runtime(attic) as other:

        def meanwhile() -> bool:
            attic.desk.forward(0.7 * LEASE_S)
            others.append(other.run("prune"))
            return False

        with runtime(attic, stopping=meanwhile) as worker:
            assert worker.run("prune") == 5
    assert others == [0] * 5


def test_a_worker_that_slept_longer_than_its_lease_stops_and_ends_nobody_elses_round(
    attic: Attic,
) -> None:
    for _ in range(4):
        attic.landed()
    attic.days(61)
    done: list[int] = []

    def takes_it_up() -> bool:
        if not done:
            attic.desk.forward(LEASE_S + 1)
            # Which is told to end in its turn: there is something left for the first one to find.
            with runtime(attic, stopping=lambda: True) as other:
                done.append(other.run("prune"))
        return False

    with runtime(attic, stopping=takes_it_up) as worker:
        assert (worker.run("prune"), done) == (1, [1])
        attic.desk.forward(LEASE_S + 1)
        assert worker.run("prune") == 2


def test_interrupted_rounds_share_the_hour_of_their_day(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deploys all day long must not have it prune all day long."""
    clock_s = [0.0]
    monkeypatch.setattr(pruning, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    ids = [attic.landed() for _ in range(9)]
    attic.days(61)
    calls: list[None] = []

    def dies_at_the_second() -> bool:
        calls.append(None)
        clock_s[0] += 0.4 * pruning.BUDGET_S
        if len(calls) == 2:
            raise SystemExit
        return False

    with runtime(attic, stopping=dies_at_the_second) as worker:
        with pytest.raises(SystemExit):
            worker.run("prune")
        attic.desk.forward(LEASE_S + 1)
        # A whole hour has room for four; 0.4 of this one were written down.
        assert worker.run("prune") == 3
        attic.desk.forward(LEASE_S + 1)
        assert worker.run("prune") == 0
        attic.days(1)
        assert worker.run("prune") == 4
    assert all(attic.is_empty(i) for i in ids)


def test_the_shorter_of_two_ages_is_not_kept_waiting_by_the_longer(attic: Attic) -> None:
    attic.landed()
    attic.days(350)
    attic.landed()
    attic.days(61)
    with runtime(attic, 400 * DAY_S) as patient, runtime(attic) as eager:
        assert patient.run("prune") == 1
        assert eager.run("prune") == 1
        # Once a day each, at the most: what the shorter one leaves is nothing for the longer.
        attic.landed()
        _make_older(attic)
        assert (patient.run("prune"), eager.run("prune")) == (0, 0)
        attic.days(1)
        assert (patient.run("prune"), eager.run("prune")) == (0, 1)


def test_the_shorter_age_waits_for_the_end_of_the_others_round(attic: Attic) -> None:
    for _ in range(2):
        attic.landed()
    attic.days(350)
    attic.landed()
    attic.days(61)
    others: list[int] = []
    with runtime(attic) as eager:

        def meanwhile() -> bool:
            others.append(eager.run("prune"))
            return False

        with runtime(attic, 400 * DAY_S, stopping=meanwhile) as patient:
            assert patient.run("prune") == 2
        assert set(others) == {0}
        assert eager.run("prune") == 1


def test_who_waited_for_the_turn_does_not_take_it_for_one_of_a_time_to_come(attic: Attic) -> None:
    """The other's was written after this one's statement had begun."""
    attic.landed()
    attic.days(61)
    with runtime(attic) as worker:
        assert worker.run("prune") == 1
        attic.landed()
        _make_older(attic)
        attic.days(1)
        done: list[int] = []
        with attic.desk.connect(autocommit=False) as other:
            row = "outbox.heartbeats WHERE role = 'prune' AND instance = 'turn'"
            other.execute(f"SELECT FROM {row} FOR UPDATE".encode())
            waiting = threading.Thread(target=lambda: done.append(worker.run("prune")))
            waiting.start()
            wait_until(
                lambda: bool(
                    attic.desk.sql("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                )
            )
            other.execute(
                f"UPDATE {row.replace(' WHERE', ' SET at = outbox.clock() WHERE')}".encode()
            )
            other.commit()
            waiting.join()
    assert done == [0]


def test_a_round_that_a_clock_in_doubt_forbade_is_not_put_off_for_a_day(attic: Attic) -> None:
    attic.landed()
    attic.days(61)
    attic.doubt_clock()
    with runtime(attic) as worker:
        assert worker.run("prune") == 0
        with attic.desk.store.transaction() as tx:
            switches.accept_clock(tx, by="alice", reason="it is right")
        attic.desk.forward(LEASE_S + 1)
        assert worker.run("prune") == 1


def test_the_turn_of_a_release_before_is_one_of_a_round_that_is_over(attic: Attic) -> None:
    attic.landed()
    attic.days(61)
    attic.desk.sql(
        "INSERT INTO outbox.heartbeats (role, instance, at, detail) "
        "VALUES ('prune', 'turn', outbox.clock(), '{\"release\": \"0.1.0\"}')"
    )
    with runtime(attic) as worker:
        attic.desk.forward(LEASE_S + 1)
        assert worker.run("prune") == 0
        attic.days(1)
        assert worker.run("prune") == 1


def _make_older(attic: Attic) -> None:
    """What is settled was settled two months ago at the least."""
    attic.desk.sql(
        "UPDATE outbox.intents SET settled_at = settled_at - INTERVAL '61 d' "
        "WHERE settled_at > outbox.clock() - INTERVAL '60 d'"
    )
