"""`outbox consume`: each result once, in one transaction with what the application makes of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.desk import Desk
from tests.cli.ran import WAIT_S

HANDLERS = r"""
from sqlalchemy import text

def apply(session, settlement):
    session.execute(
        text("INSERT INTO public.paid VALUES (:id, :status)"),
        {"id": settlement.identity["invoice_id"], "status": settlement.business_status},
    )

def picky(session, settlement):
    apply(session, settlement)
    if settlement.identity["invoice_id"] == "in_bad":
        raise ValueError("Jane Doe is not in our books")

def careless(session, settlement):
    apply(session, settlement)
    session.commit()

def plain_commit(session, settlement):
    apply(session, settlement)
    session.execute(text("COMMIT"))

def closes(session, settlement):
    session.close()

def swallows(session, settlement):
    if settlement.identity["invoice_id"] == "in_bad":
        try:
            session.execute(text("SELECT 1/0"))
        except Exception:
            return
    apply(session, settlement)

def deferred(session, settlement):
    if settlement.identity["invoice_id"] == "in_bad":
        session.execute(text("INSERT INTO public.lines VALUES ('no such invoice')"))
    else:
        session.execute(text("INSERT INTO public.lines VALUES (:id)"),
                        {"id": settlement.identity["invoice_id"]})
    apply(session, settlement)

def exits(session, settlement):
    apply(session, settlement)
    if settlement.identity["invoice_id"] == "in_bad":
        raise SystemExit(5)

async def later(session, settlement):
    apply(session, settlement)

def later_inside(session, settlement):
    return later(session, settlement)

def yields(session, settlement):
    yield apply(session, settlement)

class Later:
    async def __call__(self, session, settlement):
        apply(session, settlement)

later_called = Later()

def drops(session, settlement):
    session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

def drops_and_swallows(session, settlement):
    try:
        drops(session, settlement)
    except Exception:
        pass

def paints(session, settlement):
    raise type("\x1b[31mRED\n", (Exception,), {})("x")
"""


@pytest.fixture
def shop(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """An application in the current folder, with a table of its own."""
    (tmp_path / "shop_billing.py").write_text(HANDLERS)
    (tmp_path / "vendors.py").write_text("raise SystemExit('imported in place of ours')")
    monkeypatch.chdir(tmp_path)
    desk.sql("CREATE TABLE public.paid (invoice text, status text)")
    return desk


def paid(shop: Desk) -> list[str]:
    return [r["invoice"] for r in shop.sql("SELECT invoice FROM public.paid ORDER BY 1")]


def consume(function: str, *more: str) -> tuple[str, ...]:
    return ("consume", f"shop_billing:{function}", "--consumer", "billing", "--once", *more)


def test_each_result_is_consumed_once_with_what_the_application_made_of_it(shop: Desk) -> None:
    for name in ("in_a", "in_b"):
        shop.succeeded(invoice_id=name)
    first = shop.run(*consume("apply"), "--json")
    assert (first.code, first.json) == (0, {"schema": 1, "consumed": 2, "failed": 0})
    assert shop.run(*consume("apply"), "--json").json["consumed"] == 0
    assert paid(shop) == ["in_a", "in_b"]


def test_a_result_that_cannot_be_used_comes_again_and_holds_up_no_other(shop: Desk) -> None:
    for name in ("in_bad", "in_good"):
        shop.succeeded(invoice_id=name)
    ran = shop.run(*consume("picky"))
    assert ran.code == 3
    assert "ValueError" in ran.err
    assert "Jane" not in ran.err
    assert paid(shop) == ["in_good"]
    assert shop.run(*consume("apply")).code == 0
    assert paid(shop) == ["in_bad", "in_good"]


def test_later_results_of_an_intent_wait_for_the_one_that_failed(shop: Desk) -> None:
    bad, _ = shop.succeeded(invoice_id="in_bad")
    shop.sql(
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
        "VALUES (%(id)s, 99, 'business', 'succeeded', 'settled', outbox.clock())",
        {"id": bad},
    )
    ran = shop.run(*consume("picky"), "--json")
    assert ran.json == {"schema": 1, "consumed": 0, "failed": 1}
    waiting = shop.sql("SELECT * FROM outbox.deliveries WHERE consumed_at IS NULL")
    assert len(waiting) == 2


def test_a_function_that_commits_is_stopped_before_it_can_lose_a_result(shop: Desk) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume("careless"))
    assert ran.code != 0
    assert "must not commit" in ran.err


@pytest.mark.parametrize("handler", ["plain_commit", "closes"])
def test_a_function_that_ends_the_transaction_in_another_way_is_stopped_too(
    shop: Desk, handler: str
) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume(handler))
    assert (ran.code, ran.out) == (4, "")
    assert "must not commit" in ran.err


@pytest.mark.parametrize("handler", ["swallows", "deferred", "exits"])
def test_one_result_that_breaks_its_function_takes_no_other_with_it(
    shop: Desk, handler: str
) -> None:
    shop.sql("ALTER TABLE public.paid ADD UNIQUE (invoice)")
    shop.sql(
        "CREATE TABLE public.lines (invoice text REFERENCES public.paid (invoice) "
        "DEFERRABLE INITIALLY DEFERRED)"
    )
    for name in ("in_a", "in_bad", "in_c"):
        shop.succeeded(invoice_id=name)
    ran = shop.run(*consume(handler), "--json")
    assert (ran.code, ran.json) == (3, {"schema": 1, "consumed": 2, "failed": 1})
    assert paid(shop) == ["in_a", "in_c"]
    assert shop.run(*consume("apply"), "--json").json["consumed"] == 1


@pytest.mark.parametrize("handler", ["later", "yields", "later_called"])
def test_a_function_of_which_a_call_runs_nothing_is_refused(shop: Desk, handler: str) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume(handler))
    assert (ran.code, ran.out) == (2, "")
    assert "async or a generator" in ran.err
    assert shop.run(*consume("apply"), "--json").json["consumed"] == 1


def test_a_result_whose_function_returns_what_nobody_runs_is_not_consumed(shop: Desk) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume("later_inside"), "--json")
    assert (ran.code, ran.json) == (3, {"schema": 1, "consumed": 0, "failed": 1})
    assert "returned a coroutine" in ran.err
    assert shop.run(*consume("apply"), "--json").json["consumed"] == 1


@pytest.mark.parametrize("handler", ["drops", "drops_and_swallows"])
def test_a_connection_that_is_lost_under_a_function_loses_no_result(
    shop: Desk, handler: str
) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume(handler))
    assert (ran.code, ran.out) == (6, "")
    assert shop.run(*consume("apply"), "--json").json["consumed"] == 1


def test_what_a_function_raises_does_not_drive_the_terminal(shop: Desk) -> None:
    shop.succeeded(invoice_id="in_a")
    ran = shop.run(*consume("paints"))
    assert ran.code == 3
    assert "\x1b" not in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("body", ["raise SystemExit(5)", "raise ValueError('no')", "import gone"])
def test_a_module_that_cannot_be_imported_is_a_usage_error(shop: Desk, body: str) -> None:
    Path("shop_broken.py").write_text(body)
    ran = shop.run("consume", "shop_broken:apply", "--consumer", "billing", "--once")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be imported" in ran.err


@pytest.mark.parametrize("handler", ["shop_billing", "nothing_there:apply", "shop_billing:nothing"])
def test_a_function_that_is_not_there_is_a_usage_error(shop: Desk, handler: str) -> None:
    ran = shop.run("consume", handler, "--consumer", "billing", "--once")
    assert (ran.code, ran.out) == (2, "")


def test_one_bad_result_keeps_no_full_batch_waiting(shop: Desk) -> None:
    names = ["in_bad", *(f"in_{n}" for n in range(8))]
    for name in names:
        shop.succeeded(invoice_id=name)
    ran = shop.run(*consume("picky", "--limit", "2"), "--json")
    assert (ran.code, ran.json) == (3, {"schema": 1, "consumed": 8, "failed": 1})
    assert paid(shop) == sorted(names[1:])


def test_the_loop_consumes_the_good_ones_beside_as_many_bad_ones_as_a_batch_holds(
    shop: Desk,
) -> None:
    shop.succeeded(invoice_id="in_bad")
    shop.sql(
        "INSERT INTO outbox.settlements (intent_id, version, kind, status, told, at) "
        "SELECT id, 99, 'business', 'succeeded', 'settled', outbox.clock() FROM outbox.intents"
    )
    good = [f"in_{n}" for n in range(6)]
    for name in good:
        shop.succeeded(invoice_id=name)
    process = shop.start("consume", "shop_billing:picky", "--consumer", "billing", "--limit", "1")
    try:
        with shop.connect() as connection:
            for _ in range(int(WAIT_S * 20)):
                if paid(shop) == good:
                    break
                connection.execute("SELECT pg_sleep(0.05)")
        assert paid(shop) == good
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_the_loop_consumes_what_comes_and_ends_when_it_is_told_to(shop: Desk) -> None:
    process = shop.start("consume", "shop_billing:apply", "--consumer", "billing")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "consume: ready\n"
        shop.succeeded(invoice_id="in_later")
        with shop.connect() as connection:
            for _ in range(int(WAIT_S * 20)):
                if connection.execute("SELECT FROM public.paid").fetchall():
                    break
                connection.execute("SELECT pg_sleep(0.05)")
        assert paid(shop) == ["in_later"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
