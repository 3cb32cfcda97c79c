"""Shell completion, as the shells themselves run it."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.desk import SCRIPT, Desk

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def bash(desk: Desk, tmp_path: Path) -> Desk:
    """A desk with the console script on the path and the script that bash sources."""
    program = tmp_path / "outbox"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {SCRIPT} "$@"\n')
    program.chmod(0o755)
    desk.env["PATH"] = f"{tmp_path}:{desk.env['PATH']}"
    (tmp_path / "complete").write_text(desk.invoke("completion", "bash").out)
    desk.env["SOURCED"] = str(tmp_path / "complete")
    return desk


def completed(desk: Desk, line: str, **env: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    script = (
        f'source "$SOURCED"; COMP_WORDS=({shlex.join(words[:-1])} "{words[-1]}"); '
        f"COMP_CWORD={len(words) - 1}; compopt() {{ :; }}; "
        f'_outbox_completion outbox; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**desk.env, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    return [line for line in ran.stdout.splitlines() if line]


def test_bash_completes_commands_options_and_words(bash: Desk) -> None:
    assert completed(bash, "outbox esc") == ["escalation"]
    assert {"list", "show", "landed", "not-landed"} <= set(completed(bash, "outbox escalation "))
    assert completed(bash, "outbox escalation landed --rec") == ["--receipt"]
    assert completed(bash, "outbox intent list --status unk") == ["unknown"]
    assert "exit-codes" in completed(bash, "outbox help ")
    assert completed(bash, "outbox completion ") == list(SHELLS)


def test_bash_completes_ids_and_names_from_the_ledger(bash: Desk) -> None:
    lost, _ = bash.lost(tenant="globex")
    settled, _ = bash.succeeded()
    question = bash.escalate(lost)
    closed = bash.escalate(settled)
    bash.sql(
        "UPDATE outbox.escalations SET closed_at = clock_timestamp() WHERE id = %(i)s",
        {"i": closed},
    )
    assert completed(bash, "outbox escalation show ") == [str(question)]
    assert completed(bash, f"outbox escalation landed {str(question)[:3]}") == [str(question)]
    assert completed(bash, "outbox intent show ") == [str(lost)]
    assert str(settled) in completed(bash, f"outbox intent show {str(settled)[:7]}")
    assert completed(bash, "outbox intent list --vendor str") == ["stripe"]
    assert completed(bash, "outbox intent list --tenant ") == ["globex"]
    assert completed(bash, "outbox intent list --tool ch") == ["charge_invoice"]
    assert completed(bash, "outbox vendor pause ") == ["stripe/default"]
    assert completed(bash, "outbox escalation show zz") == []


ODD = ("$(touch ran)", "`touch ran`", "a; touch ran", "*", "two words", "x,y", "q'uote", 'd"q')


def test_bash_gets_what_a_tenant_is_called_as_one_word_and_nothing_to_expand_or_run(
    bash: Desk, tmp_path: Path
) -> None:
    for tenant in ODD:
        bash.enqueue(tenant=tenant)
    # No release of ours takes such names in; the ledger may hold them all the same.
    for number, tenant in enumerate(("hid\u202eden", "two\nlines", "esc\x1b]0;x\x07")):
        named = bash.enqueue(tenant=f"t{number}")
        bash.sql(
            "UPDATE outbox.intents SET tenant = %(t)s WHERE id = %(i)s", {"t": tenant, "i": named}
        )
    bash.env["IN"] = str(tmp_path)
    (tmp_path / "a_file").touch()
    offered = completed(bash, "outbox intent list --tenant ")
    words = subprocess.run(
        ["bash", "--norc", "-c", f'cd "$IN"; printf "%s\\n" {" ".join(offered)}'],
        env=bash.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(words.stdout.splitlines()) == sorted(ODD)
    assert not (tmp_path / "ran").exists()
    assert completed(bash, 'outbox intent list --tenant \\"') == ["x,y"], "in a quotation"


def test_a_tab_and_a_return_run_nothing_that_a_tenant_is_called(bash: Desk, tmp_path: Path) -> None:
    """In an interactive bash, with its own reading of lines."""
    called = bash.enqueue(tenant="$(touch ran)")
    starred = bash.enqueue(tenant="*")
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], cwd=tmp_path,
        env={**bash.env, "TERM": "dumb", "PS1": "> ", "COLUMNS": "200"},
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)

    def until(words: str, give_up_s: float = 60.0) -> None:
        seen, end = "", time.monotonic() + give_up_s
        while words not in seen:
            assert time.monotonic() < end, seen
            if select.select([master], [], [], 0.1)[0]:
                seen += os.read(master, 65536).decode()

    try:
        until("> ")
        os.write(master, b'source "$SOURCED"; echo so""urced\n')
        until("sourced")
        for typed, intent_id in ((b"$", called), (b"\\*", starred)):
            os.write(master, b"outbox intent list --tenant " + typed + b"\t")
            until("touch" if typed == b"$" else "* ")
            os.write(master, b"\n")
            until(str(intent_id))
    finally:
        shell.kill()
        shell.wait()
        os.close(master)
    assert not (tmp_path / "ran").exists()


def test_nothing_is_said_and_nobody_waits_while_the_database_is_away(bash: Desk) -> None:
    with socket.socket() as deaf:  # accepts, and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        silent = f"postgresql://u@127.0.0.1:{deaf.getsockname()[1]}/x"
        for url in (silent, "postgresql://u@127.0.0.1:9/x", "mysql://x", ""):
            started = time.monotonic()
            assert completed(bash, "outbox escalation show ", DATABASE_URL=url) == []
            took_s = time.monotonic() - started
            assert took_s < float(bash.env["OUTBOX_STATEMENT_TIMEOUT_S"]), url
        assert completed(bash, "outbox intent list --vendor s", DATABASE_URL=silent) == [
            "smtp", "stripe"
        ]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_the_shells_own(desk: Desk, shell: str) -> None:
    ran = desk.invoke("completion", shell)
    assert ran.code == 0
    assert f"_OUTBOX_COMPLETE={shell}_complete" in ran.out
    assert desk.invoke("completion", shell, "--json").json["script"] == ran.out
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=ran.out, text=True, check=False)
        assert checked.returncode == 0


def test_another_shell_is_a_usage_error(desk: Desk) -> None:
    ran = desk.invoke("completion", "tcsh")
    assert (ran.code, ran.out) == (2, "")
