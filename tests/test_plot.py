"""Pictures: what is drawn, not how it looks."""

import inspect
import subprocess
import sys
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array
from matplotlib import pyplot

import gradsolve as gs

from .helpers import Decay, LotkaVolterra

TS = jnp.array([0.0, 0.5, 2.0])


@pytest.fixture(autouse=True)
def close_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def single():
    return gs.solve(
        LotkaVolterra(0.55, 0.028, 0.8, 0.024), jnp.array([34.0, 5.9]), t0=0.0, t1=2.0, ts=TS
    )


class Growth(gs.ODESystem):
    """`a' = a^2` with a pole at `1 / a(0)`; `b` decays."""

    def vector_field(self, t, y):
        return {"a": y["a"] ** 2, "b": -y["b"]}


@pytest.fixture(scope="module")
def ragged():
    """Four trajectories with windows of their own; the last one fails at t = 0.5."""
    y0 = {"a": jnp.array([0.1, 0.5, 0.9, 2.0]), "b": jnp.array([[1.0, 2.0]] * 4)}
    ts = [[0.1, 0.2, np.inf], [0.1, 0.4, 0.5], [0.3, 0.4, np.inf], [0.1, 0.4, 0.9]]
    return gs.solve(
        Growth(),
        y0,
        t0=jnp.array([0.0, 0.0, 0.2, 0.0]),
        t1=jnp.array([1.0, 0.5, 1.0, 1.0]),
        ts=jnp.array(ts),
        in_axes=gs.InAxes(y0=0, t0=0, t1=0, ts=0),
        max_steps=200,
        throw=False,
    )


def drawn(ax, color):
    """The lines of a colour: their x and y, nan where there is a gap."""
    return [line.get_xydata().T for line in ax.get_lines() if line.get_color() == color]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_trajectory_draws_dense_output_and_data(single):
    data = np.array([[30.0, 4.0], [np.nan, 5.0], [50.0, np.nan]])
    ax = gs.plot.trajectory(single, TS, data)
    assert legend(ax) == ["y[0]", "y[1]"]
    for i in range(2):
        (times, values), (at, points) = drawn(ax, f"C{i}")
        assert np.array_equal(times, np.linspace(0.0, 2.0, 300))
        assert values[0] == single.y0[i]
        assert np.isclose(values[-1], single.ys[-1, i], rtol=1e-12)
        assert np.allclose(values, single.evaluate(times)[:, i], rtol=1e-12)
        assert np.array_equal(at, TS)
        assert np.array_equal(points, data[:, i], equal_nan=True)


def test_trajectory_draws_output_times(single):
    _, given = pyplot.subplots()
    ax = gs.plot.trajectory(single, ax=given, labels=["hare", "lynx"], points=None)
    assert ax is given
    assert legend(ax) == ["hare", "lynx"]
    ((times, values),) = drawn(ax, "C0")
    assert np.array_equal(times, TS)
    assert np.array_equal(values, single.ys[:, 0])


def test_trajectories_of_an_ensemble_end_where_they_fail(ragged):
    data = {"a": np.array([[0.1, 0.2, 7.0]] * 4), "b": None}
    ax = gs.plot.trajectory(ragged, data=data)
    assert legend(ax) == ["a", "b[0]", "b[1]"]
    *lines, last, dots, _, _, _ = drawn(ax, "C0")
    assert len(lines) == 3
    for (times, values), start, end in zip(lines, (0.0, 0.0, 0.2), (1.0, 0.5, 1.0), strict=True):
        assert (times[0], times[-1]) == (start, end)
        assert np.all(np.isfinite(values))
    defined = np.isfinite(last[1])
    assert 0.49 < last[0][defined].max() < 0.51
    # Padded times of the first trajectory hide its third measurement.
    assert np.array_equal(dots[0], [0.1, 0.2, np.nan], equal_nan=True)
    # Nothing was measured of `b`.
    assert np.all(np.isnan([values for _, values in drawn(ax, "C1")[4:]]))


def test_padded_output_times_are_not_drawn(ragged):
    ax = gs.plot.trajectory(ragged, points=None)
    times, values = drawn(ax, "C0")[0]
    assert np.array_equal(times, [0.1, 0.2, np.nan], equal_nan=True)
    assert np.array_equal(values, ragged.ys["a"][0], equal_nan=True)


class State(NamedTuple):
    prey: Array
    others: tuple[Array, Array]


def test_names_come_from_the_structure():
    y0 = State(jnp.array(1.0), (jnp.ones(2), jnp.ones((1, 2))))
    nested = gs.solve(Decay(1.0), y0, t0=0.0, t1=1.0)
    names = ["prey", "others[0][0]", "others[0][1]", "others[1][0][0]", "others[1][0][1]"]
    assert legend(gs.plot.trajectory(nested, points=3)) == names
    scalar = gs.solve(Decay(1.0), jnp.array(1.0), t0=0.0, t1=1.0)
    assert legend(gs.plot.trajectory(scalar, points=3)) == ["y"]


def test_ensemble_draws_quantiles():
    y0 = jnp.linspace(1.0, 2.0, 101)
    spread = gs.solve(Decay(1.0), y0, t0=0.0, t1=1.0, in_axes=gs.InAxes(y0=0))
    ax = gs.plot.ensemble(spread, quantiles=[0.1], points=11)
    ((times, median),) = drawn(ax, "C0")
    assert np.allclose(median, 1.5 * np.exp(-times), rtol=1e-5)
    (band,) = ax.collections
    edges = np.asarray(band.get_paths()[0].vertices)
    for edge in (1.1, 1.9):
        assert np.min(np.abs(edges - [1.0, edge * np.exp(-1.0)]).sum(axis=1)) < 1e-5


def test_ensemble_counts_the_trajectories_that_exist(ragged):
    ax = gs.plot.ensemble(ragged, points=101)
    assert len(ax.collections) == 6  # two bands for each of three components
    ((times, median),) = drawn(ax, "C0")
    assert np.all(np.isfinite(median))
    # After 0.5 the second has ended and the fourth failed: the first and the third are left.
    late = times > 0.51
    both = 0.5 * (1 / (10 - times[late]) + 1 / (1 / 0.9 + 0.2 - times[late]))
    assert np.allclose(median[late], both, rtol=1e-4)


def test_steps(single, ragged):
    ax = gs.plot.steps(single)
    ((times, lengths),) = drawn(ax, "C0")
    count = int(single.mesh.num_steps)
    mesh = np.asarray(single.mesh.times)[: count + 1]
    assert np.array_equal(lengths[:count], np.diff(mesh))
    assert lengths[count] == lengths[count - 1]
    assert np.all(np.isnan(lengths[count + 1 :]))
    assert np.array_equal(times[: count + 1], mesh)
    assert ax.get_yscale() == "log"
    assert len(gs.plot.steps(ragged).get_lines()) == 4


def test_steps_of_a_backward_and_of_an_empty_window():
    backward = gs.solve(Decay(1.0), jnp.array(1.0), t0=1.0, t1=0.0)
    ((_, lengths),) = drawn(gs.plot.steps(backward), "C0")
    assert np.nanmin(lengths) > 0
    empty = gs.solve(Decay(1.0), jnp.array(1.0), t0=1.0, t1=1.0)
    ((_, lengths),) = drawn(gs.plot.steps(empty), "C0")
    assert np.all(np.isnan(lengths))


def test_loss():
    ax = gs.plot.loss([3.0, np.nan, 1.0, 2.0])
    ((_, losses),) = drawn(ax, "C0")
    assert np.array_equal(losses, [3.0, np.nan, 1.0, 2.0], equal_nan=True)
    ((at, best),) = drawn(ax, "C1")
    assert (at, best) == (2, 1.0)
    assert ax.get_yscale() == "log"
    assert gs.plot.loss([3.0, -1.0]).get_yscale() == "linear"
    with pytest.raises(ValueError, match="at least one of them finite"):
        gs.plot.loss([np.nan])


def test_loss_of_a_fit():
    import optax

    fit = gs.fit(
        Decay(0.5),
        jnp.array(1.0),
        t0=0.0,
        t1=2.0,
        ts=TS,
        loss=jnp.sum,
        optimizer=optax.sgd(0.1),
        steps=2,
        progress=False,
    )
    ((_, losses),) = drawn(gs.plot.loss(fit), "C0")
    assert np.array_equal(losses, fit.losses)


def test_wrong_input(single, ragged):
    final = gs.solve(Decay(1.0), jnp.array(1.0), t0=0.0, t1=1.0)
    trajectory = gs.plot.trajectory
    with pytest.raises(ValueError, match=r"`labels` must be 2 names, one for each of y\[0\], y"):
        trajectory(single, labels=["hare"])
    with pytest.raises(ValueError, match="`data` needs `data_times`"):
        trajectory(final, data=np.ones(3))
    for data in (np.ones((2, 3)), np.ones((3, 3)), {"a": np.ones(3)}, None):
        if data is not None:
            with pytest.raises(ValueError, match=r"or be an array of shape \(3, 2\)"):
                trajectory(single, data=data)
    with pytest.raises(ValueError, match=r"`data_times` must be of shape \(4, 2\) or \(2,\)"):
        trajectory(ragged, np.ones(2), {"a": np.ones((4, 3)), "b": None})
    with pytest.raises(ValueError, match="no output times .* `points` must be a number"):
        trajectory(final, points=None)
    with pytest.raises(ValueError, match="this is a single trajectory; use `plot.trajectory`"):
        gs.plot.ensemble(single)
    with pytest.raises(ValueError, match="`quantiles` must be at least 0 and below 0.5"):
        gs.plot.ensemble(ragged, quantiles=[0.7])


def test_without_matplotlib_the_extra_is_named():
    """In a process where Matplotlib cannot be imported."""
    code = """
import sys
sys.modules["matplotlib"] = None
import gradsolve as gs
try:
    gs.plot.loss([1.0])
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "`gradsolve.plot` needs Matplotlib. Install it with `pip install 'gradsolve[plot]'`.\n"
    ), done.stderr


def test_every_function_takes_and_returns_axes(single, ragged):
    _, ax = pyplot.subplots()
    for function, argument in (
        (gs.plot.trajectory, single),
        (gs.plot.ensemble, ragged),
        (gs.plot.steps, single),
        (gs.plot.loss, [1.0, 2.0]),
    ):
        assert "ax" in inspect.signature(function).parameters
        assert function(argument, ax=ax) is ax
    assert len(pyplot.get_fignums()) == 1
