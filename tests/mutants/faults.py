"""The faults that are put in, each a mistake that somebody could make, and what finds it: the
timelines of the simulator, or a test by name."""

from __future__ import annotations

from tests.mutants.faults_beside import BESIDE
from tests.mutants.mutant import Mutant, one
from tests.mutants.mutate import Edit

# The vendor's event about the charge never comes.
_UNHEARD = "event payment_intent.succeeded#1=never"
# A first answer is lost, and then the vendor refuses what it would take for a new request.
_LOST_THEN_REFUSED = (
    f"keys: wire of A#1=lost_ack; {_UNHEARD}; time#1=a_minute; read of A#1=lost; "
    "wire of A#2=refused_400"
)

MUTANTS = (
    one(
        "the window is ignored",
        "outbox.policy",
        "return max(adapted.window_s - margin, 0.0)",
        "return 10 * adapted.window_s",
        scenarios=("keys",),
        timelines=(
            f"keys: wire of A#1=lost_ack; {_UNHEARD}; time#1=past_the_window; read of A#1=lost",
        ),
    ),
    one(
        "the margin leaves out the in-flight bound",
        "outbox.policy",
        "self.lease_s + adapted.in_flight_bound_s + self.margin_slack_s",
        "self.lease_s + self.margin_slack_s",
        test="tests/unit/test_policy.py::test_no_send_can_still_land_after_the_window",
    ),
    one(
        "quiescence leaves out the in-flight bound",
        "outbox.policy",
        "return self.adapted(contract).in_flight_bound_s + contract.read_lag_s",
        "return contract.read_lag_s",
        scenarios=("absent",),
        timelines=("absent: wire of A#1=late_170; time#1=past_the_lease; time#2=a_minute",),
    ),
    one(
        "a timeout means failed",
        "outbox.store.records",
        "        case Lost():\n            return Event.LOST",
        "        case Lost():\n            return Event.REFUSED",
        scenarios=("keys",),
        timelines=(f"keys: wire of A#1=lost_ack; {_UNHEARD}",),
    ),
    one(
        "a 500 means refused",
        "vendors.stripe_answers",
        "    return _undecided(status, code, wire)",
        "    return Refused(code, covers_key=True, wire=wire)",
        scenarios=("keys",),
        timelines=(f"keys: wire of A#1=bad_gateway_after; {_UNHEARD}",),
    ),
    one(
        "a lost answer means not sent",
        "vendors.http_json",
        'return Lost(f"no_answer:{cause_of(failure)}" if failure else "no_answer")',
        'return NotSent("no_answer")',
        scenarios=("no_keys",),
        timelines=("no_keys: wire of A#1=lost_ack",),
    ),
    one(
        "a refusal after a lost attempt is final",
        "outbox.states",
        "    settles = facts.doubt == 0 or facts.covers_key",
        "    settles = True",
        scenarios=("keys",),
        timelines=(_LOST_THEN_REFUSED,),
    ),
    one(
        "a refusal that covers nothing is taken as final",
        "vendors.stripe_answers",
        "return Refused(word_of(error), executed or wire.replayed, reading, wire)",
        "return Refused(word_of(error), True, reading, wire)",
        scenarios=("keys",),
        timelines=(_LOST_THEN_REFUSED,),
    ),
    one(
        "a new key for each attempt",
        "vendors.stripe",
        "        key = call.key.hex()\n",
        '        key = __import__("os").urandom(32).hex()\n',
        scenarios=("keys",),
        timelines=("keys: wire of A#1=answered",),
    ),
    one(
        "an answer is recorded by the id alone",
        "outbox.store.records_sql",
        "AND i.version = e.version AND i.lease_token = e.token AND i.status || '' = 'in_flight'",
        "",
        test="tests/workers/test_sender_deadlines.py"
        "::test_a_zombie_that_comes_back_after_its_lease_never_overwrites_newer_state",
    ),
    one(
        "a move is written by the id alone",
        "outbox.store.moves",
        "WHERE id = %(id)s AND version = %(version)s\nRETURNING",
        "WHERE id = %(id)s\nRETURNING",
        test="tests/store/test_moves.py"
        "::test_a_writer_that_read_an_older_version_is_too_late_and_changes_nothing",
    ),
    one(
        "the claim is not committed before the call",
        "outbox.store.claims",
        "        with self._store.transaction(planned_once=True) as tx:\n            told = (",
        "        self._kept = self._store.transaction()\n        tx = self._kept.__enter__()\n"
        "        if True:\n            told = (",
        scenarios=("keys",),
        timelines=("keys: wire of A#1=answered",),
    ),
    one(
        "each tick pages again",
        "outbox.store.escalations",
        'new = sorted(set(reasons) - set(found["reasons"]))',
        "new = sorted(set(reasons))",
        test="tests/resolvers/test_escalating.py::test_fifty_ticks_ask_once",
    ),
    one(
        "a look-up that failed is an absence",
        "resolvers.decide",
        "        isinstance(evidence.look, Absent)\n        and evidence.began_at is not None",
        "        not isinstance(evidence.look, Found)\n        and evidence.began_at is not None",
        scenarios=("absent",),
        timelines=(
            "absent: wire of A#1=lost_ack; time#1=past_the_ttl; read of A#1=lost; "
            "time#2=a_minute; read of A#2=lost",
        ),
    ),
    one(
        "absence after one look",
        "resolvers.decide",
        "confirmed = quiet and _is_confirmed(row, evidence, contract, policy)",
        "confirmed = quiet",
        test="tests/resolvers/test_looking_without_keys.py"
        "::test_absence_is_not_counted_before_quiescence_and_needs_two_looks_after_it",
    ),
    one(
        "absence is counted from the claim",
        "resolvers.decide",
        "    return row.last_lease_end + timedelta(",
        "    return row.first_sent_at + timedelta(",
        test="tests/resolvers/test_looking_without_keys.py"
        "::test_absence_is_not_counted_before_quiescence_and_needs_two_looks_after_it",
    ),
    one(
        "the epoch is not checked",
        "outbox.store.claims_sql",
        "AND e.run_id = i.run_id AND e.epoch <> i.epoch AND e.ended_at IS NULL))",
        "AND e.run_id = i.run_id AND e.epoch <> i.epoch AND false))",
        test="tests/store/test_claims.py"
        "::test_a_row_whose_epoch_is_over_is_never_sent_and_a_compensation_is",
    ),
    one(
        "a late answer ends the attempt in the air",
        "outbox.store.records",
        "    if next_is_in_the_air and event is not Event.RECEIPT_FOUND and not covers:",
        "    if False:",
        test="tests/workers/test_sender_deadlines.py"
        "::test_a_zombie_cannot_end_the_attempt_that_is_in_the_air",
    ),
    Mutant(
        "an event is applied without account or mode",
        (
            Edit(
                "resolvers.joining",
                "    wrong = _wrong_place(directory, intent, account, fact)\n",
                "    wrong = None\n",
            ),
            Edit(
                "resolvers.receiving",
                "    wrong = _of_elsewhere(account, fact)\n",
                "    wrong = None\n",
            ),
        ),
        test="tests/resolvers/test_joining.py"
        "::test_an_event_of_another_mode_touches_nothing_and_asks_once",
    ),
    one(
        "a forged event is taken",
        "vendors.stripe_webhook",
        "    if not any(matches):",
        "    if not matches:",
        scenarios=("keys",),
        timelines=("keys: event payment_intent.succeeded#1=forged",),
    ),
    one(
        "the window is counted from the last send",
        "outbox.store.claims_sql",
        "window_ends_at = CASE WHEN i.first_sent_at IS NOT NULL THEN i.window_ends_at",
        "window_ends_at = CASE WHEN false THEN i.window_ends_at",
        test="tests/resolvers/test_looking.py"
        "::test_the_window_counts_from_the_first_send_and_not_from_the_last",
    ),
    one(
        "a thread starts after its lease",
        "workers.flight",
        "return self._since_boot_s() < self.start_by",
        "return True",
        scenarios=("keys",),
        timelines=("keys: gate of A#1=after_its_lease",),
    ),
    one(
        "a look raises no version",
        "outbox.store.looks",
        "UPDATE outbox.intents SET version = version + 1, looks = looks + 1,",
        "UPDATE outbox.intents SET looks = looks + 1,",
        scenarios=("no_keys",),
        timelines=("no_keys: wire of A#1=lost_request",),
    ),
    one(
        "the head of a lane is skipped",
        "outbox.store.lanes",
        "WHERE h.lane >= {lane} AND h.lane <= {lane} AND h.settled_at IS NULL",
        "WHERE h.lane >= {lane} AND h.lane <= {lane} AND h.settled_at IS NULL\n"
        "         AND h.due_at <= outbox.clock()",
        scenarios=("lane",),
        timelines=("lane: wire of A#1=lock_timeout_429",),
    ),
    Mutant(
        "the doorbell is taken down at the end",
        (
            Edit(
                "workers.sender", "if not rows and self._bell.answer():", "if not rows and False:"
            ),
            Edit(
                "workers.sender",
                "        if not emptied and not self._stopping():\n            self._bell.ring()",
                "        self._bell.answer()\n        if not emptied and not self._stopping():\n"
                "            self._bell.ring()",
            ),
        ),
        test="tests/workers/test_bell.py",
    ),
    one(
        "a contradiction is closed by a settlement",
        "outbox.store.escalations",
        '    rest = [r for r in found["reasons"] if r not in DOUBT_REASONS]\n',
        "    rest: list[str] = []\n",
        test="tests/resolvers/test_looking.py"
        "::test_two_objects_of_one_intent_are_for_a_person_and_told_once",
    ),
    one(
        "a contradiction is told as settled",
        "outbox.states",
        "    if contradicted:\n        return Told.UNKNOWN\n",
        "",
        scenarios=("no_keys",),
        timelines=("no_keys: wire of A#1=redelivery",),
    ),
    one(
        "a twin is allowed before the first was told",
        "outbox.store.records_sql",
        "        settled_at = CASE WHEN e.settles THEN outbox.clock() END\n",
        "        told_at = CASE WHEN e.settles THEN outbox.clock() END,\n"
        "        settled_at = CASE WHEN e.settles THEN outbox.clock() END\n",
        scenarios=("epochs",),
        timelines=("epochs: turn#2=next_turn",),
    ),
    one(
        "a bad row takes its batch with it",
        "workers.recording",
        'one by one: %s", len(first), _name(error))\n            alone = [*first.values(), *late]',
        'one by one: %s", len(first), _name(error))\n            alone = []',
        test="tests/workers/test_sender_batches.py",
    ),
    Mutant(
        "a veto is ignored",
        (
            Edit(
                "resolvers.decide",
                "    if row.veto or row.contradicted_at is not None or evidence.paused",
                "    if row.contradicted_at is not None or evidence.paused",
            ),
            Edit(
                "outbox.store.claims_sql",
                "    AND i.veto IS NULL AND i.contradicted_at IS NULL",
                "    AND i.contradicted_at IS NULL",
            ),
        ),
        scenarios=("keys",),
        timelines=("keys: wire of A#1=stored_500_no_object; time#1=a_minute",),
    ),
    one(
        "a vendor without keys is sent to again without leave",
        "resolvers.decide",
        "return never_left or (confirmed and row.resend_when_absent)",
        "return never_left or confirmed",
        scenarios=("no_keys",),
        timelines=("no_keys: wire of A#1=lost_request; time#1=past_the_ttl; time#2=a_minute",),
    ),
    one(
        "an ended lease means not sent",
        "outbox.store.doubt",
        "UPDATE outbox.intents i SET status = 'unknown', version = version + 1,\n"
        "                doubt = doubt + 1,",
        "UPDATE outbox.intents i SET status = 'retryable', version = version + 1,\n"
        "                doubt = doubt + 1,",
        scenarios=("keys",),
        timelines=(f"keys: wire of A#1=worker_killed_after; {_UNHEARD}; time#1=past_the_lease",),
    ),
    one(
        "nobody is asked at the end of the TTL",
        "resolvers.decide",
        '    if now >= ttl_at:\n        reasons.append("ttl")',
        "",
        test="tests/resolvers/test_escalating.py::test_fifty_ticks_ask_once",
    ),
    one(
        "a step of the clock is overlooked",
        "workers.clock_watch",
        "            if abs(step_s) > self._step_s:",
        "            if False:",
        scenarios=("keys",),
        timelines=("keys: wire of A#1=lost_request; time#1=a_minute; turn#2=clock_ahead",),
    ),
    one(
        "what a consumer has not had is pruned",
        "outbox.store.retention",
        "    WHEN EXISTS (SELECT FROM {redaction.NOT_HAD} i.id) THEN 'undelivered'\n",
        "",
        test="tests/retention/test_prune_intents.py::"
        "test_what_a_consumer_has_not_had_is_kept_until_it_has",
    ),
    one(
        "what is undecided is taken for settled by its age",
        "outbox.store.retention",
        "    WHEN i.settled_at IS NULL THEN 'unsettled'\n",
        "",
        test="tests/retention/test_prune_intents.py::"
        "test_what_is_undecided_is_never_touched_nor_its_evidence",
    ),
    one(
        "a result is not written",
        "outbox.store.moves",
        "    if settles or rules:\n        settlements.write(",
        "    if rules:\n        settlements.write(",
        scenarios=("keys",),
        timelines=("keys: wire of A#1=lost_ack",),
    ),
    one(
        "a result that a look-up brought is not written",
        "outbox.store.moves",
        '        settlements.write_all(tx, self.rows, "settled")\n',
        "",
        scenarios=("keys",),
        timelines=(f"keys: wire of A#1=lost_ack; {_UNHEARD}; time#1=a_minute",),
    ),
    one(
        "doubt is forgotten by what was not sent",
        "outbox.states",
        "return Verdict(Status.UNKNOWN if facts.doubt else _unsent(facts), moved=True)",
        "return Verdict(_unsent(facts), moved=True)",
        test="tests/unit/test_states.py",
    ),
    *BESIDE,
)
