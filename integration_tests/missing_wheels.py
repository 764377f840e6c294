"""Skips tests that import a Python package which scripts/install_wheels.py could not install.

A pytest plugin. Input: `missing` in the virtual environment, a line with name and reason for each package.
Invariant: without that file, or while it is empty, no error becomes a skip.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REASONS = Path(sys.prefix) / "missing"


def skip_reason(error: BaseException | None) -> str | None:
    """Why a test with this error is skipped, or None if it failed."""
    reasons = REASONS.read_text(encoding="utf-8").split("\n") if REASONS.exists() else []
    packages = "; ".join(filter(None, reasons))
    return f"{error}, because packages are missing: {packages}" if packages and isinstance(error, ImportError) else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """A file that cannot be imported."""
    report = yield
    call = getattr(report, "call", None)
    reason = skip_reason(call.excinfo.value.__cause__) if call and call.excinfo else None
    if report.failed and reason:
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, f"Skipped: {reason}")
    return report


def skip_after_import_error() -> Iterator[None]:
    try:
        return (yield)
    except ImportError as error:
        if reason := skip_reason(error):
            pytest.skip(reason)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    return (yield from skip_after_import_error())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    return (yield from skip_after_import_error())
