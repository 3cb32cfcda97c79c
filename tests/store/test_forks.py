"""A process that forks after it has used the outbox: a pre-loading web server, multiprocessing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

from outbox.outcomes import Refused
from outbox.store import records
from outbox.store.records import Ended
from tests.store.book import CHARGE, SCOPE, Book, charge, receipt

PATIENCE_S = 60

ASKING = """
import os, sys
from uuid import UUID
from outbox import Outbox, Settings

outbox = Outbox(Settings(database_url=sys.argv[1]))
landed, refused = UUID(sys.argv[2]), UUID(sys.argv[3])
assert outbox.wait(landed).told == "settled"
child = os.fork()
asked, word = (landed, "settled") if child else (refused, "failed")
for _ in range(200):
    answer = outbox.wait(asked, 5.0)
    assert (answer.intent_id, answer.told) == (asked, word), answer
outbox.close()
if child:
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    assert outbox.wait(landed).told == "settled"
"""

RINGING = """
import os, sys
from outbox.doorbell import Doorbell

bell = Doorbell(sys.argv[1], timeout_s=5.0)
def ring():
    bell.answer()
    assert bell.ring()
    assert bell.listen(5.0)

ring()
child = os.fork()
if not child:
    ring()
else:
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    ring()
"""

CONSUMING = """
import os, sys
from outbox import Settings
from outbox.consuming import Consumer

def tell(session, settlement):
    os.write(1, f"{settlement.id}\\n".encode())

consumer = Consumer(Settings(database_url=sys.argv[1]), "billing", tell, limit=1)
assert consumer.once().done == 1
child = os.fork()
while consumer.once().done:
    pass
consumer.close()
if child:
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
"""

BUILDING = """
import os, threading
from outbox.forks import PerProcess

parent, building, go_on = os.getpid(), threading.Event(), threading.Event()

def build():
    if os.getpid() == parent:
        building.set()
        go_on.wait()
    return os.getpid()

own = PerProcess(build)
thread = threading.Thread(target=own.get)
thread.start()
building.wait()
child = os.fork()
if not child:
    os._exit(0 if own.get() == os.getpid() else 1)
ended = os.waitpid(child, 0)[1]
go_on.set()
thread.join()
assert (ended, own.get()) == (0, parent)
"""


def run(program: str, *arguments: str) -> str:
    # Python 3.12 warns of any fork of a process with threads, and every pool has some.
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *arguments],
        check=False,
        cwd=os.getcwd(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_no_process_is_told_another_intents_outcome_after_a_fork(book: Book) -> None:
    landed, refused = book.enqueue().intent_id, book.enqueue().intent_id
    rows = {row.id: row for row in book.claimer().claim(64)}
    with book.store.transaction() as tx:
        records.record(
            tx,
            [
                Ended(rows[landed], receipt(rows[landed])),
                Ended(rows[refused], Refused("declined", covers_key=True)),
            ],
        )
    run(ASKING, book.settings.database_url, str(landed), str(refused))


def test_a_forked_process_rings_over_a_connection_of_its_own(redis_url: str) -> None:
    run(RINGING, redis_url)


def test_a_consumer_over_a_fork_hands_each_result_over_once(book: Book) -> None:
    count = 30
    with book.engine.begin() as connection:
        book.outbox.enqueue_many(connection, CHARGE, [(SCOPE, charge()) for _ in range(count)])
    rows = book.claimer().claim(count)
    with book.store.transaction() as tx:
        records.record(tx, [Ended(row, receipt(row, f"pi_{row.seq}")) for row in rows])
    told = Counter(run(CONSUMING, book.settings.database_url).split())
    written = book.sql("SELECT id FROM outbox.settlements")
    assert told == Counter(str(row["id"]) for row in written)


def test_a_lock_that_a_thread_held_at_the_fork_does_not_hold_the_child() -> None:
    run(BUILDING)
