"""More faults: those that were put in to attack the proof, beside the ones that each rule of the
design suggests."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one
from tests.mutants.mutate import Edit

_UNHEARD = "event payment_intent.succeeded#1=never"
_SENT_AGAIN = "keys: wire of A#1=lost_request; time#1=a_minute; time#2=a_minute"
_AMENDED = "event payment_intent.succeeded#1=amended"
_HELD = (
    "tests/store/test_held_rows.py::test_what_replaces_a_refused_write_is_claimed_by_no_way_"
    "once_that_one_may_have_landed"
)

BESIDE = (
    one(
        "the head of a lane does not ask what it replaces",
        "outbox.store.claims_sql",
        "    AND {MAY} AND {IS_FREE}\n    LIMIT %(limit)s",
        "    AND {MAY}\n    LIMIT %(limit)s",
        test=_HELD,
    ),
    one(
        "a row that lost its worker does not ask what it replaces",
        "outbox.store.claims_sql",
        "    AND {MAY} AND {IS_FREE}\n    ORDER BY i.due_at LIMIT 1",
        "    AND {MAY}\n    ORDER BY i.due_at LIMIT 1",
        test=_HELD,
    ),
    one(
        "the head of a lane at a rate does not ask what it replaces",
        "outbox.store.claims_metered_sql",
        "    AND {MAY} AND {IS_FREE}) t",
        "    AND {MAY}) t",
        test=_HELD,
    ),
    one(
        "a row at a rate does not ask what it replaces",
        "outbox.store.claims_metered_sql",
        "AND {ROW_MAY} AND {IS_FREE}\n        ORDER BY",
        "AND {ROW_MAY}\n        ORDER BY",
        test=_HELD,
    ),
    one(
        "evidence slips between a refusal and its successor",
        "outbox.store.enqueueing_sql",
        'AND i.tenant = CAST(%(tenant)s AS text) FOR SHARE OF i"',
        'AND i.tenant = CAST(%(tenant)s AS text)"',
        test="tests/store/test_held_rows.py::test_no_evidence_slips_between_the_question_what_"
        "became_of_a_write_and_its_successor",
    ),
    one(
        "a repeat marks a word that it was not given",
        "outbox.store.enqueueing_sql",
        '    "AND version = CAST(%(version)s AS integer) AND settled_at IS NOT NULL "',
        '    "AND CAST(%(version)s AS integer) > 0 AND settled_at IS NOT NULL "',
        test="tests/store/test_waiting.py"
        "::test_what_moved_before_a_repeat_is_answered_is_not_marked_by_it",
    ),
    one(
        "absence is not reckoned from a lost worker's lease",
        "outbox.store.doubt",
        "crashes = crashes + 1, last_lease_end = lease_until,",
        "crashes = crashes + 1,",
        test="tests/resolvers/test_sweeping.py"
        "::test_a_lease_that_runs_is_left_alone_and_one_that_ended_is_doubt",
    ),
    one(
        "a probe passes through a pause",
        "outbox.store.claims_sql",
        "    WHERE kind = 'breaker' AND probe_at <= outbox.clock() FOR UPDATE SKIP LOCKED",
        "    WHERE kind = 'pause' OR probe_at <= outbox.clock() FOR UPDATE SKIP LOCKED",
        test="tests/store/test_questions.py"
        "::test_the_probe_of_one_account_lets_nothing_of_a_paused_one_through",
    ),
    one(
        "the time to start begins after the claim",
        "workers.sender",
        "        began = self._means.since_boot_s()\n"
        "        with self._pace.claiming():\n"
        "            rows = self._claimer.claim(most, without=room.full)\n",
        "        with self._pace.claiming():\n"
        "            rows = self._claimer.claim(most, without=room.full)\n"
        "        began = self._means.since_boot_s()\n",
        scenarios=("keys",),
        timelines=("keys: A commits#2=5",),
    ),
    one(
        "the time to start of a row alone begins after its claim",
        "workers.sender",
        "        began = self._means.since_boot_s()\n        rows = self._claimer.claim_alone()\n",
        "        rows = self._claimer.claim_alone()\n        began = self._means.since_boot_s()\n",
        scenarios=("keys",),
        timelines=(
            "keys: wire of A#1=worker_killed_before; time#1=past_the_lease; time#2=a_minute; "
            "A commits#13=5",
        ),
    ),
    one(
        "a verifying look that failed found nothing",
        "resolvers.verifying",
        "    if isinstance(seen, Unreadable) and not seen.never:\n        return\n",
        "",
        scenarios=("no_keys",),
        timelines=("no_keys: wire of A#1=redelivery; time#1=past_the_ttl; read of A#1=lost",),
    ),
    one(
        "a key that was new to the vendor is not looked after",
        "workers.recording",
        "is_replay = outcome.wire.replayed or row.doubt == 0",
        "is_replay = True",
        scenarios=("keys",),
        timelines=(
            f"keys: wire of A#1=lost_ack; {_UNHEARD}; time#1=a_minute; read of A#1=lost; "
            "wire of A#2=pruned_early",
        ),
    ),
    one(
        "a first send without keys does not ask for the clock",
        "outbox.store.claims_sql",
        "AND NOT ((i.status = 'retryable' OR k.window_s IS NULL)",
        "AND NOT (i.status = 'retryable'",
        scenarios=("no_keys",),
        timelines=("no_keys: turn#1=clock_ahead",),
    ),
    one(
        "the claim does not ask for pauses",
        "outbox.store.claims_sql",
        ", closed AS (SELECT gate_prefix FROM outbox.switches WHERE kind <> 'clock'{",
        ", closed AS (SELECT gate_prefix FROM outbox.switches WHERE false{",
        scenarios=("keys",),
        timelines=("keys: turn#1=person; verdict#1=pause",),
    ),
    Mutant(
        "each send puts the question off",
        (
            Edit(
                "outbox.store.claims_sql",
                "ttl_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.ttl_at",
                "ttl_at = CASE WHEN false THEN i.ttl_at",
            ),
            Edit(
                "outbox.store.claims_sql",
                "escalate_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.escalate_at",
                "escalate_at = CASE WHEN false THEN i.escalate_at",
            ),
        ),
        scenarios=("keys",),
        timelines=(
            "keys: wire of A#1=lost_request; time#1=a_minute; wire of A#2=stored_500_no_object",
        ),
    ),
    one(
        "each send begins the window",
        "outbox.store.claims_sql",
        "first_sent_at = COALESCE(i.first_sent_at, outbox.clock()),",
        "first_sent_at = outbox.clock(),",
        scenarios=("keys",),
        timelines=(_SENT_AGAIN,),
    ),
    one(
        "each send has another body",
        "vendors.stripe",
        "dict(call.params), options)",
        '{**dict(call.params), "description": __import__("os").urandom(4).hex()}, options)',
        scenarios=("keys",),
        timelines=(_SENT_AGAIN,),
    ),
    one(
        "a look-up holds its transaction",
        "resolvers.together",
        "        seen: dict[UUID, LookUp] = {}\n"
        "        if contract.can_look_up and row.doubt > 0:\n"
        "            seen[row.id] =",
        "            seen: dict[UUID, LookUp] = {}\n"
        "            if contract.can_look_up and row.doubt > 0:\n"
        "                seen[row.id] =",
        scenarios=("keys",),
        timelines=(f"keys: wire of A#1=lost_ack; {_UNHEARD}; time#1=a_minute",),
    ),
    one(
        "a person who looks holds no re-send",
        "resolvers.decide",
        "    if evidence.person_is_looking or row.crashes >= policy.max_crashes:",
        "    if row.crashes >= policy.max_crashes:",
        scenarios=("keys",),
        timelines=(
            "keys: wire of A#1=lost_request; time#1=past_the_ttl; turn#3=person; verdict#1=ack; "
            "time#2=a_minute; time#3=a_minute; time#4=a_minute",
        ),
    ),
    one(
        "a person rules against what the vendor shows",
        "resolvers.triage_receipt",
        "    if landed:\n",
        "    if False:\n",
        scenarios=("no_keys",),
        timelines=(
            "no_keys: wire of A#1=lost_ack; time#1=past_the_ttl; turn#2=person; "
            "verdict#1=not_landed",
        ),
    ),
    Mutant(
        "an object of somebody else proves it",
        (
            Edit(
                "resolvers.triage_receipt",
                "        owned = reading.owner == str(row.id)",
                "        owned = True",
            ),
            Edit(
                "vendors.stripe_lookup",
                "    if reading is None or not is_ours(call, reading):",
                "    if reading is None:",
            ),
        ),
        scenarios=("keys",),
        timelines=(
            "keys: wire of A#1=stored_500_no_object; time#1=a_minute; turn#2=person; "
            "verdict#1=landed_as_another",
        ),
    ),
    one(
        "another amount is taken for the right one",
        "resolvers.decide",
        "    if len(amounts) > 1:\n",
        "    if False:\n",
        scenarios=("keys",),
        timelines=(f"keys: {_AMENDED}",),
    ),
    Mutant(
        "what was taken back guards nothing",
        (
            Edit(
                "outbox.store.moves",
                "retracted_at = CASE WHEN told_at IS NOT NULL AND (%(contradiction)s OR "
                "%(settles)s)",
                "retracted_at = CASE WHEN false",
            ),
            Edit(
                "outbox.store.contradictions",
                '"retracted_at = CASE WHEN told_at IS NOT NULL AND contradicted_at IS NULL "',
                '"retracted_at = CASE WHEN false "',
            ),
        ),
        scenarios=("epochs",),
        timelines=(f"epochs: {_AMENDED}; turn#2=agent_asks; turn#3=next_turn",),
    ),
    one(
        "a consumer hears of no contradiction",
        "outbox.store.contradictions",
        '    if not told:\n        settlements.write(tx, row, "contradiction")',
        "",
        scenarios=("keys",),
        timelines=(f"keys: {_AMENDED}; turn#2=consumer",),
    ),
    one(
        "a new reason of an open question pages nobody",
        "outbox.store.escalations",
        '        _page(tx, found["id"], new, "trigger")\n',
        "",
        scenarios=("keys",),
        timelines=(
            "keys: wire of A#1=stored_500_no_object; time#1=past_the_ttl; time#2=past_the_window",
        ),
    ),
    one(
        "a vendor is thanked for an event that was not stored",
        "resolvers.receiving",
        '        return UNAVAILABLE, "the event was not stored: the database does not answer"',
        '        return OK, "stored"',
        scenarios=("keys",),
        timelines=("keys: web commits#1=1",),
    ),
)
