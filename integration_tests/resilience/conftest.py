"""The attacked servers, and the place for results. `target.py` says how to attack your deployment."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import ledger
import pytest
import target as targets
from server import Server
from target import Bystander, Target


@pytest.fixture
def target() -> Iterator[Callable[..., Target]]:
    """Gives the server to attack. Without arguments, that is the user's deployment, if the environment names
    one. Flags, a `model` or variables need a new process, so such a test is skipped for a deployment. The
    process must end without an error."""
    with ExitStack() as stack:

        def get(*flags: str, model: str | Path = "tied-bf16", environment: dict[str, str] | None = None) -> Target:
            own = flags or model != "tied-bf16" or environment
            if targets.URL:
                if own:
                    pytest.skip(f"RESILIENCE_URL is set: this needs a server of its own ({model} {' '.join(flags)})")
                return Target(None, targets.KEY)
            server = stack.enter_context(Server(model, *flags, environment=environment))
            key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else ""
            return Target(server, key)

        yield get


@pytest.fixture
def bystander() -> type[Bystander]:
    """A well-behaved client: `with bystander(target) as others:`, then `others.lost`."""
    return Bystander


@pytest.fixture
def record() -> Callable[..., None]:
    """Records a row of the table in docs/hardening.md. For a deployment, the row is printed instead."""
    if targets.URL:
        return lambda *row: print("|", *row, sep=" | ")
    return ledger.record
