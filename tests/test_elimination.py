"""The order in which a sparse linear system is eliminated."""

import itertools

import numpy as np
import pytest

from gradsolve._fused.elimination import elimination


def _products(pattern: np.ndarray, order: tuple[int, ...]) -> int:
    """The products of an elimination in which any row can be the pivot, counted with sets."""
    rows = {i: {*np.flatnonzero(pattern[i]), i} for i in range(len(pattern))}
    total = 0
    for unknown in order:
        candidates = [i for i, columns in rows.items() if unknown in columns]
        union = set().union(*(rows[i] for i in candidates)) - {unknown}
        total += (len(candidates) - 1) * len(union)
        rows.update({i: set(union) for i in candidates})
        del rows[unknown]
    return total


def _random(size: int, density: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((size, size)) < density


@pytest.mark.parametrize("seed", range(20))
def test_it_is_an_order_that_takes_no_more_products(seed):
    pattern = _random(12, 0.2, seed)
    before = pattern.copy()
    order = elimination(pattern).order
    assert sorted(order) == list(range(12))
    assert _products(pattern, order) <= _products(pattern, tuple(range(12)))
    assert (pattern == before).all()
    assert order == elimination(pattern).order


def test_it_is_close_to_the_best():
    """The next unknown is the cheapest one, which need not lead to the fewest in all."""
    found, fewest = 0, 0
    for seed in range(30):
        pattern = _random(5, 0.3, seed)
        found += _products(pattern, elimination(pattern).order)
        fewest += min(_products(pattern, order) for order in itertools.permutations(range(5)))
    assert fewest <= found <= 1.1 * fewest


@pytest.mark.parametrize(
    "pattern",
    [np.ones((4, 4), bool), np.eye(6, dtype=bool), np.tri(5, dtype=bool).T, np.ones((1, 1), bool)],
    ids=["full", "diagonal", "triangular", "scalar"],
)
def test_what_cannot_be_improved_keeps_its_order(pattern):
    assert elimination(pattern).order == tuple(range(len(pattern)))


def test_a_hub_comes_last():
    pattern = np.eye(8, dtype=bool)
    pattern[0, :] = pattern[:, 0] = True
    order = elimination(pattern).order
    # With one neighbour left, the hub costs no more than that one.
    assert order == (1, 2, 3, 4, 5, 6, 0, 7)
    # The row of the hub can be any pivot, so that it lends its columns to all.
    assert _products(pattern, order) == sum(range(8))
    assert _products(pattern, tuple(range(8))) == 140
