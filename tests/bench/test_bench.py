"""The benchmark itself: what counts, what is void, and what makes a row not right."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from rich.console import Console

from tests.bench import report
from tests.bench.__main__ import main
from tests.bench.calibration import Calibration, calibrate, moved
from tests.bench.effects import Ledger, changed_bodies, duplicates
from tests.bench.groups import ASKED, GROUPS, LONG, OF_PEERS
from tests.bench.harness import Group, Measure, Run, repeated
from tests.bench.peers import PGQUEUER
from tests.bench.programs import Stuck
from tests.bench.rows import BY_NAME, ROWS, Pair, Result, Row
from tests.bench.sizes import SHORT
from tests.bench.stage import Place
from tests.bench.stripe_lists import Lists, reads

_STEADY = Calibration(1.0, 1.0)
_AT_LEAST = Row("a", "ours", "theirs", 2.0, "per s")
_AT_MOST = Row("b", "ours", "theirs", 1.2, "ms", "at most")


def repetitions(
    measure: Measure, count: int = 3, machine: Callable[[], Calibration] = lambda: _STEADY
) -> Result:
    """The row "wake", measured by what the test brings and not by any server."""
    run = Run(cast(Any, None), SHORT)
    (result,) = repeated(Group(("wake",), measure), run, count, machine)
    return result


def by(*ratios: float) -> Measure:
    """A measurement that finds these ratios, one after the other."""
    left = iter(ratios)

    def measure(run: Run) -> Mapping[str, Pair]:
        return {"wake": Pair(next(left), 1.0)}

    return measure


def speeds(*seconds: float) -> Callable[[], Calibration]:
    """A machine that takes so long for the fixed work, each time that it is asked."""
    left = iter(seconds)
    return lambda: Calibration(next(left), 1.0)


def of(row: Row, *ratios: float, wanted: int = 3, faults: tuple[str, ...] = ()) -> Result:
    """A row's result with these ratios."""
    return Result(row, tuple(Pair(ratio, 1.0) for ratio in ratios), wanted, faults=faults)


def test_a_row_is_judged_by_the_median_of_its_ratios_and_shows_their_spread() -> None:
    result = of(_AT_LEAST, 1.9, 5.0, 2.1)
    assert (result.ratio, result.spread, result.ok) == (2.1, (1.9, 5.0), True)


@pytest.mark.parametrize(("row", "good", "bad"), [(_AT_LEAST, 2.0, 1.99), (_AT_MOST, 1.2, 1.21)])
def test_a_goal_is_met_at_its_very_number_and_missed_beyond_it(
    row: Row, good: float, bad: float
) -> None:
    assert of(row, good, good, good).ok
    missed = of(row, bad, bad, bad)
    assert (missed.ok, missed.why_not) == (False, "the goal is missed")


def test_a_row_with_fewer_repetitions_than_were_asked_for_is_not_right() -> None:
    few = of(_AT_LEAST, 3.0, 3.0, wanted=3)
    assert (few.ratio, few.ok, few.why_not) == (3.0, False, "2 of 3 repetitions count")


def test_each_ratio_is_of_the_two_that_were_measured_side_by_side() -> None:
    slow, fast = Pair(10.0, 5.0), Pair(1000.0, 500.0)
    assert Result(_AT_LEAST, (slow, fast), 2).spread == (2.0, 2.0)


def test_a_repetition_during_which_the_machine_changed_by_a_third_is_done_again() -> None:
    result = repetitions(by(9.0, 0.5, 0.6), 2, speeds(1.0, 1.4, 1.0, 1.1, 1.0, 1.0))
    assert (result.ratio, result.void, len(result.pairs)) == (0.55, 1, 2)
    assert result.ok


def test_a_machine_that_never_rests_ends_the_run_and_the_row_is_not_right() -> None:
    asked = 0

    def restless() -> Calibration:
        nonlocal asked
        asked += 1
        return Calibration(1.0 + asked % 2, 1.0)

    result = repetitions(by(*[0.5] * 100), 3, restless)
    assert (result.ok, result.ratio, result.void) == (False, None, 4)
    assert result.why_not == "0 of 3 repetitions count, 4 void"


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [((1.0, 1.0), (1.0, 1.5), 0.5), ((2.0, 1.0), (1.0, 1.0), 1.0), ((1.0, 1.0), (1.0, 1.0), 0.0)],
)
def test_a_calibration_moves_by_the_worse_of_processor_and_disk_in_either_direction(
    before: tuple[float, float], after: tuple[float, float], share: float
) -> None:
    assert moved(Calibration(*before), Calibration(*after)) == pytest.approx(share)


def test_the_fixed_work_takes_time_on_both(tmp_path: Path) -> None:
    found = calibrate(tmp_path)
    assert min(found.processor_s, found.disk_s) > 0


def planted(tmp_path: Path, *writes: tuple[str, str, str]) -> Ledger:
    """A vendor's record with these calls: key, owner, body."""
    ledger = Ledger(tmp_path)
    for key, owner, body in writes:
        ledger.add(key.encode().ljust(32), owner.encode().ljust(16), body)
    return ledger


def test_a_second_call_under_a_key_and_a_second_key_of_a_write_are_both_duplicates(
    tmp_path: Path,
) -> None:
    ledger = planted(tmp_path, ("k1", "a", "x"), ("k1", "a", "x"), ("k2", "b", "x"))
    assert (duplicates(ledger), changed_bodies(ledger), len(ledger)) == (1, 0, 3)
    ledger = planted(tmp_path, ("k3", "b", "x"))
    assert duplicates(ledger) == 2


def test_a_key_that_comes_with_another_body_is_seen(tmp_path: Path) -> None:
    assert changed_bodies(planted(tmp_path, ("k", "a", "x"), ("k", "a", "y"))) == 1


def test_both_lists_show_each_write_once_over_their_pages_and_every_page_is_counted(
    tmp_path: Path,
) -> None:
    ledger = planted(tmp_path, *[(f"k{n}", f"o{n}", "x") for n in range(250)])
    lists = Lists(ledger, str(tmp_path))
    for path in ("/v1/payment_intents", "/v1/events"):
        shown: list[str] = []
        more, after = True, ""
        while more:
            page = json.loads(lists.page(f"{path}?limit=100{after}") or b"")
            found = [one.get("data", {}).get("object", one) for one in page["data"]]
            shown += [one["metadata"]["outbox_key"] for one in found]
            more, after = page["has_more"], f"&starting_after={page['data'][-1]['id']}"
        assert sorted(shown) == sorted(effect.key.hex() for effect in ledger)
    assert lists.page("/v1/account") is None
    assert reads(str(tmp_path)) == 6


def test_a_record_that_was_cut_short_by_a_kill_hides_no_other(tmp_path: Path) -> None:
    ledger = planted(tmp_path, ("k1", "a", "x"))
    (path,) = tmp_path.glob("effects-*")
    with path.open("ab") as file:
        file.write(b"half a record")
    assert [effect.key.strip() for effect in ledger] == [b"k1"]


class _Answers:
    """A database in which everything landed."""

    def __call__(self, statement: str, params: object = None) -> list[dict[str, Any]]:
        return [{"n": 1}]


@contextmanager
def place_of(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(Place, "doctor", lambda self: [])
    answers = cast(Any, _Answers())
    yield Place(cast(Any, None), "none", "", {}, ledger, answers)


@pytest.mark.parametrize("resends", [False, True])
def test_a_planted_duplicate_upstream_call_makes_the_row_not_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resends: bool
) -> None:
    ledger = planted(tmp_path, ("k1", "a", "x"), ("k2", "a", "x"))

    def measure(run: Run) -> Mapping[str, Pair]:
        with place_of(ledger, monkeypatch) as place:
            place.check(1, resends=resends)
            run.take(place)
        return {"wake": Pair(0.1, 1.0)}

    result = repetitions(measure)
    assert result.ratio == pytest.approx(0.1)
    assert (result.ok, result.faults) == (False, ("1 duplicate upstream calls",))


def test_after_a_kill_a_repeat_under_the_same_key_is_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = planted(tmp_path, ("k1", "a", "x"), ("k1", "a", "x"))
    with place_of(ledger, monkeypatch) as place:
        place.check(1, resends=True)
        assert place.faults == []
        place.check(1)
        assert place.faults == ["1 duplicate upstream calls"]


def test_a_backlog_is_settled_once_all_of_it_arrived_and_nothing_is_left(tmp_path: Path) -> None:
    answers, ledger = [{"yes": False}], planted(tmp_path, ("k1", "a", "x"))
    sql = cast(Any, lambda _: answers)
    place = Place(cast(Any, None), "none", "", {}, ledger, sql)
    assert not place.is_settled(1)
    answers[0]["yes"] = True
    assert place.is_settled(1)
    assert not place.is_settled(2)


@pytest.mark.parametrize(("kept", "faults"), [(1, ()), (0, ("pgqueuer: 0 receipts of 1 writes",))])
def test_a_peer_that_kept_no_receipt_of_a_write_is_no_reference(
    tmp_path: Path, kept: int, faults: tuple[str, ...]
) -> None:
    def sql(statement: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {
            PGQUEUER.left: {"yes": False}, PGQUEUER.receipts: {"n": kept},
        }  # fmt: skip
        return [found[statement]]

    run, ledger = Run(cast(Any, None), SHORT), planted(tmp_path, ("k1", "a", "x"))
    PGQUEUER.finish(run, Place(cast(Any, None), "none", "", {}, ledger, cast(Any, sql)), 1)
    assert tuple(run.faults) == faults


def test_what_a_void_repetition_broke_is_broken_all_the_same() -> None:
    def measure(run: Run) -> Mapping[str, Pair]:
        run.faults.append("doctor: a rule is broken")
        return {"wake": Pair(0.1, 1.0)}

    result = repetitions(measure, 1, speeds(1.0, 2.0, 1.0, 2.0))
    assert (result.faults, result.void) == (("doctor: a rule is broken",), 2)


def test_what_is_broken_in_one_row_makes_no_other_one_not_right() -> None:
    def measure(run: Run) -> Mapping[str, Pair]:
        run.fault("an index is not used", "wake")
        return {"wake": Pair(0.1, 1.0), "lanes": Pair(1.0, 1.0)}

    run = Run(cast(Any, None), SHORT)
    found = repeated(Group(("wake", "lanes"), measure), run, 1, lambda: _STEADY)
    assert [(result.ok, result.why_not) for result in found] == [
        (False, "an index is not used"),
        (True, ""),
    ]
    assert run.faults_of == {}


def test_a_measurement_that_does_not_end_is_told_and_keeps_the_others() -> None:
    def measure(run: Run) -> Mapping[str, Pair]:
        raise Stuck("all intents settled: not within 300 s")

    result = repetitions(measure)
    assert (result.ok, result.ratio) == (False, None)
    assert result.why_not.startswith("all intents settled: not within 300 s; 0 of 3")


def test_a_run_whose_time_is_up_measures_nothing_more() -> None:
    run = Run(cast(Any, None), SHORT, end=0.0)
    (result,) = repeated(Group(("wake",), by(0.5)), run, 3, lambda: _STEADY)
    assert (result.ok, result.faults) == (False, ("no time was left",))


def test_the_json_has_a_verdict_and_of_each_row_its_ratio_and_goal(tmp_path: Path) -> None:
    told = report.as_json([of(_AT_LEAST, 3.0, 2.0, 2.5), of(_AT_MOST)], {"short": True})
    path, _ = report.written(told, tmp_path / "bench")
    read = json.loads(path.read_text())
    assert read["ok"] is False
    first, second = read["rows"]
    wanted = {"name": "a", "against": "theirs", "ratio": 2.5, "goal": 2.0, "ok": True}
    assert first.items() >= wanted.items()
    assert (first["low"], first["high"], first["why"]) == (2.0, 3.0, "")
    assert (second["ratio"], second["ok"]) == (None, False)
    assert report.as_json([of(_AT_LEAST, 3.0, 2.0, 2.5)], {})["ok"] is True
    assert report.as_json([], {})["ok"] is False
    assert report.as_json([of(_AT_LEAST, 3.0, 2.0, 2.5)], {}, whole=False)["ok"] is False


def test_the_table_says_why_a_row_is_not_right() -> None:
    console = Console(file=io.StringIO(), width=200)
    told = report.as_json([of(_AT_LEAST, 1.0, 1.0, 1.0), of(_AT_MOST, wanted=1)], {})
    report.show(told, console)
    shown = cast(io.StringIO, console.file).getvalue()
    assert "the goal is missed" in shown
    assert "0 of 1 repetitions count" in shown


def test_what_the_ledger_takes_is_kept_and_shown_beside_the_rows() -> None:
    bytes_of = {"intents": 1170.6, "intents_lane": 0.1}
    growth = {"intents": 11_000_000, "bytes_per_intent": bytes_of}
    told = report.as_json([of(_AT_LEAST, 3.0, 3.0, 3.0)], {}, {"growth": growth})
    assert told["growth"] == growth
    console = Console(file=io.StringIO(), width=200)
    report.show(told, console)
    shown = cast(io.StringIO, console.file).getvalue()
    assert "of 11,000,000 intents" in shown
    assert "1170.6" in shown
    assert "intents_lane" not in shown


def test_every_row_is_measured_by_one_group() -> None:
    measured = [name for group in GROUPS for name in group.rows]
    assert sorted(measured) == sorted(row.name for row in ROWS) == sorted(BY_NAME)
    assert set(BY_NAME) >= OF_PEERS | LONG | ASKED


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "nothing"], "--only"),
        (["--repeat", "0"], "--repeat"),
        (["--repeat", "often"], "--repeat"),
        (["--short", "--only", "drain-dbos"], "--only"),
        (["--fast"], "--fast"),
    ],
)
def test_a_wrong_setting_ends_with_code_2_and_names_it(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(("ratio", "code"), [(0.9, 0), (1.1, 1)])
def test_a_goal_that_is_missed_ends_with_code_1(
    ratio: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("tests.bench.__main__._FOLDER", tmp_path)
    results = [of(BY_NAME["killed"], ratio, wanted=1)]
    monkeypatch.setattr("tests.bench.__main__._measured", lambda *_, **__: results)
    assert main(["--only", "killed", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


@pytest.mark.parametrize(
    ("arguments", "measured"),
    [
        ([], set(BY_NAME)),
        (["--short"], set(BY_NAME) - LONG - ASKED),
        (["--short", "--only", "faulty"], {"faulty"}),
    ],
)
def test_the_short_form_has_the_long_measurements_only_where_they_are_asked_for(
    arguments: list[str], measured: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()

    def take(names: frozenset[str], *_: object, **__: object) -> list[Result]:
        asked.update(names)
        return []

    monkeypatch.setattr("tests.bench.__main__._FOLDER", tmp_path)
    monkeypatch.setattr("tests.bench.__main__._measured", take)
    monkeypatch.setattr("tests.bench.__main__.PYTHON", Path(__file__))  # the peers are there
    main(arguments)
    assert asked == measured


def test_a_write_has_one_owner_whatever_process_wrote_it_down(tmp_path: Path) -> None:
    owner = uuid4()
    ledger = Ledger(tmp_path)
    ledger.add(b"k" * 32, owner.bytes, {"amount": 1})
    (effect,) = ledger
    assert (effect.owner, effect.key) == (owner.bytes, b"k" * 32)
    assert effect.at_ns > 0
