"""A vendor's file that is corrected while its writes are under way, and the workers of both files
side by side: what makes a second send safe is taken from the row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from outbox import WriteTool
from outbox.contract import VendorContract
from outbox.contracts import register
from outbox.contracts.recipes import read_recipe
from outbox.doorbell import Doorbell
from outbox.errors import Denied
from resolvers import sweeping, triage
from resolvers.directory import Directory
from resolvers.doctoring import findings
from resolvers.looking import Looker
from tests.vendors.recipe_calls import contracts_as_before
from tests.vendors.recipe_floor import RecipeFloor, open_recipe_floor
from vendors.sandbox import RECIPES
from vendors.sandbox.client import Sandbox
from workers.sender import Sender

PAY = {"amount": 4900, "currency": "eur", "recipient": "ann", "invoice": "in_1"}
HOUR = 3600.0
TEXT = (RECIPES / "payments.toml").read_text()


def _without(text: str, *tables: str) -> str:
    for name in tables:
        text = re.sub(rf"(?ms)^\[{re.escape(name)}\].*?(?=^\[|\Z)", "", text)
    return text


def _keyless() -> str:
    """As it was written by somebody who did not know that the vendor honours keys: neither a
    look-up nor a mark."""
    text = _without(
        TEXT,
        *(f'operations."payments.cancel"{part}' for part in ("", ".receipt", ".look_up")),
        *("look_up", "webhook"),
    ).replace('owner = "idempotency_key"\n', "")
    return re.sub(r"(?ms)^\[key\].*?(?=^\[\[answers)", '[key]\nslot = "none"\n\n', text, count=1)


OTHER_HEADER = TEXT.replace('name = "Idempotency-Key"', 'name = "X-Key"')
OTHER_CASE = TEXT.replace('name = "Idempotency-Key"', 'name = "idempotency-KEY"')
SHORTER = TEXT.replace("window_s = 86400", "window_s = 3600").replace(
    "margin_s = 7200", "margin_s = 600"
)


class Release:
    """A worker's process of one release: it knows the vendor by its own file."""

    def __init__(self, floor: RecipeFloor, text: str) -> None:
        self.floor = floor
        self.contract: VendorContract = read_recipe(text)
        with self.here():
            self.directory = Directory.of(floor.settings)
            known = floor.directory.account("payments", "default")
            assert known is not None
            self.directory.learn("payments", known)
            self.sender = Sender(
                floor.store,
                self.directory,
                Doorbell("", timeout_s=0.1),
                owner="release",
                stopping=lambda: False,
                jitter=lambda: 0.5,
            )
            self.looker = Looker(floor.store, self.directory)
        floor.senders.append(self.sender)
        floor.lookers.append(self.looker)

    @contextmanager
    def here(self) -> Iterator[None]:
        with contracts_as_before():
            register(self.contract)
            yield

    def ask(self) -> UUID:
        with self.here():
            return self.floor.ask(
                WriteTool(
                    "pay_out",
                    vendor="payments",
                    operation="payments.create",
                    side_effect="payout",
                    identity=("invoice",),
                    guard=("amount", "currency", "recipient"),
                    money=("amount", "currency"),
                ),
                **PAY,
            )

    def drain(self) -> int:
        with self.here():
            return self.sender.drain(budget_s=10.0)

    def look(self) -> None:
        with self.here():
            self.looker.once()

    def withdraw(self) -> int:
        with self.here():
            return sweeping.withdraw_once(self.floor.store, self.directory)

    def resend(self, intent_id: UUID) -> str:
        """The code by which a person's approval is refused."""
        with self.here(), pytest.raises(Denied) as refused:
            triage.resend(self.floor.store, self.directory, intent_id, by="ann", reason="again")
        return refused.value.code

    def doctor(self) -> dict[str, tuple[str, ...]]:
        with self.here():
            found = findings(self.floor.store, self.directory)
        return {one.check: one.sample for one in found if not one.ok}


@pytest.fixture
def floor(database: str, sandbox: Sandbox, tmp_path: Path) -> Iterator[RecipeFloor]:
    with open_recipe_floor(database, sandbox, "payments", tmp_path) as opened:
        # Nobody can look: what is in doubt is decided by keys and windows alone.
        sandbox.fault("unavailable_503", account=opened.account, endpoint="payments.list")
        yield opened


def _all_posts(floor: RecipeFloor) -> list[str | None]:
    return [post["key"] for post in floor.posts()]


@pytest.mark.parametrize("before", [_keyless(), OTHER_HEADER], ids=["no key", "another header"])
def test_a_row_of_another_place_for_its_key_is_left_alone_and_reported(
    floor: RecipeFloor, before: str
) -> None:
    # That the old file sends without a key that the vendor sees is what it was corrected for.
    floor.provoked = {"post_without_key"}
    old, new = Release(floor, before), Release(floor, TEXT)
    intent_id = old.ask()
    assert new.drain() == 0
    assert _all_posts(floor) == []
    assert new.doctor()["carried_otherwise"] == (str(intent_id),)
    assert "carried_otherwise" not in old.doctor()
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    assert old.drain() == 1
    assert floor.status(intent_id) == "unknown"
    floor.sandbox.clear_faults(floor.account)
    # Of the new file a look by the key proves nothing, nor is its window true of this request.
    for _ in range(8):
        floor.jump(intent_id)
        new.look()
        assert new.drain() == 0
    assert new.resend(intent_id) == "unsendable"
    row = floor.row(intent_id)
    assert (row["status"], row["resends"], row["absent_looks"]) == ("unknown", 0, 0)
    assert len(_all_posts(floor)) == 1
    assert len(floor.sandbox.objects(floor.account, "payments")) == 1


@pytest.mark.parametrize("after", [_keyless(), OTHER_HEADER], ids=["no key", "another header"])
def test_what_one_release_approved_no_other_one_sends_otherwise(
    floor: RecipeFloor, after: str
) -> None:
    """A re-send is approved for the key in its header; a worker whose file has no such header must
    not be the one that sends it."""
    keyed, other = Release(floor, TEXT), Release(floor, after)
    intent_id = keyed.ask()
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    keyed.drain()
    for _ in range(4):
        floor.jump(intent_id)
        keyed.look()
        if floor.status(intent_id) == "retryable":
            break
    assert floor.status(intent_id) == "retryable"
    assert other.drain() == 0
    assert len(_all_posts(floor)) == 1
    assert keyed.drain() == 1
    first, again = _all_posts(floor)
    assert first == again == bytes(floor.row(intent_id)["key"]).hex()
    assert floor.effects(intent_id) == 1


def test_a_headers_name_in_another_case_is_the_same_place(floor: RecipeFloor) -> None:
    old, new = Release(floor, OTHER_CASE), Release(floor, TEXT)
    intent_id = old.ask()
    assert new.drain() == 1
    assert floor.status(intent_id) == "succeeded"
    assert floor.effects(intent_id) == 1


def _in_doubt_for_two_hours(floor: RecipeFloor, *, approved: bool) -> tuple[Release, Release, UUID]:
    """Sent under a day's window; by now the vendor is known to forget its keys after an hour."""
    old, new = Release(floor, TEXT), Release(floor, SHORTER)
    floor.sandbox.set_account(floor.account, key_window_s=HOUR)
    intent_id = old.ask()
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    old.drain()
    for _ in range(8):
        floor.jump(intent_id)
        if not approved:
            break
        old.look()
        if floor.status(intent_id) == "retryable":
            break
    floor.advance(2 * HOUR)
    assert floor.status(intent_id) == ("retryable" if approved else "unknown")
    return old, new, intent_id


def test_a_window_that_was_corrected_closes_what_is_in_doubt_already(floor: RecipeFloor) -> None:
    old, new, intent_id = _in_doubt_for_two_hours(floor, approved=False)
    assert new.resend(intent_id) == "window_closed"
    for _ in range(4):
        new.look()
        new.drain()
        floor.jump(intent_id)
    assert len(_all_posts(floor)) == 1
    # The row has it too, for the release that does not know it yet, and for people.
    row = floor.row(intent_id)
    assert (row["window_ends_at"] - row["first_sent_at"]).total_seconds() < HOUR
    assert row["escalate_at"] <= row["window_ends_at"]
    assert old.resend(intent_id) == "window_closed"
    for _ in range(4):
        old.look()
        assert old.drain() == 0
        floor.jump(intent_id)
    assert floor.effects(intent_id) == 1


def test_a_window_that_was_corrected_takes_back_what_was_approved(floor: RecipeFloor) -> None:
    _, new, intent_id = _in_doubt_for_two_hours(floor, approved=True)
    assert new.drain() == 0
    assert new.withdraw() == 1
    row = floor.row(intent_id)
    assert (row["status"], row["resends"]) == ("unknown", 0)
    assert len(_all_posts(floor)) == 1


def test_a_window_that_became_longer_is_not_promised_to_what_was_sent_before(
    floor: RecipeFloor,
) -> None:
    old, new = Release(floor, SHORTER), Release(floor, TEXT)
    intent_id = old.ask()
    floor.sandbox.fault("lost_ack", account=floor.account, times=1)
    old.drain()
    floor.advance(2 * HOUR)
    assert new.resend(intent_id) == "window_closed"
    for _ in range(3):
        new.look()
        assert new.drain() == 0
        floor.jump(intent_id)
    assert len(_all_posts(floor)) == 1
