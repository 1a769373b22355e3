"""Human-readable counts, durations, byte sizes and differences."""

import re
import time
from collections.abc import Mapping
from typing import Any


def format_count(number: float) -> str:
    """Formats a number with a letter for its thousands: 3276800000 is `3.28B`."""
    for letter in ("", "K", "M", "B"):
        if abs(number) < 999.5:
            return f"{number:.3g}{letter}"
        number /= 1000
    return f"{number:.3g}T"


def count_noun(count: int, noun: str) -> str:
    """Formats a count of things: `1 document`, `2,000 documents`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_duration(seconds: float) -> str:
    """Formats a duration: `45s`, `3m 20s`, `5h 07m`, `12d 03h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def format_time(seconds: float) -> str:
    """Formats a time in seconds since 1970: `2026-11-27 20:45 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def format_bytes(count: float) -> str:
    """Formats a number of bytes in decimal units: `6.94 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def printable(text: str) -> str:
    """Escapes control characters, which a terminal would execute."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def format_error(error: float) -> str:
    """Formats a kernel error as `355.77%`; one that would show as 0.00% is the empty string."""
    text = f"{error:.2%}"
    return "" if text == "0.00%" else text


def name_weights(label: str, error: float = 0.0) -> str:
    """Returns a label with the kernel error of the weights: `f2 (kernel error 355.77%)`."""
    text = format_error(error)
    return f"{label} (kernel error {text})" if text else label


def format_differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns text about the settings that differ, "" if none do; SHA-256 digests are shortened."""
    differences = (
        f"{name} was {was.get(name, 'not set')!r}, is {now.get(name, 'not set')!r}"
        for name in sorted(was.keys() | now.keys())
        if was.get(name) != now.get(name)
    )
    return shorten_digests("; ".join(differences))


def shorten_digests(text: str) -> str:
    """Returns a text in which SHA-256 digests have their first 12 digits alone."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def format_score(score: float) -> str:
    """Returns four decimals, or five digits of a score such as a perplexity by word."""
    return f"{score:.4f}" if abs(score) < 10_000 else f"{score:.4e}"
