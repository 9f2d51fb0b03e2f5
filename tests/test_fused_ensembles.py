"""Ensembles of any size and layout, and the transformations of JAX, as fused kernels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import gradsolve as gs
from gradsolve._build import BUILD_COUNTS
from gradsolve._fused import jobs

from .helpers import (
    SAME_MESH,
    Driven,
    disagreement,
    driven_ensemble,
    relative,
    replayed,
    same_bits,
    same_counts,
    smooth_loss,
    under,
)

TS = jnp.array([0.2, 0.5, 0.55, 1.4, 1.9])
ADAPTIVE = gs.PIDController(rtol=1e-5, atol=1e-7)
ALL_BATCHED = gs.InAxes(system=Driven(0), y0=0)
SYSTEM, Y0S = driven_ensemble(1000)


def record(system, y0, backend, in_axes=ALL_BATCHED, **kwargs):
    options = {"t0": 0.1, "t1": 2.0, "ts": TS, "controller": ADAPTIVE, **kwargs}
    return gs.solve(system, y0, in_axes=in_axes, backend=backend, **options)


def members(lanes):
    """The first so many members of one large ensemble."""
    return Driven(SYSTEM.p[:lanes]), Y0S[:lanes]


@pytest.fixture(scope="module")
def largest(fused):
    trajectory = record(*members(1000), fused)
    return trajectory, replayed(trajectory)


@pytest.mark.parametrize("lanes", [5, 257])
def test_against_plain_jax(lanes, fused):
    trajectory = record(*members(lanes), fused)
    assert same_counts(trajectory, record(*members(lanes), gs.XLA()))
    for what, value in disagreement(trajectory).items():
        assert value < SAME_MESH, what


@pytest.mark.parametrize("lanes", [1, 3, 5, 8, 257, 999])
def test_a_member_has_the_same_bits_in_an_ensemble_of_any_size(lanes, fused, largest):
    trajectory = record(*members(lanes), fused)
    whole, (_, whole_gradients) = largest
    assert same_bits(trajectory.ys, whole.ys[:lanes])
    assert same_bits(trajectory.replay(), trajectory.ys)
    steps = trajectory.mesh.num_steps
    assert same_bits(steps, whole.mesh.num_steps[:lanes])
    # The members that are left out have no part in the loss.
    loss = lambda ys: jnp.sum(jnp.sin(ys))
    _, (g_system, g_y0) = trajectory.loss_grad(loss, wrt=("system", "y0"))
    _, (w_system, w_y0) = whole.loss_grad(loss, wrt=("system", "y0"))
    assert same_bits((g_system.p, g_y0), (w_system.p[:lanes], w_y0[:lanes]))


def test_one_trajectory_is_an_ensemble_of_one(fused, largest):
    single = record(Driven(SYSTEM.p[7]), Y0S[7], fused, in_axes=None)
    assert same_bits(single.ys, largest[0].ys[7])


def test_the_order_of_the_members_does_not_matter(fused, largest):
    order = jax.random.permutation(jax.random.key(0), 1000)
    shuffled = record(Driven(SYSTEM.p[order]), Y0S[order], fused)
    assert same_bits(shuffled.ys, largest[0].ys[order])
    loss = lambda ys: jnp.sum(jnp.sin(ys))
    _, g = shuffled.loss_grad(loss)
    _, w = largest[0].loss_grad(loss)
    assert same_bits(g.p, w.p[order])


@pytest.mark.parametrize("shared", ["system", "y0", "ts", "t0 and t1"])
def test_shared_and_batched_inputs_in_every_mix(shared, fused):
    """What is shared collects the sum over what would be each member's own; 300 are two groups."""
    lanes = 300
    system, y0 = members(lanes)
    if shared == "system":
        system = Driven(jnp.broadcast_to(SYSTEM.p[3], (lanes, 4)))
    if shared == "y0":
        y0 = jnp.broadcast_to(Y0S[3], (lanes, 2))
    spread = lambda x: jnp.broadcast_to(x, (lanes, *jnp.shape(x)))
    batched = {"t0": spread(0.1), "t1": spread(2.0), "ts": spread(TS)}
    all_axes = gs.InAxes(system=Driven(0), y0=0, t0=0, t1=0, ts=0)
    whole = record(system, y0, fused, in_axes=all_axes, **batched)
    if shared == "system":
        mixed = record(Driven(SYSTEM.p[3]), y0, fused, in_axes=gs.InAxes(y0=0))
    elif shared == "y0":
        mixed = record(system, Y0S[3], fused, in_axes=gs.InAxes(system=Driven(0)))
    elif shared == "ts":
        axes = gs.InAxes(system=Driven(0), y0=0, t0=0, t1=0)
        mixed = record(system, y0, fused, in_axes=axes, t0=batched["t0"], t1=batched["t1"])
    else:
        axes = gs.InAxes(system=Driven(0), y0=0, ts=0)
        mixed = record(system, y0, fused, in_axes=axes, ts=batched["ts"])
    assert same_bits(mixed.ys, whole.ys)
    _, got = replayed(mixed)
    _, want = replayed(whole)
    for name in want:
        for g, w in zip(*map(jax.tree_util.tree_leaves, (got[name], want[name])), strict=True):
            total = w if g.shape == w.shape else w.sum(axis=0)
            # Rounding of a sum of 300 numbers, relative to their sizes.
            size = jnp.max(jnp.sum(jnp.abs(w), axis=0))
            assert np.max(np.abs(g - total)) <= 1e-14 * size, name


def test_repeated_runs_give_the_same_bits(fused):
    """Shared gradients too, which several threads have part in."""
    system = Driven(SYSTEM.p[3])
    runs = []
    for _ in range(3):
        trajectory = record(system, Y0S, fused, in_axes=gs.InAxes(y0=0))
        runs.append((trajectory.ys, trajectory.mesh, replayed(trajectory)))
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])


def test_the_number_of_threads_changes_nothing():
    system = Driven(SYSTEM.p[3])
    runs = []
    for threads in (1, 3):
        trajectory = record(system, Y0S, gs.HostCPU(threads=threads), in_axes=gs.InAxes(y0=0))
        runs.append((trajectory.ys, replayed(trajectory)))
    assert same_bits(*runs)


def test_compilations(fused):
    """C++ is compiled for shapes and static choices: not for values, layouts or sizes."""
    kind = {"HostCPU": "host", "CUDA": "cuda"}[type(fused).__name__]
    system, y0 = members(5)
    replayed(record(system, y0, fused))
    before = BUILD_COUNTS[kind]
    changes = [
        lambda: record(Driven(system.p * 1.1), y0 * 0.9, fused),
        lambda: record(Driven(system.p[0]), y0, fused, in_axes=gs.InAxes(y0=0)),
        lambda: record(system, y0[0], fused, in_axes=gs.InAxes(system=Driven(0))),
        lambda: record(Driven(system.p.T), y0.T, fused, in_axes=gs.InAxes(Driven(1), y0=1)),
        lambda: record(*members(17), fused),
        lambda: record(Driven(system.p[0]), y0[0], fused, in_axes=None),
        lambda: record(system, y0, fused, t0=0.0, t1=2.1, ts=jnp.linspace(0.3, 0.4, 9)),
        lambda: record(system, y0, fused, controller=gs.PIDController(rtol=1e-4, atol=1e-6)),
        lambda: record(system, y0, fused, max_steps=77),
    ]
    for change in changes:
        replayed(change())
    assert BUILD_COUNTS[kind] == before


# ------------------------------------------------------------------------------ transformations


@pytest.fixture
def launches(monkeypatch):
    """The jobs that are launched, in the order in which they are traced."""
    seen = []
    original = jobs.launch

    def counting(kernel, arguments, lanes, **options):
        seen.append(lanes)
        return original(kernel, arguments, lanes, **options)

    monkeypatch.setattr(jobs, "launch", counting)
    return seen


def count_launches(function, *args) -> int:
    """Equations of a jaxpr that launch a kernel, those of nested jaxprs included."""

    def count(jaxpr) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            total += eqn.primitive.name in ("ffi_call", "buffer_callback")
            assert eqn.primitive.name not in ("while", "scan"), "a loop of plain JAX"
            total += sum(count(sub) for sub in jaxprs_in_params(eqn.params))
        return total

    return count(jax.make_jaxpr(function)(*args).jaxpr)


def end(p, y0, backend):
    options = {"ts": TS, "max_steps": 64}
    return record(Driven(p), y0, backend, in_axes=None, **options).ys


def test_vmap_is_one_launch(fused, launches):
    p, y0 = SYSTEM.p[:6], Y0S[:6]
    single = lambda p, y0: end(p, y0, fused)
    assert count_launches(single, p[0], y0[0]) == 1
    launches.clear()
    assert count_launches(jax.vmap(single), p, y0) == 1
    assert launches[-1] == 6
    nested = jax.vmap(jax.vmap(single))
    assert count_launches(nested, p.reshape(2, 3, 4), y0.reshape(2, 3, 2)) == 1
    assert launches[-1] == 6
    outer = jax.vmap(jax.vmap(single, in_axes=(None, 0)), in_axes=(0, None))
    assert count_launches(outer, p, y0) == 1
    assert launches[-1] == 36
    # Forwards and backwards.
    gradient = jax.grad(lambda p: smooth_loss(jax.vmap(single)(p, y0)))
    assert count_launches(gradient, p) == 2


def test_vmap_is_the_ensemble(fused, largest):
    p, y0 = SYSTEM.p[:6], Y0S[:6]
    single = lambda p, y0: end(p, y0, fused)
    want = largest[0].ys[:6]
    assert same_bits(jax.vmap(single)(p, y0), want)
    assert same_bits(jax.jit(jax.vmap(single))(p, y0), want)
    nested = jax.vmap(jax.vmap(single))(p.reshape(2, 3, 4), y0.reshape(2, 3, 2))
    assert same_bits(nested.reshape(want.shape), want)
    assert same_bits(eqx.filter_jit(eqx.filter_vmap(single))(p, y0), want)
    crossed = jax.vmap(jax.vmap(single, in_axes=(None, 0)), in_axes=(0, None))(p, y0)
    assert same_bits(crossed[jnp.arange(6), jnp.arange(6)], want)
    inner = lambda p: record(Driven(p), y0, fused, in_axes=gs.InAxes(y0=0), max_steps=64).ys
    assert same_bits(jax.vmap(inner)(p), crossed)


def test_gradient_transformations_are_the_ensemble(fused, largest):
    p, y0 = SYSTEM.p[:6], Y0S[:6]
    loss = lambda p, y0: jnp.sum(jnp.sin(end(p, y0, fused)))
    _, want = largest[0].loss_grad(lambda ys: jnp.sum(jnp.sin(ys)))
    want = want.p[:6]
    total = lambda p: jnp.sum(jax.vmap(loss)(p, y0))
    got = {
        "vmap grad": jax.vmap(jax.grad(loss))(p, y0),
        "jit vmap grad": jax.jit(jax.vmap(jax.grad(loss)))(p, y0),
        "grad jit vmap": jax.grad(jax.jit(total))(p),
        "filter": eqx.filter_jit(eqx.filter_grad(total))(p),
        "vmap vmap grad": jax.vmap(jax.vmap(jax.grad(loss)))(
            p.reshape(3, 2, 4), y0.reshape(3, 2, 2)
        ).reshape(6, 4),
    }
    for name, gradient in got.items():
        # The same kernel; only which of its results are stored differs.
        assert np.max(np.abs(gradient - want)) <= 1e-13 * np.max(np.abs(want)), name


def test_shared_parameters_under_vmap_are_kept_apart(fused):
    """`vmap` of the gradient of an ensemble: one sum per entry of the batch."""
    p, y0 = SYSTEM.p[:3], Y0S[:5]

    def loss(p):
        trajectory = record(Driven(p), y0, fused, in_axes=gs.InAxes(y0=0), max_steps=64)
        return jnp.sum(jnp.sin(trajectory.ys))

    got = jax.vmap(jax.grad(loss))(p)
    want = jnp.stack([jax.grad(loss)(row) for row in p])
    assert np.max(np.abs(got - want)) <= 1e-14 * np.max(np.abs(want))


def test_a_fit(fused):
    target = record(Driven(SYSTEM.p[3]), Y0S[:5], fused, in_axes=gs.InAxes(y0=0)).ys
    loss = lambda ys: jnp.mean((ys - target) ** 2)
    fits = [
        gs.fit(
            Driven(SYSTEM.p[3] * 1.05),
            Y0S[:5],
            t0=0.1,
            t1=2.0,
            ts=TS,
            in_axes=gs.InAxes(y0=0),
            controller=ADAPTIVE,
            loss=loss,
            optimizer=optax.adam(1e-2),
            steps=6,
            progress=False,
            backend=backend,
        )
        for backend in (fused, gs.XLA())
    ]
    # Adam divides by the gradient's size: its rounding, and that of the recorded meshes, goes into
    # the parameters as it is.
    assert np.max(np.abs(fits[0].system.p - fits[1].system.p)) < 1e-7
    assert fits[0].losses[-1] < fits[0].losses[0]


def test_a_trajectory_is_stored_and_evaluated(fused, tmp_path):
    trajectory = record(*members(5), fused)
    eqx.tree_serialise_leaves(tmp_path / "trajectory.eqx", trajectory)
    like = jax.tree_util.tree_map(
        lambda x: jnp.zeros_like(x) if eqx.is_inexact_array(x) else x, trajectory
    )
    loaded = eqx.tree_deserialise_leaves(tmp_path / "trajectory.eqx", like)
    assert same_bits(loaded.ys, trajectory.ys)
    assert same_bits(loaded.replay(), trajectory.ys)
    assert same_bits(replayed(loaded), replayed(trajectory))

    t = jnp.array([1.9, 0.1, 0.77, 2.0, 1.4])
    got = trajectory.evaluate(t)
    assert same_bits(got[:, 4], trajectory.ys[:, 3])
    assert same_bits(got[:, 1], Y0S[:5])
    want = under(gs.XLA(), trajectory).evaluate(t)
    assert np.max(np.abs(got - want)) < SAME_MESH * np.max(np.abs(want))


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_times_that_an_ensemble_shares_under_vmap(fused, backwards):
    """Times that are shared inside and batched outside; their cotangents are sums inside."""
    system, y0 = members(3)
    ends = (2.0, 0.1) if backwards else (0.1, 2.0)
    t0, t1 = (jnp.array([end, end + 0.1]) for end in ends)
    ts = jnp.stack([jnp.linspace(*ends, 4)[1:-1]] * 2) + jnp.array([[0.0], [0.1]])

    def loss(t0, t1, ts):
        options = {"t0": t0, "t1": t1, "ts": ts, "max_steps": 64}
        return jnp.sum(jnp.sin(record(system, y0, fused, **options).ys))

    gradient = jax.grad(loss, argnums=(0, 1, 2))
    got = jax.vmap(gradient)(t0, t1, ts)
    for i in range(2):
        alone = gradient(t0[i], t1[i], ts[i])
        assert all(ct.shape == of.shape[1:] for ct, of in zip(alone, got, strict=True))
        for one, of_all in zip(alone, got, strict=True):
            # Sums over three trajectories, which may be taken in another order.
            np.testing.assert_allclose(of_all[i], one, rtol=1e-12, atol=1e-14)


# 64 rows of 2 numbers for 5 trajectories fit, for 15 they do not.
LIMIT = 2 * 64 * 2 * 5 * 8
STARTS = members(5)[1] + jnp.array([0.0, 0.01, 0.02])[:, None, None]


def solved_within_limit(y0, backend, **kwargs):
    adjoint = gs.DiscreteAdjoint(memory_limit=LIMIT, **kwargs)
    return record(members(5)[0], y0, backend, ts=None, max_steps=64, adjoint=adjoint)


def test_a_batch_may_need_fewer_checkpoints_than_one_of_its_ensembles(fused):
    def loss(y0):
        return smooth_loss(solved_within_limit(y0, fused).ys)

    together = jax.jit(jax.vmap(jax.grad(loss)))(STARTS)
    for i in range(3):
        assert relative(together[i], jax.grad(loss)(STARTS[i])) < SAME_MESH


BATCHES_OF_COMPILED_GRADIENTS = {
    "gradient": lambda loss: jax.vmap(jax.jit(jax.grad(loss))),
    "of compiled": lambda loss: jax.vmap(jax.jit(jax.grad(jax.jit(loss)))),
    "of a batch": lambda loss: lambda y0: jax.vmap(jax.jit(jax.vmap(jax.grad(loss))))(y0[:, None]),
    "in a compiled batch": lambda loss: jax.jit(jax.vmap(jax.jit(jax.grad(loss)))),
}


def check_batch_of_compiled_gradients(form, replays, backend):
    def loss_with(**adjoint):
        solved = lambda y0: solved_within_limit(y0, backend, **adjoint)
        trajectory = solved(STARTS[0])
        states = (lambda y0: trajectory.replay(y0=y0)) if replays else (lambda y0: solved(y0).ys)
        return lambda y0: smooth_loss(states(y0))

    batched = BATCHES_OF_COMPILED_GRADIENTS[form]
    with pytest.raises(ValueError, match=r"jax\.jit\(jax\.vmap.*checkpoint_every=2"):
        batched(loss_with())(STARTS)
    loss = loss_with(checkpoint_every=2)
    together = batched(loss)(STARTS).reshape(STARTS.shape)
    for i in range(3):
        assert relative(together[i], jax.grad(loss)(STARTS[i])) < SAME_MESH


@pytest.mark.parametrize("form", BATCHES_OF_COMPILED_GRADIENTS)
@pytest.mark.parametrize("replays", [False, True], ids=["recording", "replay"])
def test_a_compiled_gradient_keeps_its_number_of_checkpoints(form, replays, fused):
    check_batch_of_compiled_gradients(form, replays, fused)


def test_a_gradient_compiled_by_plain_jax_keeps_its_number_of_checkpoints():
    check_batch_of_compiled_gradients("gradient", False, gs.XLA())


def test_checkpoints_that_several_cotangents_share(fused):
    def end(y0):
        return solved_within_limit(y0, fused).ys[0]

    # Both cotangents of a state share its checkpoints. The adjoint then has more trajectories than
    # were recorded, which asks for no fewer checkpoints.
    together = jax.jit(jax.vmap(jax.jacrev(end)))(STARTS)
    by_closure = jax.jit(lambda y0: jax.vmap(jax.vmap(jax.vjp(end, y0)[1]))(jnp.eye(2)[None]))
    for i in range(3):
        assert relative(together[i], jax.jacrev(end)(STARTS[i])) < SAME_MESH
        assert relative(together[i], by_closure(STARTS[i])[0][0]) < SAME_MESH
