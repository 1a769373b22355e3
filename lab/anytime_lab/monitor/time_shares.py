"""What the time since the first start of a run went into."""

import datetime
from pathlib import Path

from anytime_jax.checkpoints.metric_records import read_starts
from anytime_jax.formatting import format_duration

LOST, REST = "lost work", "none of these"


def time_shares(run_dir: str | Path) -> tuple[float, dict[str, float]]:
    """Returns the seconds from the first start to the last record, and shares of them, sum 1.

    Work is lost if a later start went on from an earlier step. The rest is the time without a
    process, the time in which a process started, and the time between the last record of a process
    and its end. Without a record of time, there are 0 seconds and no shares.
    """
    starts = [x for x in read_starts(run_dir) if x["seconds"] and "started" in x]
    spent: dict[str, float] = {}
    lost = 0.0
    for i, start in enumerate(starts):
        kept_to = min((x["from_step"] for x in starts[i + 1 :]), default=float("inf"))
        kept = next((x for step, x in reversed(start["seconds"]) if step <= kept_to), {})
        for name, seconds in kept.items():
            spent[name] = spent.get(name, 0.0) + seconds
        lost += sum(start["seconds"][-1][1].values()) - sum(kept.values())
    if not starts:
        return 0.0, {}
    first, last = (datetime.datetime.fromisoformat(starts[i]["started"]) for i in (0, -1))
    total = (last - first).total_seconds() + sum(starts[-1]["seconds"][-1][1].values())
    known = sum(spent.values()) + lost
    total = max(total, known)  # a clock may have been set back
    parts = {**spent, LOST: lost, REST: total - known}
    return total, {name: seconds / total for name, seconds in parts.items()} if total else {}


def describe(run_dir: str | Path) -> list[str]:
    """Returns a line with the shares; none without a record of time."""
    total, shares = time_shares(run_dir)
    parts = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return [f"  of {format_duration(total)} since the first start: {parts}"] if parts else []
