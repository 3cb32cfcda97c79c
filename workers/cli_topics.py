"""What `outbox help TOPIC` tells: what holds for every command, once."""

from __future__ import annotations

from collections.abc import Mapping

TOPICS: Mapping[str, tuple[str, str]] = {
    "exit-codes": (
        "what each exit code says",
        """\
0    done; also where the same had been done before
1    a bug of ours; where in the program stands on stderr
2    usage: a wrong option, an ambiguous id (the candidates are listed),
     or a wrong setting; nothing was changed
3    a check found something (doctor, health, vendor check, schema check,
     consume --once, drill); what it found is on stdout
4    refused by policy; nothing was changed, and the reason is on stderr
5    there is no such row; candidates are listed where there are some
6    the database or the vendor is unreachable; ask again
7    declined at the prompt; nothing was changed
74   the output could not be written (a full disk, a closed stdout)
130  interrupted by Ctrl-C; a --watch that is ended so exits with 0""",
    ),
    "triage": (
        "from a page to a verdict",
        """\
A page names one open question and the first command to type:

  1  outbox escalation show ID
     The evidence side by side, what the vendor shows now, and for each
     verdict: allowed or refused and why, the status it would leave, and
     the command to type.
  2  outbox escalation landed ID --receipt RECEIPT --reason '...'
     or not-landed, resend, or `outbox intent cancel`: copied from there.
     On a terminal it asks first, with tenant, account, amount, age and
     window; elsewhere give --yes. --dry-run checks all and changes nothing.

`ack` says that you look at it (no page and no re-send until then), `mute`
keeps pages away. Evidence that comes while you look settles a doubt by
itself; the verdict is then a repeat and says so. A contradiction is
closed by a person only. Who ruled, when and why: outbox intent history.

To rule you need the vendor's credential in the environment, as the worker
has it; to look you do not (--offline).""",
    ),
    "ids": (
        "how rows are named",
        """\
An intent or a question is named by its id or by the first 6 or more of its
hex digits; dashes do not count. A question is also named by its intent's
id. A prefix that names several is a usage error (2) and changes nothing.
Ids are never cut in a list; scripts should use whole ones.""",
    ),
    "output": (
        "tables, pipes and JSON",
        """\
On a terminal: tables and sections as wide as it is. Piped: tab-separated,
with a header, whole ids and no colour. --json: one object with "schema": 1
on one line; lists are {"items": [...], "next": ...}; give `next` to --after
for the next page. Data is on stdout and talk on stderr; an error is one
line there, or {"error": {"code", "message", "field", "candidates"}}.
NO_COLOR and TERM=dumb are honoured.

Amounts are in the currency's smallest unit. Times are UTC, in JSON in
ISO 8601; names that end in _s are seconds.

Arguments, request and receipt may hold personal data and are shown only
with --with-request.""",
    ),
    "watch": (
        "--watch, on a terminal and for scripts",
        """\
`intent list` and `show`, `escalation list` and `show`, and `health` take
--watch: the same again every 2 s (--every 5s) until q or Ctrl-C, exit 0.
Other keys look again at once. While the database is away it says so and
goes on.

With --json each change is one object on a line of its own, also piped:
of a list {"change": "added" | "changed" | "removed", "item": {...}}, where
removed means that it is no longer on that page; of one thing the thing
itself. Ages alone are no change. Without --json a pipe is refused (2).""",
    ),
    "times": (
        "durations and times as they are typed",
        """\
A duration is a number with s, m, h or d, or several: 90s, 0.5s, 5m, 1h30m,
1d. A time is ISO 8601, as 2026-11-30T09:00Z; without a zone it is UTC.
Every age, TTL and window is by the database's clock.""",
    ),
    "settings": (
        "where settings come from",
        """\
From the environment only: DATABASE_URL, REDIS_URL, PORT, each vendor's own
names, and OUTBOX_ names; all faults are told at once. `outbox config show`
has every one with its value, unit and source. OUTBOX_ACTOR is who you are
in the audit log, the system's user by default.""",
    ),
}
