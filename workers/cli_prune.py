"""``outbox prune``: retention, by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from workers.cli_output import Column, named, show_json, show_rows
from workers.cli_run import Verb, current
from workers.cli_span import RETENTION

if TYPE_CHECKING:
    from resolvers.pruning import Pruned

_LIST = (
    Column("what"),
    Column("act"),
    Column("rows", right=True),
    Column("why"),
    Column("older_than_s", kind="span", right=True),
)


@click.command(
    "prune",
    cls=Verb,
    refuses="the database's clock is in doubt; nothing was changed",
    examples=(
        "outbox prune --dry-run",
        "outbox prune --older-than 400d",
        "outbox prune --limit 10000 --json",
    ),
)
@click.option(
    "--older-than",
    "older_than_s",
    type=RETENTION,
    default=None,
    help="Since they were settled: 35d at the least.  [default: OUTBOX_RETENTION, or 400d]",
)
@click.option("--dry-run", is_flag=True, help="Count what would be pruned, and change nothing.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=None,
    help="Stop after so many rows; the oldest come first. All, if left out.",
)
def prune(*, older_than_s: float | None, dry_run: bool, limit: int | None) -> None:
    """Empty what was settled long ago, for good, as `intent redact` does for one intent.

    An intent keeps its key, hash, identity, guard, receipt id and results: a repeat of the write
    still finds it, a late event joins it. Bodies of stored events are emptied after 90 days, or 35
    where they match nothing; events that are not ours, and heartbeats of processes that are gone,
    are deleted after 35. What is undecided, asked of a person, or not yet taken by every consumer
    is kept, and told with the reason. It can be interrupted and repeated.
    """
    from outbox.policy import RETENTION_S
    from resolvers.pruning import Order
    from resolvers.pruning import prune as pruned

    run = current()
    if older_than_s is None:
        older_than_s = run.settings.retention_s or RETENTION_S
    order = Order(older_than_s=older_than_s, by=run.actor, dry_run=dry_run, limit=limit)
    rows = list(_rows(pruned(run.store, order)))
    if run.json:
        items = [named(_LIST, row) for row in rows]
        show_json({"dry_run": dry_run, "items": items, "next": None})
    else:
        show_rows(run, _LIST, rows)


def _rows(found: Sequence[Pruned]) -> Iterator[dict[str, Any]]:
    """One for what was done with each kind, and one for each reason why others were kept."""
    for pruned in found:
        about = {"what": pruned.what, "older_than_s": pruned.older_than_s, "why": None}
        yield {**about, "act": pruned.act, "rows": pruned.done}
        for why, rows in sorted(pruned.kept.items()):
            yield {**about, "act": "keep", "rows": rows, "why": why}


COMMANDS = (prune,)
