"""Settings: every fault at once, each by its name, and no secret in what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox.accounts import mode_of_credential
from outbox.errors import SettingsError
from outbox.policy import Policy
from outbox.settings import Settings

LIVE, TEST = "sk_live_SECRET", "sk_test_SECRET"


def problems(**env: str) -> list[str]:
    with pytest.raises(SettingsError) as error:
        Settings.from_env(env)
    assert "SECRET" not in str(error.value)
    return [name for name, _ in error.value.problems]


def accounts(folder: Path, text: str, **env: str) -> dict[str, str]:
    path = folder / "accounts.toml"
    path.write_text(text)
    return {"OUTBOX_ACCOUNTS": str(path), **env}


def test_an_empty_environment_is_the_defaults() -> None:
    settings = Settings.from_env({})
    assert (settings.database_url, settings.redis_url, settings.pagers) == ("", "", None)
    assert (settings.port, settings.wait_s, settings.policy) == (8000, 5.0, Policy())
    assert settings.sources["OUTBOX_LEASE_S"] == "default"
    with pytest.raises(SettingsError) as error:
        settings.require_database()
    assert error.value.problems[0][0] == "DATABASE_URL"


def test_every_fault_is_shown_at_once() -> None:
    found = problems(
        DATABASE_URL="mysql://h/d",
        REDIS_URL="http://h",
        PORT="http",
        OUTBOX_PROFILE="staging",
        OUTBOX_LEASE_S="long",
        OUTBOX_LOOKS_S="1,two",
        OUTBOX_WAIT_S="",
        OUTBOX_REDIS_TIMEOUT_S="0",
        OUTBOX_PAGERS="mail",
        OUTBOX_ACCOUNTS="/nowhere/accounts.toml",
        OUTBOX_BATCH="0",
        OUTBOX_LEESE_S="60",
    )
    assert sorted(found) == sorted(
        {
            "DATABASE_URL",
            "REDIS_URL",
            "PORT",
            "OUTBOX_PROFILE",
            "OUTBOX_LEASE_S",
            "OUTBOX_LOOKS_S",
            "OUTBOX_WAIT_S",
            "OUTBOX_REDIS_TIMEOUT_S",
            "OUTBOX_PAGERS",
            "OUTBOX_ACCOUNTS",
            "OUTBOX_BATCH",
            "OUTBOX_LEESE_S",
        }
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OUTBOX_LEASE_S", "-1"),
        ("OUTBOX_LEASE_S", "nan"),
        ("OUTBOX_LEASE_S", "inf"),
        ("OUTBOX_LEASE_S", "10"),
        ("OUTBOX_THREADS", "1.5"),
        ("OUTBOX_LOOKS_S", ""),
        ("OUTBOX_LOOKS_S", "1,,2"),
        ("OUTBOX_LOOKS_S", "1,-2"),
        ("OUTBOX_STATEMENT_TIMEOUT_S", "0"),
        ("OUTBOX_LOCK_TIMEOUT_S", "0.0001"),
        ("OUTBOX_IDLE_TIMEOUT_S", "0"),
        ("OUTBOX_TICK_DRAIN_S", "0"),
        ("OUTBOX_TICK_DRAIN_S", "1e300"),
        ("OUTBOX_TTL_OVERRIDE_S", "0"),
        ("OUTBOX_TTL_OVERRIDE_S", "1e300"),
        ("OUTBOX_TTL_MAX_S", "0"),
        ("OUTBOX_TTL_MAX_S", "1e300"),
        ("OUTBOX_TTL_WITHOUT_EVIDENCE_S", "0"),
        ("OUTBOX_WINDOW_OVERRIDE_S", "0"),
        ("OUTBOX_WINDOW_OVERRIDE_S", "1e12"),
        ("OUTBOX_LOOKS_S", "1,1e300"),
        ("OUTBOX_PARK_S", "1e12"),
        ("OUTBOX_WAIT_S", "1e12"),
        ("OUTBOX_STATEMENT_TIMEOUT_S", "1e12"),
        ("OUTBOX_REDIS_TIMEOUT_S", "1e300"),
        ("OUTBOX_BATCH", "99999999999"),
        ("PORT", "70000"),
        ("OUTBOX_WEBHOOK_MAX_BYTES", "1e6"),
        ("OUTBOX_PAGERS", "file:"),
        ("OUTBOX_PAGERS", "none, file:/x"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "redis://[::1"),
        ("DATABASE_URL", "postgresql:///outbox"),
        ("DATABASE_URL", "postgresql://[::1/outbox"),
        ("DATABASE_URL", "postgresql://h:port/outbox"),
        ("DATABASE_URL", "sqlite:///x"),
        ("DATABASE_URL", "postgresql+asyncpg://h/d"),
        ("DATABASE_URL", "postgres://u:SECRET%zz@h/d"),
        ("DATABASE_URL", "postgres://u:SECRET@h:notaport/d"),
        ("DATABASE_URL", "postgres://u:SECRET@h/d?port=notaport"),
        ("DATABASE_URL", "postgres://u:SECRET@h:70000/d"),
        ("DATABASE_URL", "postgres://u:SECRET@h/d?foo=bar"),
        ("DATABASE_URL", "postgres://u:SECRET@h/d?connect_timeout=soon"),
        ("DATABASE_URL", "postgres://u:SECRET@h/d%00"),
        ("DATABASE_URL", "postgres://u:SECRET\n@h/d"),
        ("OUTBOX_ACTOR", "alice\nbob: approved"),
        ("OUTBOX_ACTOR", "\x1b[31malice"),
        ("OUTBOX_ACTOR", "alice\udcff"),
        ("OUTBOX_ENVIRONMENT", "prod\u202euction"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(name: str, value: str) -> None:
    assert problems(**{name: value}) == [name]


def test_a_misspelled_setting_is_not_silently_the_default() -> None:
    assert problems(OUTBOX_TICK_RESOLVE="1") == ["OUTBOX_TICK_RESOLVE"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("postgres://u:p@h:5432/d?sslmode=require", "postgresql+psycopg://u:p@h:5432/d?sslmode=require"),
        ("postgresql://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("postgresql:///d?host=/var/run", "postgresql+psycopg:///d?host=/var/run"),
    ],
)  # fmt: skip
def test_the_usual_spellings_of_a_database_are_understood(given: str, taken: str) -> None:
    assert Settings.from_env({"DATABASE_URL": given}).database_url == taken


@pytest.mark.parametrize(
    "url", ["redis://h:6379/0", "rediss://:p@h:6380/1", "unix:///run/r.sock?db=2"]
)
def test_the_usual_spellings_of_a_broker_are_understood(url: str) -> None:
    assert Settings.from_env({"REDIS_URL": url}).redis_url == url


def test_durations_come_from_the_environment_and_say_so() -> None:
    settings = Settings.from_env({"OUTBOX_LOOKS_S": "1, 2.5,9", "OUTBOX_BATCH": "8"})
    assert (settings.policy.looks_s, settings.policy.batch) == ((1.0, 2.5, 9.0), 8)
    assert settings.sources["OUTBOX_BATCH"] == "environment"


def test_the_demo_profile_is_the_same_policy_in_small() -> None:
    assert Settings.from_env({"OUTBOX_PROFILE": "demo"}).policy == Policy.demo()


def test_pagers_are_none_only_when_it_is_said() -> None:
    assert Settings.from_env({"OUTBOX_PAGERS": "none"}).pagers == ()
    some = "pagerduty:KEY, webhook:https://h/x  file:/tmp/pages"
    assert Settings.from_env({"OUTBOX_PAGERS": some}).pagers == (
        "pagerduty:KEY",
        "webhook:https://h/x",
        "file:/tmp/pages",
    )


# -- accounts ------------------------------------------------------------------------------------


def test_a_stripe_key_is_the_default_account_in_its_own_mode() -> None:
    settings = Settings.from_env(
        {
            "STRIPE_API_KEY": TEST,
            "STRIPE_WEBHOOK_SECRET": "whsec_1, whsec_2",
            "STRIPE_ACCOUNT_ID": "acct_1",
        }
    )
    account = settings.account("stripe", "default")
    assert account is not None
    assert (account.mode, account.vendor_account) == ("test", "acct_1")
    assert account.webhook_secrets == ("whsec_1", "whsec_2")
    assert settings.account("stripe", "other") is None


@pytest.mark.parametrize(
    ("credential", "mode"),
    [
        ("sk_live_x", "live"),
        ("rk_live_x", "live"),
        ("sk_test_x", "test"),
        ("rk_test_x", "test"),
        ("sk_liver", None),
        ("pk_live_x", None),
        ("", None),
    ],
)
def test_a_key_says_its_mode_by_its_prefix(credential: str, mode: str | None) -> None:
    assert mode_of_credential(credential) == mode


def test_a_file_names_many_accounts_and_takes_credentials_from_the_environment(
    tmp_path: Path,
) -> None:
    env = accounts(
        tmp_path,
        f"""
        [stripe.default]
        credential = "{TEST}"
        [stripe.eu]
        credential_env = "OUTBOX_EU_KEY"
        mode = "live"
        webhook_secrets = ["a", "b"]
        vendor_account = "acct_eu"
        base_url = "http://127.0.0.1:9"
        """,
        OUTBOX_EU_KEY=LIVE,
    )
    settings = Settings.from_env(env)
    assert set(settings.accounts) == {("stripe", "default"), ("stripe", "eu")}
    eu = settings.account("stripe", "eu")
    assert eu is not None
    assert (eu.credential, eu.mode, eu.vendor_account) == (LIVE, "live", "acct_eu")
    assert settings.live()


WRONG_ACCOUNTS: dict[str, str] = {
    "not TOML": "[stripe.default",
    "no table of names": 'stripe = "SECRET"',
    "no table of settings": '[stripe]\ndefault = "SECRET"',
    "no credential": "[stripe.default]\nmode = 'test'",
    "an unset credential": "[stripe.default]\ncredential_env = 'NOWHERE'",
    "a live key in test mode": f"[stripe.default]\ncredential = '{LIVE}'\nmode = 'test'",
    "a test key in live mode": f"[stripe.default]\ncredential = '{TEST}'\nmode = 'live'",
    "an unknown mode": "[stripe.default]\ncredential = 'SECRET'\nmode = 'sandbox'",
    "an unknown setting": f"[stripe.default]\ncredential = '{TEST}'\nsecret = 'SECRET'",
    "an unknown vendor": f"[stripo.default]\ncredential = '{TEST}'",
    "secrets that are one text": f"[stripe.default]\ncredential = '{TEST}'\nwebhook_secrets = 'a'",
    "an empty secret": f"[stripe.default]\ncredential = '{TEST}'\nwebhook_secrets = ['']",
    "three secrets": f"[stripe.d]\ncredential = '{TEST}'\nwebhook_secrets = ['a', 'b', 'c']",
    "a number for a credential": "[stripe.default]\ncredential = 1",
    "a yes for an account": f"[stripe.d]\ncredential = '{TEST}'\nvendor_account = true",
    "a line break in a credential": f'[stripe.default]\ncredential = "{TEST}\\n"',
    "a blank before a credential": f"[stripe.default]\ncredential = ' {TEST}'",
    "a blank within a credential": f"[stripe.default]\ncredential = '{TEST} x'",
    "a letter that no key has": f"[stripe.default]\ncredential = '{TEST}é'",
    "a line break in a secret": f'[stripe.d]\ncredential = "{TEST}"\nwebhook_secrets = ["a\\n"]',
    "a blank in an account": f"[stripe.d]\ncredential = '{TEST}'\nvendor_account = 'acct 1'",
    "a NUL in a name": f'[stripe."a\\u0000b"]\ncredential = "{TEST}"',
    "an empty name": f'[stripe.""]\ncredential = "{TEST}"',
    "a name of two spellings": f'[stripe."e\\u0301"]\ncredential = "{TEST}"',
    "an address that is none": f"[stripe.default]\ncredential = '{TEST}'\nbase_url = 'ftp://x'",
    "an address that is broken": f"[stripe.default]\ncredential = '{TEST}'\nbase_url = 'http://[x'",
}


WRONG_RATES = {
    "text": ("rate_per_s = '10'", "rate_per_s"),
    "a flag": ("rate_per_s = true", "rate_per_s"),
    "nothing at all": ("rate_per_s = 0", "rate_per_s"),
    "less than nothing": ("rate_per_s = -1.5", "rate_per_s"),
    "no number": ("rate_per_s = nan", "rate_per_s"),
    "for ever": ("rate_per_s = inf", "rate_per_s"),
    "slower than one a day": ("rate_per_s = 1e-6", "rate_per_s"),
    "a burst of none": ("rate_per_s = 10\nburst = 0", "burst"),
    "a burst of a half": ("rate_per_s = 10\nburst = 0.5", "burst"),
    "a burst that is a flag": ("rate_per_s = 10\nburst = true", "burst"),
    "a burst of too many": ("rate_per_s = 10\nburst = 100001", "burst"),
    "a burst of nothing": ("burst = 5", "burst"),
}


@pytest.mark.parametrize("what", WRONG_RATES)
def test_a_wrong_rate_is_refused_by_its_account_and_its_name(tmp_path: Path, what: str) -> None:
    said, name = WRONG_RATES[what]
    env = accounts(tmp_path, f"[stripe.eu]\ncredential = '{TEST}'\n{said}")
    with pytest.raises(SettingsError) as error:
        Settings.from_env(env)
    ((where, problem),) = error.value.problems
    assert where == "OUTBOX_ACCOUNTS [stripe.eu]"
    assert problem.startswith(name)


@pytest.mark.parametrize(
    ("said", "rate", "burst"),
    [
        ("", None, 1),
        ("rate_per_s = 25", 25.0, 3),
        ("rate_per_s = 0.2", 0.2, 1),
        ("rate_per_s = 25.5\nburst = 40", 25.5, 40),
    ],
)
def test_an_accounts_rate_is_read(
    tmp_path: Path, said: str, rate: float | None, burst: int
) -> None:
    """Without a burst: what comes in a tenth of a second."""
    env = accounts(tmp_path, f"[stripe.eu]\ncredential = '{TEST}'\n{said}")
    account = Settings.from_env(env).account("stripe", "eu")
    assert account is not None
    assert (account.rate_per_s, account.burst) == (rate, burst)


def test_limits_of_depth_are_whole_numbers_from_one() -> None:
    names = ("OUTBOX_MAX_TENANT_DEPTH", "OUTBOX_MAX_LANE_DEPTH")
    for wrong in ("0", "-3", "1.5", "many", "", "100001"):
        assert problems(**dict.fromkeys(names, wrong)) == list(names)
    read = Settings.from_env({names[0]: "500", names[1]: "1"})
    assert (read.max_tenant_depth, read.max_lane_depth) == (500, 1)
    unset = Settings.from_env({})
    assert (unset.max_tenant_depth, unset.max_lane_depth) == (None, None)


@pytest.mark.parametrize("what", WRONG_ACCOUNTS)
def test_a_wrong_account_is_refused_by_its_place(tmp_path: Path, what: str) -> None:
    found = set(problems(**accounts(tmp_path, WRONG_ACCOUNTS[what])))
    assert len(found) == 1
    assert all(where.startswith("OUTBOX_ACCOUNTS") and where.isprintable() for where in found)


def test_a_credential_of_the_environment_is_checked_as_one_of_the_file(tmp_path: Path) -> None:
    env = accounts(tmp_path, "[stripe.eu]\ncredential_env = 'EU_KEY'", EU_KEY=f"{TEST}\n")
    assert set(problems(**env)) == {"OUTBOX_ACCOUNTS [stripe.eu]"}


def test_a_default_account_in_the_file_and_in_the_environment_is_refused(tmp_path: Path) -> None:
    env = accounts(tmp_path, f"[stripe.default]\ncredential = '{TEST}'", STRIPE_API_KEY=TEST)
    assert problems(**env) == ["STRIPE_API_KEY"]


def test_two_faults_of_two_accounts_are_two_problems(tmp_path: Path) -> None:
    text = f"[stripe.a]\nmode = 'x'\ncredential = '{TEST}'\n[stripe.b]\n"
    assert problems(**accounts(tmp_path, text)) == [
        "OUTBOX_ACCOUNTS [stripe.a]",
        "OUTBOX_ACCOUNTS [stripe.b]",
    ]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    env = accounts(
        tmp_path,
        "[stripe.default]\ncredential = 'SECRET'\nwebhook_secrets = ['SECRET']",
        DATABASE_URL="postgres://u:SECRET@h/d",
        REDIS_URL="redis://:SECRET@h",
        OUTBOX_PAGERS="pagerduty:SECRET",
        OUTBOX_PAGER_SECRET="SECRET",
        OUTBOX_ACTOR="me",
    )
    settings = Settings.from_env(env)
    assert "SECRET" not in repr(settings)
    assert "SECRET" not in repr(list(settings.sources.values()))


# -- start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, []),
        ({"STRIPE_API_KEY": TEST}, []),
        ({"STRIPE_API_KEY": TEST, "OUTBOX_PROFILE": "demo"}, []),
        ({"STRIPE_API_KEY": LIVE}, ["OUTBOX_PAGERS"]),
        (
            {"STRIPE_API_KEY": LIVE, "OUTBOX_PAGERS": "none", "OUTBOX_MARGIN_OVERRIDE_S": "1"},
            ["OUTBOX_MARGIN_OVERRIDE_S"],
        ),
        (
            {"STRIPE_API_KEY": LIVE, "OUTBOX_PAGERS": "none", "OUTBOX_IN_FLIGHT_OVERRIDE_S": "1"},
            ["OUTBOX_IN_FLIGHT_OVERRIDE_S"],
        ),
        ({"STRIPE_API_KEY": TEST, "OUTBOX_MARGIN_OVERRIDE_S": "1"}, []),
        ({"STRIPE_API_KEY": "opaque"}, ["OUTBOX_PAGERS"]),
        ({"STRIPE_API_KEY": LIVE, "OUTBOX_PAGERS": "none"}, []),
        (
            {"STRIPE_API_KEY": LIVE, "OUTBOX_PAGERS": "none", "OUTBOX_PROFILE": "demo"},
            ["OUTBOX_PROFILE"],
        ),
    ],
)
def test_a_live_credential_needs_a_pager_and_the_production_profile(
    env: dict[str, Any], wanted: list[str]
) -> None:
    assert [name for name, _ in Settings.from_env(env).start_problems()] == wanted


def test_a_retention_is_a_duration_and_unset_it_is_none_at_all() -> None:
    assert Settings.from_env({}).retention_s is None
    assert Settings.from_env({"OUTBOX_RETENTION": "400d"}).retention_s == 400 * 86400
    assert Settings.from_env({"OUTBOX_RETENTION": "35d"}).retention_s == 35 * 86400


@pytest.mark.parametrize("value", ["34d23h", "", "0d", "400", "400 days", "d", "99999d"])
def test_a_retention_that_is_too_short_or_no_duration_is_named(value: str) -> None:
    assert problems(OUTBOX_RETENTION=value) == ["OUTBOX_RETENTION"]
