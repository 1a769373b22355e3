"""Odd logs of losses, and odd options of their forecasts."""

from random import Random

_EXTREMES = ("0", "-1", "nan", "inf", "5e-324", "1e-300", "1e300", "2147483647", "1e400", "", "x")
_POINTS = ("4x", "100x", "1.0001x", "2147483647 steps", "3B tokens", *_EXTREMES)
_SCHEDULES = (
    "constant:peak={0}",
    "cosine:peak=3e-3,horizon={0}",
    "wsd:peak={0},horizon=2147483647",
)


def lines(random: Random) -> list[str]:
    """Lines of a log in which a value, a column or all of them are extreme, or none is."""
    count = random.choice([0] + [9] * 3 + [20] * 6)
    gap = random.choice([1, 100, 100, 100, 10**6, 10**8])
    peak = random.choice([3e-3] * 8 + [0, -1, 1e-12, 1e3, 1e200])
    scale = random.choice([1, 1, 1, 1, 300, 0.004, 1e300, -1])
    rows = [[(i + 1) * gap, peak, scale * (2 + 6 * (i + 1) ** -0.35)] for i in range(count)]
    if count and random.random() < 0.2:
        random.choice(rows)[random.randrange(3)] = random.choice(_EXTREMES)
    header = random.choice(["step,lr,loss"] * 20 + ["step,loss,lr", "step;lr;loss", ""])
    return [header, *(",".join(map(str, row)) for row in rows)]


def options(random: Random) -> list[str]:
    """Some options of a forecast with odd values."""
    values = {
        "--to": _POINTS,
        "--decay": [f"linear:{x}" for x in ("0.99", "0.0001", "0.1:1", *_EXTREMES)],
        "--schedule": [x.format(y) for x in _SCHEDULES for y in ("3e-3", *_EXTREMES)],
        "--warmup": _EXTREMES,
        "--tokens-per-step": _EXTREMES,
    }
    return [f"{x}={random.choice(y)}" for x, y in values.items() if random.random() < 0.08]
