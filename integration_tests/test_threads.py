"""The compute threads as the system sees them: their number and their CPUs."""

import os
import re
from pathlib import Path

import pytest
from server import Server, command, run

MODEL = "tied-bf16"
ALL = sorted(os.sched_getaffinity(0))


def allowed(server: Server) -> dict[str, set[int]]:
    """The CPUs that each compute thread of the server may use, by the thread's name."""
    found = {}
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        if re.fullmatch(r"compute-\d+", status["Name"]):
            ranges = [part.split("-") for part in status["Cpus_allowed_list"].split(",")]
            found[status["Name"]] = {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}
    return found


@pytest.fixture
def confined():
    """Confines this thread, and the processes that it starts, to some CPUs."""
    yield lambda cpus: os.sched_setaffinity(0, cpus)
    os.sched_setaffinity(0, ALL)


@pytest.mark.parametrize(
    "flags",
    [("--pin-threads=false", "--threads", str(len(ALL))), ("--threads", str(len(ALL) + 1))],
    ids=["free", "more-than-cpus"],
)
def test_threads_are_free_if_a_flag_says_so_or_if_there_are_more_than_cpus(flags):
    with Server(MODEL, *flags) as server:
        # The thread that owns the backend is another one.
        helpers = range(1, int(flags[-1]))
        assert allowed(server) == {f"compute-{index}": set(ALL) for index in helpers}
        assert server.get("/info").json()["pin_threads"] is False


@pytest.mark.parametrize("count", {1, len(ALL)})
def test_each_pinned_thread_has_a_cpu_of_its_own(count):
    # As many threads as CPUs are pinned without a flag.
    environment = {} if count == len(ALL) > 1 else {"PIN_THREADS": "true"}
    with Server(MODEL, "--threads", str(count), environment=environment) as server:
        threads = allowed(server)
        assert list(sorted(threads)) == sorted(f"compute-{index}" for index in range(count))
        assert all(len(cpus) == 1 and cpus <= set(ALL) for cpus in threads.values())
        assert len(set.union(*threads.values())) == count
        info = server.get("/info").json()
        assert (info["threads"], info["pin_threads"]) == (count, True)
        noun = "thread" if count == 1 else "threads"
        assert f"on cpu, {count} pinned {noun} with " in server.log()
        assert len(server.scores("q", ["a", "b"])) == 2


def test_pinned_threads_stay_within_the_cpus_of_the_process(confined):
    confined({ALL[-1]})
    with Server(MODEL, "--pin-threads") as server:
        # One thread for each CPU that it may use.
        assert allowed(server) == {"compute-0": {ALL[-1]}}
    ended = run(*command(MODEL, "--pin-threads", "--threads", "2")[1:])
    assert ended.returncode == 1
    assert ended.stderr == (
        "Error: `--pin-threads` needs a CPU for each of 2 compute threads, but this process may use 1: give "
        "`--threads 1`, or leave `--pin-threads` out\n"
    )
