"""``outbox resolve``: every resolver job once, in this process."""

from __future__ import annotations

from collections.abc import Callable

import click

from workers.cli_output import Column, show_rows
from workers.cli_run import Run, Verb, current

_JOBS = (Column("job"), Column("due", right=True), Column("done", right=True))


@click.command(
    "resolve", cls=Verb, examples=("outbox resolve --once --dry-run", "outbox resolve --once")
)
@click.option("--once", is_flag=True, required=True, help="Run every job once and exit.")
@click.option("--dry-run", is_flag=True, help="Show what is due for each job, and run none.")
def resolve(*, once: bool, dry_run: bool) -> None:
    """Expire leases, join webhooks, look up, withdraw, escalate and page, once each, now."""
    from outbox.store import checks

    assert once
    run = current()
    policy = run.settings.policy
    with run.store.transaction() as tx:
        due = checks.due(
            tx,
            prefixes=run.directory.gate_prefixes(),
            lane_wait_s=policy.lane_wait_s,
            windows=run.directory.windows(),
        )
    jobs = _jobs(run)
    rows = [
        {"job": name, "due": due[name], "done": None if dry_run else job()}
        for name, job in jobs.items()
    ]
    show_rows(run, _JOBS, rows)


def _jobs(run: Run) -> dict[str, Callable[[], int]]:
    """In the order in which one's result is another's work."""
    from resolvers import escalating, joining, looking, pagers, paging, sweeping

    store, directory = run.store, run.directory

    def look() -> int:
        looker = looking.Looker(store, directory)
        try:
            return looker.once()
        finally:
            looker.close()

    return {
        "expire": lambda: sweeping.expire_once(store, directory),
        "join": lambda: joining.join_once(store, directory),
        "resolve": look,
        "withdraw": lambda: sweeping.withdraw_once(store, directory),
        "escalate": lambda: escalating.escalate_once(store, directory),
        "page": lambda: paging.page_once(store, pagers.parse(run.settings), run.settings),
    }


COMMANDS = (resolve,)
