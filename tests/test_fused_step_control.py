"""Controllers, first steps, windows and output times in fused kernels."""

import functools as ft
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs

from .helpers import (
    SAME_MESH,
    Driven,
    disagreement,
    driven_ensemble,
    same_bits,
    same_counts,
)

SYSTEM, Y0S = driven_ensemble(5)
AXES = gs.InAxes(system=Driven(0), y0=0)
pid = ft.partial(gs.PIDController, rtol=1e-5, atol=1e-7)


def weighted_norm(x):
    return jnp.sqrt(jnp.sum(x * x * jnp.array([0.9, 0.1])))


# name: (controller, dt0)
CONTROLLERS: dict[str, tuple[Any, Any]] = {
    "I": (lambda: pid(), None),
    "I with dt0": (lambda: pid(), 0.01),
    "PI": (lambda: pid(pcoeff=0.3, icoeff=0.4), 0.01),
    "PID": (lambda: pid(pcoeff=0.3, icoeff=0.3, dcoeff=0.1), 0.01),
    "dtmax": (lambda: pid(dtmax=0.1), None),
    "forced dtmin": (lambda: pid(dtmin=0.08), None),
    "factors": (lambda: pid(safety=0.8, factormin=0.5, factormax=2.0), 1.0),
    "per component": (
        lambda: pid(rtol=jnp.array([1e-3, 1e-6]), atol=jnp.array([1e-8, 1e-5])),
        None,
    ),
    "max norm": (lambda: pid(norm=lambda x: jnp.max(jnp.abs(x))), None),
    "norm with a constant": (lambda: pid(norm=weighted_norm), None),
    "constant": (lambda: gs.ConstantStep(0.17), None),
    "step to": (lambda: gs.StepTo(jnp.array([0.1, 0.3, 0.8, 1.0, 1.7, 2.0])), None),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_meshes_of_every_controller(name, fused):
    """Bosh3: the loop around a step does not depend on its stages."""
    make, dt0 = CONTROLLERS[name]
    controller = make()

    def record(backend):
        return gs.solve(
            SYSTEM,
            Y0S,
            t0=0.1,
            t1=2.0,
            integrator=gs.Bosh3(),
            controller=controller,
            dt0=dt0,
            in_axes=AXES,
            backend=backend,
        )

    got, want = record(fused), record(gs.XLA())
    assert same_counts(got, want)
    # Rounding of the error estimate, eps / rtol = 2e-11 relative times the cancellation in it,
    # feeds the next step size, and so on to the next.
    assert np.max(np.abs(got.mesh.times - want.mesh.times)) < 1e-8
    assert np.max(np.abs(got.ys - want.ys)) < 1e-8
    if "dtm" in name:
        steps = np.diff(np.asarray(got.mesh.times), axis=0)
        last = np.asarray(got.mesh.num_steps) - 1
        inner = np.concatenate([steps[: last[i], i] for i in range(5)])
        # A step is a difference of times: their rounding is in it.
        assert inner.max() <= 0.1 + 1e-15 if name == "dtmax" else inner.min() >= 0.08 - 1e-15


def test_a_controller_per_trajectory(fused):
    axes = gs.InAxes(system=Driven(0), y0=0, controller=eqx.if_array(0))
    options = {"t0": 0.1, "t1": 2.0, "in_axes": axes, "integrator": gs.Bosh3()}
    rtol = jnp.geomspace(1e-3, 1e-6, 5)
    tolerances = gs.PIDController(rtol=rtol, atol=rtol / 100)
    got = gs.solve(SYSTEM, Y0S, controller=tolerances, backend=fused, **options)
    want = gs.solve(SYSTEM, Y0S, controller=tolerances, backend=gs.XLA(), **options)
    assert same_counts(got, want)
    assert got.mesh.num_steps[0] < got.mesh.num_steps[4]

    ts = jnp.stack([jnp.linspace(0.1, 2.0, 7) ** (1 + i / 5) for i in range(5)])
    ts = 0.1 + 1.9 * (ts - ts[:, :1]) / (ts[:, -1:] - ts[:, :1])
    ts = ts.at[:, 0].set(0.1).at[:, -1].set(2.0)
    ts = jnp.concatenate([ts, jnp.full((5, 1), jnp.inf)], axis=1)
    times = gs.solve(SYSTEM, Y0S, controller=gs.StepTo(ts), backend=fused, **options).mesh.times
    assert (ts[:, :7] == times[:7].T).all()


def test_a_first_step_per_trajectory(fused):
    axes = gs.InAxes(system=Driven(0), y0=0, dt0=0)
    options = {"t0": 0.1, "t1": 2.0, "in_axes": axes, "integrator": gs.Bosh3(), "controller": pid()}
    dt0 = jnp.array([0.001, 0.002, 0.004, 0.008, 0.016])
    got = gs.solve(SYSTEM, Y0S, dt0=dt0, backend=fused, **options)
    # That step is tiny, so it is accepted as it is.
    assert np.max(np.abs(got.mesh.times[1] - 0.1 - dt0)) < 1e-16
    assert same_counts(got, gs.solve(SYSTEM, Y0S, dt0=dt0, backend=gs.XLA(), **options))


# Forwards, backwards, empty, ragged with times at both ends and twice the same, none at all.
T0S = jnp.array([0.1, 2.0, 0.7, 0.0, -0.5])
T1S = jnp.array([2.0, 0.4, 0.7, 1.5, 1.0])
INF = jnp.inf
TS = jnp.array(
    [
        [0.1, 0.5, 0.5, 1.9, 2.0],
        [2.0, 1.1, 0.9, 0.4, INF],
        [0.7, 0.7, INF, INF, INF],
        [0.3, 0.31, 0.32, INF, INF],
        [INF, INF, INF, INF, INF],
    ]
)
WINDOWS = gs.InAxes(system=Driven(0), y0=0, t0=0, t1=0, ts=0)


def test_windows_and_output_times_of_all_kinds_in_one_ensemble(fused):
    def record(backend):
        return gs.solve(
            SYSTEM, Y0S, t0=T0S, t1=T1S, ts=TS, in_axes=WINDOWS, controller=pid(), backend=backend
        )

    trajectory = record(fused)
    want = record(gs.XLA())
    assert same_counts(trajectory, want)
    assert same_bits(trajectory.replay(), trajectory.ys)
    assert (np.isnan(trajectory.ys[..., 0]) == np.isinf(TS)).all()
    for what, value in disagreement(trajectory).items():
        assert value < SAME_MESH, what
    assert (trajectory.ys[0, 0] == Y0S[0]).all()
    assert (trajectory.ys[1, 0] == Y0S[1]).all()
    assert (trajectory.ys[2, :2] == Y0S[2]).all()
    assert (trajectory.ys[0, 1] == trajectory.ys[0, 2]).all()

    # What no output depends on has the gradient zero, and padding has none.
    _, (g_system, g_y0, g_ts) = trajectory.loss_grad(
        lambda ys: jnp.nansum(ys**2), wrt=("system", "y0", "ts")
    )
    assert (g_ts[jnp.isinf(TS)] == 0).all()
    assert (g_system.p[4] == 0).all()
    assert (g_y0[4] == 0).all()
    assert (g_y0[:4] != 0).all()
    # An empty window: both outputs are the initial state.
    assert (g_y0[2] == 4 * Y0S[2]).all()


def test_an_output_on_a_mesh_time_is_the_end_state_of_the_step(fused):
    first = gs.solve(SYSTEM, Y0S, t0=0.1, t1=2.0, ts=jnp.array([1.0]), in_axes=AXES, backend=fused)
    on_mesh = first.mesh.times[2]
    ys = first.replay(ts=on_mesh[:, None])
    # With the mesh time moved by rounding, the interpolant takes over: same state up to rounding,
    # so the outputs above are either identical to or 1e-15 away from these.
    near = first.replay(ts=jnp.nextafter(on_mesh, -INF)[:, None])
    assert np.max(np.abs(ys - near)) < 1e-13
    jacobian = jax.jacrev(lambda y0: jnp.sum(first.replay(y0=y0, ts=on_mesh[:, None]), axis=0))(Y0S)
    nearby = jax.jacrev(
        lambda y0: jnp.sum(first.replay(y0=y0, ts=jnp.nextafter(on_mesh, -INF)[:, None]), axis=0)
    )(Y0S)
    assert np.max(np.abs(jacobian - nearby)) < 1e-12
