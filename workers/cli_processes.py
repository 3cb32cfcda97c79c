"""``outbox up``, ``demo``, ``worker``, ``beat`` and ``web``: thin, the work is elsewhere."""

from __future__ import annotations

import click

from workers.cli_run import Verb, current


@click.command(
    "up",
    cls=Verb,
    tells=False,
    examples=("outbox up", "DATABASE_URL=postgres://... outbox up --migrate"),
)
@click.option("--migrate", is_flag=True, help="Upgrade the schema of an external database first.")
def up(*, migrate: bool) -> int:
    """Run everything in the foreground: servers where none are configured, worker, beat, web."""
    from workers import up as everything

    return everything.run(current().settings, migrate=migrate)


@click.command("demo", cls=Verb, examples=("outbox demo",))
def demo() -> int:
    """Lose replies on purpose and watch each write happen once. Touches no configured database."""
    from workers import demo as show

    return show.run(as_json=current().json)


@click.command("worker", cls=Verb, tells=False, examples=("outbox worker",))
def worker() -> int:
    """Send and resolve, until SIGTERM."""
    from workers.process import run_worker
    from workers.startup import checked

    return run_worker(checked(current().settings))


@click.command("beat", cls=Verb, tells=False, examples=("outbox beat",))
def beat() -> int:
    """Ring for the workers on a schedule, until SIGTERM."""
    from workers.beat import run_beat
    from workers.startup import checked

    return run_beat(checked(current().settings))


@click.command("web", cls=Verb, tells=False, examples=("PORT=8000 outbox web",))
def web() -> int:
    """Serve webhooks and health over HTTP, until SIGTERM."""
    from workers.startup import checked
    from workers.web import serve

    return serve(checked(current().settings))


COMMANDS = (up, demo, worker, beat, web)
