"""What one reading of a recipe's source showed, of each intent that was sought."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from outbox.contract import Call
from outbox.outcomes import Absent, Found, LookUp, Reading, Unreadable
from vendors.reads import wrong_mode


@dataclass(frozen=True, slots=True)
class Listing:
    """``unread``: why an object under the mark of one of them could not be read. ``doubt``: why
    finding nothing proves nothing, of any of them; empty where it proves. ``began``: the vendor's
    time then."""

    readings: Mapping[UUID, list[Reading]]
    unread: Mapping[UUID, str]
    doubt: str
    began: int

    def look_up(self, call: Call) -> LookUp:
        """The objects of one of them."""
        if call.intent_id in self.unread:
            return Unreadable(self.unread[call.intent_id])
        ours = self.readings.get(call.intent_id, ())
        if any(wrong_mode(call.account, reading.livemode) for reading in ours):
            return Unreadable("an object of the other mode")
        found = {reading.receipt_id: reading for reading in ours}
        if found:
            return Found(tuple(found.values()), vendor_now=self.began)
        return Unreadable(self.doubt) if self.doubt else Absent(vendor_now=self.began)

    def retrieve(self, call: Call, receipt_id: str) -> LookUp:
        """The one object among them, where it has no address of its own."""
        seen = self.look_up(call)
        if isinstance(seen, Unreadable):
            return seen
        if isinstance(seen, Found):
            found = tuple(one for one in seen.readings if one.receipt_id == receipt_id)
            if found:
                return replace(seen, readings=found)
        # One that is not among those that were found may be the one that could not be told.
        return Unreadable(self.doubt) if self.doubt else Absent("retrieve")
