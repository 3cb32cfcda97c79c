"""How many examples a property is tried on, and how they are chosen.

``quick`` (the default) chooses the same examples in every run, so that a push is never red by
chance; ``deep`` walks at random for long, prints how to repeat what it finds, and keeps it.
``HYPOTHESIS_PROFILE`` names the profile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

_T = TypeVar("_T", bound=Callable[..., Any])

# A database of the module's own is a fixture; generating is slow where two cores are shared.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
}
settings.register_profile("quick", derandomize=True, database=None, **_COMMON)
settings.register_profile("deep", derandomize=False, print_blob=True, **_COMMON)

NAME = os.environ.get("HYPOTHESIS_PROFILE", "quick")
_TIMES = {"deep": 40}.get(NAME, 1)


def bounded(examples: int, **more: Any) -> settings:
    """The profile's settings with so many examples in the quick form. A decorator of one test: a
    profile that is loaded would be that of every other folder's tests too."""
    return settings(settings.get_profile(NAME), max_examples=examples * _TIMES, **more)
