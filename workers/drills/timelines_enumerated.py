"""The timelines of ``outbox drill timelines``: every list of choices that so many calls may meet.

A timeline says how the vendor treats the call, and what becomes of the call's requests one after
the other. So many of them are dealt out over the tree of all choices, at each node by the weights
below, until each has a leaf of its own: no two are alike, and no chance is in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Parts of 10,000. The published results do not say how often what went wrong; they pin it down.
# Applied once without a retry (89.95 %) and with a key in three tries (97.78 %) are both met where
# 2.17 % of the calls are never taken, and a request is lost in 8.05 % of the tries; the successes
# reported without a retry (81.92 %) then mean that 8.93 % of the replies are lost. Of the calls
# that are never taken one half is refused for good, and the other meets a vendor that is out.
WHOLE = 10_000
# The usual choice comes last: it takes what the others leave.
VENDOR: Mapping[str, int] = {"refuses": 108, "is_out": 109, "accepts": 9783}
REQUEST: Mapping[str, int] = {"request_lost": 805, "reply_lost": 821, "delivered": 8374}


# The choices so far, and how many timelines begin with them.
Node = tuple[tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
class Timeline:
    """One timeline: ``vendor`` accepts, refuses or is_out; ``fates`` of the requests in order, each
    request_lost, reply_lost or delivered. After the last of them nothing more is lost."""

    vendor: str
    fates: tuple[str, ...]

    @property
    def can_be_applied(self) -> bool:
        """Whether the vendor would ever take the call."""
        return self.vendor == "accepts"


def enumerated(count: int) -> list[Timeline]:
    """So many timelines, all different, the same every time."""
    found: list[Timeline] = []
    owed: defaultdict[str, int] = defaultdict(int)
    level: list[Node] = [((vendor,), share) for vendor, share in _dealt(count, VENDOR, owed)]
    while level:
        below: list[Node] = []
        for choices, share in level:
            if share == 1:
                found.append(Timeline(choices[0], choices[1:]))
                continue
            below += [((*choices, fate), part) for fate, part in _dealt(share, REQUEST, owed)]
        level = below
    return sorted(found, key=lambda timeline: (timeline.vendor, timeline.fates))


def _dealt(
    count: int, weights: Mapping[str, int], owed: defaultdict[str, int]
) -> Iterator[tuple[str, int]]:
    """``count`` over the choices. What a share lacks of a whole is ``owed`` to the next node, so
    that the weights hold over all nodes, and every node is divided in the end."""
    *rare, (usual, _) = weights.items()
    left = count
    for choice, weight in rare:
        share, owed[choice] = divmod(count * weight + owed[choice], WHOLE)
        taken = min(share, left)
        owed[choice] += (share - taken) * WHOLE
        left -= taken
        if taken:
            yield choice, taken
    if left:
        yield usual, left
