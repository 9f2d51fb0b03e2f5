"""Timing: the first call apart from the warm ones, competitors in alternation."""

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

Call = Callable[[], Any]

REPETITIONS = 5
SLOW_CALL_SECONDS = 10.0
_MOST_REPETITIONS = 30
_ROUNDS_SECONDS = 2.0
_CHEAP_ROUND_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of the first call, which compiles, and of the warm calls in order."""

    first: float
    warm: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.warm)

    @property
    def compiling(self) -> float:
        """Tracing, compiling and loading: what the first call took beyond a warm one."""
        return max(self.first - self.median, 0.0)

    def as_json(self) -> dict[str, Any]:
        return {
            "median_s": self.median,
            "min_s": min(self.warm),
            "max_s": max(self.warm),
            "repetitions": len(self.warm),
            "first_call_s": self.first,
            "compile_s": self.compiling,
        }


class Clock:
    """Seconds left until a deadline."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


def timed(call: Call) -> tuple[float, Any]:
    """Seconds until the result of one call is ready, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def repetitions(round_seconds: float, slowest_call: float, left: float) -> int:
    """How many rounds to time: at least five, unless calls are slow or time runs out."""
    if slowest_call > SLOW_CALL_SECONDS:
        wanted = 3
    else:
        wanted = int(_ROUNDS_SECONDS / round_seconds)
        wanted = min(max(wanted, REPETITIONS), _MOST_REPETITIONS)
    affordable = int(max(left, 0.0) / round_seconds)
    least = REPETITIONS if round_seconds < _CHEAP_ROUND_SECONDS else 2
    return max(min(wanted, affordable), least)


def alternate(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Times the calls in turn, `rounds` times, so that a drift of the machine meets them all.

    Every other round runs in reverse order, so that no call always follows the same neighbour.
    The garbage collector waits until the end, as in `timeit`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                elapsed, result = timed(calls[name])
                del result
                seconds[name].append(elapsed)
    finally:
        gc.enable()
    return seconds


def ratio(slower: Timing, faster: Timing) -> dict[str, float]:
    """How many times longer one takes: of the medians, and the quartiles of the paired rounds."""
    pairs = [a / b for a, b in zip(slower.warm, faster.warm, strict=True)]
    lower, _, upper = statistics.quantiles(pairs, n=4, method="inclusive")
    return {"of_medians": slower.median / faster.median, "quartile_1": lower, "quartile_3": upper}
