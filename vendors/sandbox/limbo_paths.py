"""The write paths of the LIMBO benchmark, as contracts: which take a key, and how they read back.

Facts from the benchmark of "Where Does Exactly-Once Live?" (arXiv 2609.29095): eleven writes that
are not idempotent, two of which take a key natively; and three that are safe by nature.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTRACTS = ("native", "keys")


@dataclass(frozen=True, slots=True)
class WritePath:
    """One kind of write. ``url`` may hold ``{target}``: the write changes that object, which then
    shows ``shows``. ``field`` is what a drifting schema renames. ``read_lag_s`` is how far the
    list lags behind (None: there is none); ``native_key`` whether it takes a key natively;
    ``rows`` whether it takes many at once, which the vendor writes one after the other.
    """

    name: str
    method: str
    url: str
    field: str
    read_lag_s: float | None = 0.0
    native_key: bool = False
    shows: str = ""
    rows: bool = False

    @property
    def by_target(self) -> bool:
        """Whether the write changes an object that is there, and so cannot be done twice."""
        return bool(self.shows)

    def takes_key(self, contract: str) -> bool:
        """Whether the vendor honours a key here, under one of ``CONTRACTS``."""
        return not self.by_target and (self.native_key or contract == "keys")


PATHS: tuple[WritePath, ...] = (
    WritePath("social.mastodon", "POST", "/social/mastodon/posts", "text", native_key=True),
    WritePath("social.weibo", "POST", "/social/weibo/posts", "text", read_lag_s=180.0),
    WritePath("social.linkedin", "POST", "/social/linkedin/posts", "text"),
    WritePath("social.x", "POST", "/social/x/posts", "text", read_lag_s=None),
    WritePath("billing.charge", "POST", "/billing/charges", "customer", native_key=True),
    WritePath("tickets.create", "POST", "/tickets", "title"),
    WritePath("tickets.comment", "POST", "/comments", "text"),
    WritePath("mail.send", "POST", "/mail/messages", "subject", read_lag_s=120.0),
    WritePath("data.insert", "POST", "/data/rows", "values"),
    WritePath("data.insert_many", "POST", "/data/batches", "rows", rows=True),
    WritePath("deploy.trigger", "POST", "/deploy/runs", "version"),
)
# A second refund and a second change of state are refused, a second upsert changes nothing.
SAFE: tuple[WritePath, ...] = (
    WritePath("billing.refund", "POST", "/billing/refunds/{target}", "reason", shows="refunded"),
    WritePath("tickets.status", "PATCH", "/tickets/status/{target}", "status", shows="resolved"),
    WritePath("data.upsert", "PUT", "/data/rows/by-name/{target}", "values", shows="written"),
)
EVERY = PATHS + SAFE
BY_NAME = {path.name: path for path in EVERY}
