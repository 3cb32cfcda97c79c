"""Batches: one bad row cannot lose its neighbours' receipts, nor keep them waiting."""

from __future__ import annotations

from uuid import UUID

from tests.workers.floor import Floor, enqueue

_POISON = """
CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.status = ANY(TG_ARGV) THEN RAISE EXCEPTION 'this row cannot be written'; END IF;
    RETURN NEW;
END $$;
"""


def _poison(floor: Floor, intent_id: UUID, *statuses: str) -> None:
    """From now on the database refuses to write the row with one of these statuses."""
    floor.sql(_POISON)
    listed = ", ".join(f"'{status}'" for status in statuses)
    floor.sql(
        "CREATE TRIGGER poison BEFORE UPDATE ON outbox.intents FOR EACH ROW "
        f"WHEN (NEW.id = '{intent_id}') EXECUTE FUNCTION public.refuse({listed})"
    )


def test_ten_bad_rows_at_the_head_do_not_keep_five_good_ones_waiting(floor: Floor) -> None:
    """B22: rows that are always refused, in front of good ones."""
    bad = floor.enqueue(10, payment_method="nobody_knows")
    good = floor.enqueue(5)
    assert floor.drain() == 15
    assert floor.statuses() == {"failed_poison": 10, "succeeded": 5}
    assert all(floor.outcomes(intent_id) == ["refused"] for intent_id in bad)
    assert all(floor.effects(intent_id) == 1 for intent_id in good)
    assert len(floor.posts()) == 15


def test_a_row_whose_request_cannot_be_read_is_in_doubt_and_its_neighbours_are_sent(
    floor: Floor,
) -> None:
    """B22: an exception in serialisation is the row's own."""
    bad, *good = floor.enqueue(6)
    floor.sql("UPDATE outbox.intents SET request = '{\"path\": 7}' WHERE id = %(id)s", {"id": bad})
    floor.drain()
    assert all(floor.status(intent_id) == "succeeded" for intent_id in good)
    assert floor.status(bad) in ("unknown", "pending")
    assert floor.posts(bad) == []


def test_one_row_that_cannot_be_recorded_does_not_lose_its_neighbours_receipts(
    floor: Floor,
) -> None:
    bad, *good = floor.enqueue(8)
    _poison(floor, bad, "succeeded")
    floor.drain()
    assert all(floor.status(intent_id) == "succeeded" for intent_id in good)
    # Its answer is known and cannot be written: that is doubt, and never a failure.
    assert floor.status(bad) == "unknown"
    assert all(floor.effects(intent_id) == 1 for intent_id in (bad, *good))


def test_a_row_that_cannot_be_written_at_all_is_left_to_its_lease(floor: Floor) -> None:
    bad, *good = floor.enqueue(8)
    _poison(floor, bad, "succeeded", "unknown")
    floor.drain()
    assert all(floor.status(intent_id) == "succeeded" for intent_id in good)
    assert floor.status(bad) == "in_flight"
    # The sender is not stuck with it.
    more = enqueue(floor.settings, 3)
    assert floor.drain() == 3
    assert all(floor.status(intent_id) == "succeeded" for intent_id in more)
    floor.sql("DROP TRIGGER poison ON outbox.intents")
    floor.advance(floor.settings.policy.lease_s + 1)
    floor.settle()
    assert floor.effects(bad) == 1
    assert len(floor.posts(bad)) == 1
