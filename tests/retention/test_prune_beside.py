"""Pruning beside others: what they hold, what they do meanwhile, where it stops and goes on."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from outbox.errors import Denied
from outbox.outcomes import Lost
from outbox.store import retention, switches
from outbox.store.connection import Store
from resolvers import pruning
from tests.retention.attic import TURN, Attic


@pytest.mark.parametrize("table", ["intents", "webhook_inbox"])
def test_what_somebody_holds_is_passed_by_without_a_wait_and_done_the_next_time(
    attic: Attic, table: str
) -> None:
    held, free = attic.landed(), attic.landed()
    number = attic.event(held)
    attic.event(free)
    attic.days(401)
    with attic.held(table, held if table == "intents" else number):
        done = attic.prune()["intents"]
        assert (done.done, dict(done.kept)) == (1, {"in use": 1})
        assert (attic.is_empty(held), attic.is_empty(free)) == (False, True)
        assert attic.body(number) is not None
    assert attic.prune()["intents"].done == 1
    assert attic.body(number) is None


def test_what_is_decided_between_the_look_and_the_lock_is_seen(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that is committed in that instant."""
    intent_id = attic.landed()
    attic.days(401)
    judged = retention._judged

    def late(*given: Any) -> Any:
        attic.desk.escalate(intent_id, "duplicate", objects=["pi_other"])
        return judged(*given)

    monkeypatch.setattr(retention, "_judged", late)
    done = attic.prune()["intents"]
    assert (done.done, dict(done.kept)) == (0, {"in use": 1})
    assert not attic.is_empty(intent_id)


def test_what_another_one_emptied_between_the_look_and_the_lock_is_not_emptied_twice(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent_id = attic.landed()
    attic.days(401)
    judged = retention._judged

    def late(*given: Any) -> Any:
        monkeypatch.setattr(retention, "_judged", judged)
        assert attic.prune()["intents"].done == 1
        return judged(*given)

    monkeypatch.setattr(retention, "_judged", late)
    done = attic.prune()["intents"]
    # Nor is it told as kept: nobody keeps it.
    assert (done.done, dict(done.kept)) == (0, {})
    assert len(attic.desk.events(intent_id, "pruned")) == 1


_DONE_BESIDE = {
    "intents": "UPDATE outbox.intents SET args = NULL, request = NULL, receipt = NULL "
    "WHERE settled_at IN (SELECT min(settled_at) FROM outbox.intents)",
    "unmatched_events": "UPDATE outbox.webhook_inbox SET body = NULL "
    "WHERE id IN (SELECT min(id) FROM outbox.webhook_inbox)",
    "foreign_events": "DELETE FROM outbox.webhook_inbox "
    "WHERE id IN (SELECT min(id) FROM outbox.webhook_inbox)",
}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("what", _DONE_BESIDE)
def test_what_another_prune_had_in_hand_is_told_as_kept_only_if_it_is_still_there(
    attic: Attic, monkeypatch: pytest.MonkeyPatch, what: str, commits: bool
) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 1)
    for n in range(2):
        if what == "intents":
            attic.landed()
        elif what == "unmatched_events":
            attic.desk.keep(f"evt_{n}", "mismatch")
        else:
            attic.desk.keep(f"evt_{n}", "foreign", None)
    attic.days(401)
    with attic.desk.connect(autocommit=False) as other:
        assert other.execute(_DONE_BESIDE[what].encode()).rowcount == 1

        def meanwhile(_: float) -> bool:
            if commits:
                other.commit()
            return True

        found = attic.prune(go_on=meanwhile)[what]
        other.rollback()
    assert (found.done, dict(found.kept)) == (1, {} if commits else {"in use": 1})


def test_it_can_stop_after_any_piece_and_go_on_from_there(attic: Attic) -> None:
    ids = [attic.landed() for _ in range(5)]
    attic.days(401)
    assert attic.prune(limit=2)["intents"].done == 2
    assert [attic.is_empty(i) for i in ids] == [True, True, False, False, False]
    assert attic.prune(limit=2)["intents"].done == 2
    assert attic.prune(limit=2)["intents"].done == 1


def test_rows_that_are_kept_do_not_hold_up_younger_ones(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 2)
    kept = [attic.landed(TURN) for _ in range(5)]
    done = [attic.landed() for _ in range(5)]
    attic.days(401)
    found = attic.prune()["intents"]
    assert (found.done, dict(found.kept)) == (5, {"not told": 5})
    assert [attic.is_empty(i) for i in kept + done] == [False] * 5 + [True] * 5


def test_two_at_once_share_the_work_and_do_it_once(
    attic: Attic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PIECE", 3)
    ids = [attic.landed() for _ in range(20)]
    attic.days(401)
    counts: list[int] = []
    both = threading.Barrier(2)

    def one() -> None:
        store = Store(attic.desk.settings, size=1)
        both.wait()
        order = pruning.Order(older_than_s=400 * 86400.0, by="alice")
        counts.append(pruning.prune(store, order)[0].done)
        store.close()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.append(attic.prune()["intents"].done)
    assert sum(counts) == 20
    assert all(len(attic.desk.events(i, "pruned")) == 1 for i in ids)


def test_a_dry_run_counts_the_same_and_changes_nothing(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.landed(TURN)
    number = attic.event(intent_id)
    attic.desk.keep("evt_foreign", "foreign", None)
    attic.days(401)
    tried = attic.prune(dry_run=True)
    assert not attic.is_empty(intent_id)
    assert attic.body(number) is not None
    assert attic.desk.events(intent_id, "pruned") == []
    # What its intent is emptied with is not counted once more.
    done = attic.prune()
    assert {w: (p.done, p.kept) for w, p in tried.items() if w != "matched_events"} == {
        w: (p.done, p.kept) for w, p in done.items() if w != "matched_events"
    }


def test_nothing_is_pruned_by_a_clock_that_is_in_doubt(attic: Attic) -> None:
    intent_id = attic.landed()
    attic.days(401)
    attic.doubt_clock("stepped by a year")
    with pytest.raises(Denied):
        attic.prune()
    assert not attic.is_empty(intent_id)
    with attic.desk.store.transaction() as tx:
        switches.accept_clock(tx, by="alice", reason="it is right")
    assert attic.prune()["intents"].done == 1


def test_a_worker_sends_beside_it_and_neither_waits_for_the_other(attic: Attic) -> None:
    old = [attic.landed() for _ in range(3)]
    attic.days(401)
    fresh = attic.enqueue().intent_id
    row = attic.desk.leased(fresh)
    with attic.held("intents", fresh):
        assert attic.prune()["intents"].done == len(old)
    attic.desk.record(row, Lost("no reply"))
    assert attic.desk.row(fresh).status == "unknown"
    assert not attic.is_empty(fresh)


def test_a_snapshot_from_before_reads_what_was_and_holds_up_nothing(attic: Attic) -> None:
    ids = [attic.landed() for _ in range(5)]
    attic.days(401)
    url = attic.desk.settings.database_url.replace("+psycopg", "")
    with psycopg.connect(url) as pinned:
        pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        count = "SELECT count(args) FROM outbox.intents"
        assert pinned.execute(count).fetchone() == (5,)
        assert attic.prune()["intents"].done == 5
        assert pinned.execute(count).fetchone() == (5,)
        fresh = attic.enqueue().intent_id
        assert attic.desk.leased(fresh).id == fresh
        assert attic.prune()["intents"].done == 0
        gauges = attic.desk.invoke("health", "--json").json["gauges"]
        assert gauges["oldest_snapshot_s"] >= 0
        pinned.rollback()
    assert [attic.is_empty(i) for i in ids] == [True] * 5
