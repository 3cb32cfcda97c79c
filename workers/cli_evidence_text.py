"""The evidence of one question for people and pipes: ``workers.cli_evidence`` has it as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from workers.cli_output import plain, printable, say, show_item, show_json, written
from workers.cli_run import Run

_NONE = "none"


def show(run: Run, found: Mapping[str, Any]) -> None:
    """JSON; tab-separated lines when piped; sections on a terminal."""
    if run.json:
        show_json(plain(found))
    elif not sys.stdout.isatty():
        show_item(run, dict(_flat(found)))
    else:
        _sections(found)


_NESTED = ("request", "attempts", "looks", "webhooks", "vendor_now", "options", "pages", "detail")


def _flat(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in found.items() if name not in _NESTED)
    for title, lines in _evidence(found):
        for number, line in enumerate(lines, 1):
            yield f"{title}.{number}" if len(lines) > 1 else title, line
    for option in found["options"]:
        name = option["verb"] + (f".{option['receipt_id']}" if option["receipt_id"] else "")
        yield name, f"{_would(option)}: {option['said']}"
        yield f"{name}.command", option["command"]


def _sections(found: Mapping[str, Any]) -> None:
    head = {name: value for name, value in found.items() if name not in _NESTED}
    if found["closed_at"] is None:
        head = {n: v for n, v in head.items() if n not in ("closed_at", "closed_by", "verdict")}
    width = max(len(name) for name in head)
    for name, value in head.items():
        if value not in (None, [], "") or name in ("window_left", "objects"):
            click.echo(f"{name.replace('_', ' '):<{width}}  {written(value)}")
    for title, lines in _evidence(found):
        click.echo(f"\n{title.replace('_', ' ')}")
        for line in lines:
            click.echo(_folded(line, 2))
    click.echo("\nwhat each verdict would do now")
    width = max(len(option["verb"]) for option in found["options"])
    for option in found["options"]:
        word = _would(option)
        click.echo(f"  {option['verb']:<{width}}  {_coloured(word, option['now'])}")
        click.echo(_folded(option["said"], width + 4))
        if option["now"] not in ("refused", "nothing_to_do"):
            click.echo(f"  {'':<{width}}  $ {printable(option['command'])}")
    if any(option["now"] == "not_known" for option in found["options"]):
        say("(not known: the vendor decides, and was not asked or did not answer)")


def _would(option: Mapping[str, Any]) -> str:
    word = str(option["now"]).replace("_", " ")
    return f"{word}, leaves it {option['becomes']}" if option["becomes"] else word


def _folded(text: str, indent: int) -> str:
    """In as many lines as it takes; no id is cut."""
    width = max(shutil.get_terminal_size().columns, 40)
    blank = " " * indent
    return textwrap.fill(
        printable(text),
        width,
        initial_indent=blank,
        subsequent_indent=blank,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _coloured(word: str, now: str) -> str:
    """As the lists colour a status, and as they only on a terminal that wants it."""
    from rich.console import Console

    colours = {"allowed": "green", "refused": "red"}
    terminal = Console(width=80, height=25)
    if now not in colours or terminal.no_color or terminal.color_system is None:
        return word
    return click.style(word, fg=colours[now])


def _evidence(found: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Each kind of evidence in lines. A question about a holder has only its pages."""
    if "request" in found:
        yield "request", _request_lines(found["request"])
        yield "attempts", [_attempt(row) for row in found["attempts"]] or [_NONE]
        yield "looks", [_looks(found["looks"])]
        yield "webhooks", [_webhook(row) for row in found["webhooks"]] or [_NONE]
        yield "vendor_now", _vendor_lines(found["vendor_now"])
    if samples := found["detail"].get("samples"):
        yield "questions", [f"{found['detail']['count']} of them, as", *map(str, samples)]
    yield "pages", [_page(row) for row in found["pages"]] or [_NONE]


def _request_lines(request: Mapping[str, Any]) -> list[str]:
    amount = _money(request)
    known = (request["method"], request["path"], amount, f"version {request['api_version']}")
    lines = [" ".join(str(part) for part in known if part)]
    if request["unreadable"]:
        lines.append(request["unreadable"])
    if "params" in request:
        lines.append(json.dumps(request["params"], ensure_ascii=False))
    return lines


def _attempt(row: Mapping[str, Any]) -> str:
    said = (
        _time(row["started_at"]),
        row["outcome"],
        row["http_status"],
        row["vendor_request_id"],
        "replayed" * row["replayed"],
        "late" * row["late"],
        row["detail"],
    )
    return " ".join(str(part) for part in said if part)


def _looks(looks: Mapping[str, Any]) -> str:
    said = f"{looks['count']} counted, {looks['found_nothing']} found nothing"
    if looks["last_quiet_absence_at"]:
        said += f", the last quiet one at {_time(looks['last_quiet_absence_at'])}"
    return said + (f"; next at {_time(looks['next_at'])}" if looks["next_at"] else "")


def _webhook(row: Mapping[str, Any]) -> str:
    said = (_time(row["received_at"]), row["event_id"], row["kind"], row["state"], row["detail"])
    return " ".join(str(part) for part in said if part)


def _vendor_lines(vendor: Mapping[str, Any]) -> list[str]:
    lines = [
        " ".join(
            str(part)
            for part in (
                found["object"],
                found["standing"],
                found["word"],
                _money(found),
                found["mode"],
            )
            if part
        )
        for found in vendor["objects"]
    ]
    word = {
        "found": "found, and nothing in it",
        "absent": "nothing of it",
        "unreadable": f"cannot be read: {vendor['said']}",
        "not_asked": vendor["said"],
    }[vendor["answer"]]
    return lines or [word]


def _page(row: Mapping[str, Any]) -> str:
    reason = row["dedup_key"].split(":")[2]
    said = (row["action"], reason, row["pager"], row["state"], _time(row["sent_at"]), row["detail"])
    return " ".join(str(part) for part in said if part)


def _money(row: Mapping[str, Any]) -> str:
    amount = row["amount_minor"]
    return "" if amount is None else f"{amount} {row['currency'] or ''} (minor units)"


def _time(at: Any) -> str:
    return "" if at is None else written(at)
