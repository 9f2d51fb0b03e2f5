"""Meshes and replays: what is recorded is what is replayed, to the bit, and across processes."""

import pathlib
import subprocess
import sys

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from tests.helpers import EXPLICIT, LotkaVolterra, relative

SYSTEM = LotkaVolterra(jnp.array([0.5, 0.9, 1.3]), 0.4, 0.4, 0.1)
AXES = gs.InAxes(system=LotkaVolterra(0, None, None, None))
Y0 = jnp.array([8.0, 3.0])
TS = jnp.array([0.0, 0.7, 2.0, 4.0])


def record(integrator=None, ts=TS, **kwargs):
    integrator = integrator or gs.Tsit5()
    if integrator.error_order is None:
        kwargs["controller"] = gs.ConstantStep(0.05)
    return gs.solve(
        SYSTEM, Y0, t0=0.0, t1=4.0, ts=ts, integrator=integrator, in_axes=AXES, **kwargs
    )


# The fused kernels have the same test in test_fused_integrators.py.
@pytest.mark.optimized
@pytest.mark.parametrize("integrator", EXPLICIT, ids=lambda i: type(i).__name__)
def test_a_replay_reproduces_the_recording_bit_for_bit(integrator):
    for ts in (TS, None):
        trajectory = record(integrator, ts, backend=gs.XLA())
        assert (trajectory.replay() == trajectory.ys).all()


def test_rows_past_the_count_repeat_the_last_time():
    trajectory = record()
    times, counts = np.asarray(trajectory.mesh.times), np.asarray(trajectory.mesh.num_steps)
    assert len(set(counts)) > 1
    for i, count in enumerate(counts):
        assert times[0, i] == 0.0
        assert times[count, i] == 4.0
        assert (np.diff(times[: count + 1, i]) > 0).all()
        assert (times[count:, i] == 4.0).all()
    assert (counts == trajectory.stats.num_accepted_steps).all()
    total = trajectory.stats.num_accepted_steps + trajectory.stats.num_rejected_steps
    assert (trajectory.stats.num_steps == total).all()


def test_a_replay_at_other_parameters_takes_the_same_steps():
    trajectory = record()
    other = eqx.tree_at(lambda s: s.beta, SYSTEM, jnp.asarray(0.41))
    replayed = trajectory.replay(other)
    for i in range(3):
        count = int(trajectory.mesh.num_steps[i])
        single = gs.solve(
            eqx.tree_at(lambda s: s.alpha, other, SYSTEM.alpha[i]),
            Y0,
            t0=0.0,
            t1=4.0,
            ts=TS,
            controller=gs.StepTo(trajectory.mesh.times[: count + 1, i]),
        )
        assert relative(replayed[i], single.ys) < 1e-13


def test_an_empty_window_is_one_step_of_length_zero():
    trajectory = gs.solve(
        LotkaVolterra(0.5, 0.4, 0.4, 0.1), Y0, t0=1.0, t1=1.0, ts=jnp.array([1.0])
    )
    assert (trajectory.ys[0] == Y0).all()
    assert int(trajectory.mesh.num_steps) == 1
    field = trajectory.system.vector_field(1.0, Y0)
    for i in range(2):
        value, (g_y0, g_ts, g_t0) = trajectory.loss_grad(
            lambda ys, i=i: ys[0, i], wrt=("y0", "ts", "t0")
        )
        assert (g_y0 == jnp.eye(2)[i]).all()
        # The interpolant's coefficients go up to 88 and cancel.
        assert relative(g_ts, field[i]) < 1e-13
        assert relative(g_t0, -field[i]) < 1e-13


@pytest.mark.optimized
def test_two_runs_give_the_same_bits():
    first, second = record(backend=gs.XLA()), record(backend=gs.XLA())
    assert eqx.tree_equal(first.ys, second.ys)
    loss = lambda ys: jnp.sum(jnp.sin(ys))
    assert eqx.tree_equal(first.loss_grad(loss), second.loss_grad(loss))


def test_the_backend_is_reported():
    assert record().backend.requested == "Auto"
    asked = record(backend=gs.XLA()).backend
    assert (asked.requested, asked.actual) == ("XLA", "XLA")
    assert record().backend.reason


WRITE = """
import sys
sys.path[:0] = [{root!r}]
import jax
jax.config.update("jax_enable_x64", True)
import equinox as eqx
from tests.test_replay import record
trajectory = record()
"""

READ = (
    WRITE
    + """
like = jax.tree_util.tree_map(lambda x: x * 0 if eqx.is_inexact_array(x) else x, trajectory)
loaded = eqx.tree_deserialise_leaves({path!r}, like)
assert eqx.tree_equal(loaded.ys, trajectory.ys) is not False
system = eqx.tree_deserialise_leaves({system!r}, trajectory.system)
mesh = eqx.tree_deserialise_leaves({mesh!r}, trajectory.mesh)
print(loaded.ys.tobytes().hex() if hasattr(loaded.ys, "tobytes") else "")
print(loaded.replay(system).tobytes().hex())
print(mesh.times.tobytes().hex()[:64], bool(loaded.succeeded.all()))
"""
)


def test_serialisation_round_trips_in_a_new_process(tmp_path):
    trajectory = record()
    paths = {name: str(tmp_path / f"{name}.eqx") for name in ("path", "system", "mesh")}
    eqx.tree_serialise_leaves(paths["path"], trajectory)
    eqx.tree_serialise_leaves(paths["system"], trajectory.system)
    eqx.tree_serialise_leaves(paths["mesh"], trajectory.mesh)

    here = eqx.tree_deserialise_leaves(paths["path"], trajectory)
    assert eqx.tree_equal(here, trajectory)

    root = str(pathlib.Path(__file__).parent.parent)
    code = READ.format(root=root, **paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ys, replayed, rest = done.stdout.strip().split("\n")
    assert ys == np.asarray(trajectory.ys).tobytes().hex()
    assert replayed == np.asarray(trajectory.ys).tobytes().hex()
    assert rest == np.asarray(trajectory.mesh.times).tobytes().hex()[:64] + " True"


def test_a_trajectory_is_a_pytree():
    trajectory = record()
    through_jit = eqx.filter_jit(lambda t: t)(trajectory)
    assert eqx.tree_equal(through_jit, trajectory)
    value = eqx.filter_jit(lambda t: t.loss_grad(jnp.sum)[0])(trajectory)
    assert relative(value, trajectory.loss_grad(jnp.sum)[0]) < 1e-14
    batch = eqx.filter_vmap(lambda y0: gs.solve(SYSTEM, y0, t0=0.0, t1=1.0, in_axes=AXES))(
        jnp.stack([Y0, 2 * Y0])
    )
    replayed = eqx.filter_vmap(lambda t: t.replay())(batch)
    # The batched trajectory's shared parameters now have a batch axis: another layout, so rounding
    # differs.
    assert relative(replayed, batch.ys) < 1e-13


def test_no_recompilation_for_other_values():
    from gradsolve._core import TRACE_COUNTS

    record()
    before = dict(TRACE_COUNTS)
    other = eqx.tree_at(lambda s: s.alpha, SYSTEM, SYSTEM.alpha * 1.1)
    gs.solve(
        other,
        Y0 * 1.1,
        t0=0.1,
        t1=4.2,
        ts=TS + 0.15,
        in_axes=AXES,
        controller=gs.PIDController(rtol=2e-6, atol=1e-9),
    )
    assert dict(TRACE_COUNTS) == before
