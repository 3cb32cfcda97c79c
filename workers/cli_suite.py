"""``outbox vendor check --all``: every adapter against its face of the sandbox."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from workers.cli_errors import CheckFound
from workers.cli_output import Column, named, say, show_json, show_rows
from workers.cli_run import Run

_COLUMNS = (Column("vendor"), Column("check", folds=True), Column("ok"), Column("problem", rank=1))


def check_adapters(run: Run) -> None:
    """Runs the suite in a sandbox of its own; asks no vendor and touches no ledger.

    JSON: ``{"schema": 1, "ok": bool, "rows": [{"vendor", "check", "ok", "problem"}]}``.
    """
    from vendors.sandbox.client import Sandbox
    from vendors.suite.checks import run as run_suite

    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="outbox-suite-") as folder,
        Sandbox.start(Path(folder) / "vendor.sqlite") as sandbox,
    ):
        if not sandbox.smtp_url:
            raise click.ClickException(
                "the sandbox has no mail server here: install outbox-resolve[embedded]"
            )
        for vendor, check, problem in run_suite(sandbox):
            rows.append({"vendor": vendor, "check": check, "ok": not problem, "problem": problem})
    wrong = [row for row in rows if not row["ok"]]
    if run.json:
        show_json({"ok": not wrong, "rows": [named(_COLUMNS, row) for row in rows]})
    else:
        show_rows(run, _COLUMNS, rows)
        vendors = len({row["vendor"] for row in rows})
        say(f"{len(rows) - len(wrong)} of {len(rows)} checks of {vendors} vendors hold")
    if wrong:
        raise CheckFound
