"""Fits: what they find, what they compile, how they stop."""

import inspect
import logging

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jaxtyping import Array

import gradsolve as gs
from gradsolve._core import TRACE_COUNTS

from .helpers import Decay, LotkaVolterra, relative

YEARS = jnp.linspace(0.0, 20.0, 21)
TRUE = LotkaVolterra(0.55, 0.028, 0.80, 0.024)
START = LotkaVolterra(0.50, 0.025, 0.75, 0.022)
Y0 = jnp.array([34.0, 5.9])
WINDOW = {"t0": 0.0, "t1": 20.0, "ts": YEARS}
ADAM = optax.adam(1e-3)


@pytest.fixture(scope="module")
def pelts():
    return gs.solve(TRUE, Y0, **WINDOW).ys


# One function object for all tests that use it: the compiled update is shared.
@pytest.fixture(scope="module")
def misfit(pelts):
    return lambda ys: jnp.mean((jnp.log(ys) - jnp.log(pelts)) ** 2)


def fit_pelts(misfit, **changes):
    choices = {"optimizer": ADAM, "steps": 10, "progress": False, "loss": misfit, **changes}
    return gs.fit(START, Y0, **WINDOW, **choices)


class Relax(gs.ODESystem):
    """Follows `cos t` at the rate `k`; an explicit method needs steps in proportion to `k`."""

    k: Array

    def vector_field(self, t, y):
        return self.k * (jnp.cos(t) - y)


class Explosion(gs.ODESystem):
    """`y' = a y^2` from `y(0) = 1` has its pole at `t = 1 / a`."""

    a: Array

    def vector_field(self, t, y):
        return self.a * y**2


# Four stages compile faster than seven.
LIGHT = {"integrator": gs.Bosh3(), "controller": gs.PIDController(rtol=1e-4, atol=1e-6)}
DECAY = {"t0": 0.0, "t1": 2.0, "ts": jnp.array([0.5, 1.0, 2.0]), "progress": False}


# Function objects of the module, and `DECAY_ADAM`: tests that differ in numbers only share code.
def decay_misfit(ys):
    """The data are those of k = 0.7 and y(0) = 1."""
    return jnp.sum((ys - jnp.exp(-0.7 * DECAY["ts"]).astype(ys.dtype)) ** 2)


def larger_misfit(ys):
    """The data are those of k = 0.7 and y(0) = 1.5."""
    return jnp.sum((ys - 1.5 * jnp.exp(-0.7 * DECAY["ts"])) ** 2)


DECAY_ADAM = optax.adam(3e-2)


def fit_decay(**changes):
    """A fit of `y' = -k y` that compiles quickly."""
    choices = {
        "system": Decay(0.5),
        "y0": jnp.array(1.0),
        **DECAY,
        **LIGHT,
        "loss": decay_misfit,
        "optimizer": DECAY_ADAM,
        "steps": 100,
        **changes,
    }
    # The arguments are checked by the function itself, not by the type checker of the tests.
    return inspect.unwrap(gs.fit)(choices.pop("system"), choices.pop("y0"), **choices)


# What is found


@pytest.mark.parametrize(
    ("rerecord", "recordings"), [(gs.Always(), 301), (gs.Every(20), 16), (gs.Never(), 1)]
)
def test_recovers_the_parameters_behind_synthetic_data(misfit, rerecord, recordings):
    fit = fit_pelts(misfit, steps=300, rerecord=rerecord)
    # 300 small steps of Adam end close to the minimum, not at it; it began 10 % away.
    assert relative(fit.system, TRUE) < 1e-2
    assert fit.steps == 300
    assert fit.losses.shape == (301,)
    assert fit.loss == fit.losses.min() < 1e-4 * fit.losses[0]
    assert fit.recordings == recordings
    assert fit.growths == 0
    assert not fit.interrupted
    assert bool(fit.trajectory.succeeded)
    assert jnp.allclose(misfit(fit.trajectory.ys), fit.loss, rtol=0.01)
    assert eqx.tree_equal(fit.trajectory.system, fit.system)
    assert jnp.array_equal(fit.y0, Y0)


@pytest.mark.parametrize("rerecord", [gs.Always(), gs.Every(3), gs.Never()])
def test_each_policy_is_the_loop_it_stands_for(misfit, rerecord):
    steps = 7
    fit = fit_pelts(misfit, steps=steps, rerecord=rerecord)
    system = jtu.tree_map(jnp.array, START)
    state = ADAM.init(system)
    losses = []
    trajectory = None
    for update in range(steps + 1):
        due = {"Always": True, "Every": update % 3 == 0, "Never": update == 0}
        if due[type(rerecord).__name__]:
            trajectory = gs.solve(system, Y0, **WINDOW)
        loss, gradient = trajectory.loss_grad(misfit, system)
        losses.append(loss)
        changes, state = ADAM.update(gradient, state)
        system = optax.apply_updates(system, changes)
    # Rounding: XLA compiles the same operations in another context.
    assert jnp.allclose(fit.losses, jnp.stack(losses), rtol=1e-9)


def test_policies_differ(misfit):
    always, never = (fit_pelts(misfit, rerecord=r).losses for r in (gs.Always(), gs.Never()))
    assert jnp.allclose(always[0], never[0], rtol=1e-9)
    # The mesh of the first parameters is close to good for the later ones, and not the same.
    assert 1e-12 < abs(always[-1] / never[-1] - 1) < 1e-3


def test_line_search_avoids_trials_that_fail():
    """The first trial step goes past the pole, where there is no loss."""
    before = TRACE_COUNTS["fit"]
    target = jnp.array([4.0])  # reached by a = 0.75
    fit = gs.fit(
        Explosion(0.6),
        jnp.array(1.0),
        t0=0.0,
        t1=1.0,
        ts=jnp.array([1.0]),
        # The mask hides failures from the optimiser: only `fit` itself can keep it from them.
        loss=lambda ys: jnp.sum(jnp.where(jnp.isnan(ys), 0.0, (ys - target) ** 2)),
        optimizer=optax.lbfgs(scale_init_precond=False),
        steps=15,
        max_steps=256,
        progress=False,
    )
    assert abs(fit.system.a - 0.75) < 1e-5  # rtol is 1e-6
    assert TRACE_COUNTS["fit"] == before + 1


def test_ensemble_of_independent_fits_equals_one_fit_each():
    """Own parameters, initial states and output times; the times padded by inf."""
    ks, y0 = jnp.array([0.5, 1.0, 2.0]), jnp.array([1.0, 2.0, 3.0])
    ts = jnp.array([[0.5, 1.0, 2.0], [0.25, 1.5, jnp.inf], [1.0, jnp.inf, jnp.inf]])
    data = jnp.where(jnp.isfinite(ts), (y0 + 0.1)[:, None] * jnp.exp(-0.8 * ts), 0.0)

    def loss(ys, ts, data):
        return jnp.sum(
            jnp.where(jnp.isfinite(ts), jnp.where(jnp.isnan(ys), 0.0, ys) - data, 0) ** 2
        )

    def last(system, y0, ts, data, in_axes):
        """The parameter after the last update: which update was best depends on all losses."""
        seen = []
        gs.fit(
            system,
            y0,
            t0=0.0,
            t1=2.0,
            ts=ts,
            in_axes=in_axes,
            loss=lambda ys: loss(ys, ts, data),
            optimizer=optax.adam(1e-2),
            steps=40,
            **LIGHT,
            callback=lambda step, loss, system: seen.append(system.k),
            progress=False,
        )
        return seen[-1]

    together = last(Decay(ks), y0, ts, data, gs.InAxes(system=eqx.if_array(0), y0=0, ts=0))
    alone = last(Decay(ks[1]), y0[1], ts[1], data[1], None)
    # Adam works number by number and each trajectory has its own mesh: only rounding differs.
    assert abs(together[1] - alone) < 1e-9


def test_shared_parameters_of_an_ensemble():
    y0 = jnp.array([1.0, 2.0, 3.0])
    data = y0[:, None] * jnp.exp(-0.7 * DECAY["ts"])
    fit = fit_decay(
        y0=y0, in_axes=gs.InAxes(y0=0), loss=lambda ys: jnp.sum((ys - data) ** 2), steps=150
    )
    assert abs(fit.system.k - 0.7) < 1e-3


# What is trained


class Mixed(gs.ODESystem):
    inner: Decay
    offset: Array
    table: np.ndarray
    power: int

    def vector_field(self, t, y):
        return self.inner.vector_field(t, y) + self.offset * self.table[self.power]


def mixed():
    return Mixed(Decay(0.5), jnp.array(0.1), np.array([1.0, 0.5]), 1)


def changed(fit):
    """Which floating-point leaves differ from those of `mixed()`."""
    names = ("inner.k", "offset", "table")
    after = (fit.system.inner.k, fit.system.offset, fit.system.table)
    before = (mixed().inner.k, mixed().offset, mixed().table)
    return {
        name
        for name, a, b in zip(names, after, before, strict=True)
        if not np.array_equal(a, np.asarray(b))
    }


@pytest.mark.parametrize(
    ("trainable", "wanted"),
    [
        (None, {"inner.k", "offset", "table"}),
        (True, {"inner.k", "offset", "table"}),
        (eqx.is_array, {"inner.k", "offset", "table"}),
        (lambda leaf: np.ndim(leaf) == 0, {"inner.k", "offset"}),
        (
            Mixed(Decay(True), True, eqx.is_inexact_array_like, False),
            {"inner.k", "offset", "table"},
        ),
        (Mixed(False, True, False, True), {"offset"}),
        (gs.Trainable(system=Mixed(False, True, False, False)), {"offset"}),
    ],
)
def test_trainable_selects_leaves(trainable, wanted):
    fit = fit_decay(system=mixed(), trainable=trainable, steps=2)
    assert changed(fit) == wanted
    assert fit.system.power == 1
    assert fit.y0 == 1.0


def test_training_the_initial_state():
    """`y0` is recovered too: as a leaf of its own, or as a function of the system."""
    fit = fit_decay(loss=larger_misfit, trainable=gs.Trainable(y0=True), steps=300)
    assert abs(fit.system.k - 0.7) < 1e-3
    assert abs(fit.y0 - 1.5) < 1e-3
    assert jnp.array_equal(fit.trajectory.y0, fit.y0)


class FromRest(gs.ODESystem):
    k: Array
    log_y0: Array

    def vector_field(self, t, y):
        return -self.k * y


def test_initial_state_as_function_of_parameters():
    fit = fit_decay(
        system=FromRest(0.5, 0.0),
        y0=lambda system: jnp.exp(system.log_y0),
        loss=larger_misfit,
        steps=300,
    )
    assert abs(fit.system.k - 0.7) < 1e-3
    assert abs(fit.y0 - 1.5) < 1e-3
    assert jnp.allclose(fit.y0, jnp.exp(fit.system.log_y0))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(
            optax.add_noise(1e-4, 0.5, 0), optax.adam(optax.cosine_decay_schedule(1e-2, 5))
        ),
        optax.lbfgs(),
    ],
    ids=["noise and a schedule", "lbfgs"],
)
def test_single_precision_stays_single(optimizer):
    """With double precision switched on, as everywhere in these tests."""
    before = TRACE_COUNTS["fit"]
    fit = fit_decay(
        system=Decay(jnp.float32(0.5)),
        y0=jnp.array(1.0, jnp.float32),
        optimizer=optimizer,
        steps=5,
    )
    assert {fit.system.k.dtype, fit.y0.dtype, fit.losses.dtype, fit.loss.dtype} == {
        jnp.dtype(jnp.float32)
    }
    assert fit.loss < fit.losses[0]
    assert TRACE_COUNTS["fit"] == before + 1


# What is compiled


@pytest.mark.parametrize("rerecord", [gs.Always(), gs.Every(2)])
def test_one_compilation_for_a_fit_and_none_for_the_next(rerecord, caplog):
    optimizer = optax.adam(1e-3)  # a new object, for which nothing is compiled yet
    compiled = []

    def count(step, loss, system):
        messages = [r.getMessage() for r in caplog.records if "Compiling" in r.getMessage()]
        compiled.append(messages)

    before = TRACE_COUNTS["fit"]
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        fit_decay(optimizer=optimizer, rerecord=rerecord, callback=count, steps=10)
    assert len(compiled) == 11
    assert any("update" in message for message in compiled[0])  # the log is where we look
    assert compiled[-1] == compiled[0]
    assert TRACE_COUNTS["fit"] == before + 1

    # Other numbers, the same functions.
    again = fit_decay(
        system=Decay(jnp.array(0.52)),
        y0=jnp.array(1.1),
        ts=jnp.array([0.1, 1.1, 1.9]),
        optimizer=optimizer,
        rerecord=rerecord,
        steps=2,
    )
    assert again.steps == 2
    assert TRACE_COUNTS["fit"] == before + 1


@pytest.mark.parametrize("rerecord", [gs.Always(), gs.Every(1)])
def test_mesh_grows_and_nothing_is_truncated(rerecord):
    """The rate goes from 1 to far more, and with it the number of steps."""
    ts = jnp.linspace(0.0, 10.0, 6)
    loss = lambda ys: jnp.mean((ys - jnp.cos(ts)) ** 2)  # the larger k, the better
    optimizer = optax.chain(optax.scale_by_sign(), optax.scale(-150.0))
    loose = {"integrator": gs.Bosh3(), "controller": gs.PIDController(rtol=1e-2, atol=1e-2)}
    window = {"t0": 0.0, "t1": 10.0, "ts": ts, "max_steps": 2000, **loose}
    y0 = jnp.array(0.0)
    fit = gs.fit(
        Relax(1.0),
        y0,
        **window,
        loss=loss,
        optimizer=optimizer,
        steps=1,
        rerecord=rerecord,
        progress=False,
    )
    ks = (1.0, 151.0)
    solved = [gs.solve(Relax(k), y0, **window) for k in ks]
    assert fit.growths >= 1
    assert jnp.allclose(fit.losses, jnp.stack([loss(s.ys) for s in solved]), rtol=1e-9)
    assert fit.recordings == 2


def test_fixed_steps_need_no_growth():
    fit = fit_decay(controller=gs.ConstantStep(0.01), integrator=gs.RK4(), steps=150)
    assert abs(fit.system.k - 0.7) < 1e-3
    assert fit.growths == 0


# How a fit ends early


def test_ctrl_c_keeps_the_best(misfit):
    def stop(step, loss, system):
        if step == 7:
            raise KeyboardInterrupt

    fit = fit_pelts(misfit, steps=50, callback=stop)
    assert fit.interrupted
    assert fit.steps == 7
    assert fit.loss == fit.losses.min()
    assert jnp.allclose(misfit(fit.trajectory.ys), fit.loss, rtol=1e-9)


def test_ctrl_c_before_the_first_loss_is_raised():
    class Impatient(gs.Never):
        def due(self, update):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_decay(rerecord=Impatient())


def test_callback_sees_each_loss_with_its_system_and_ends_the_fit(misfit):
    seen = []

    def look(step, loss, system):
        seen.append((step, loss, system))
        return step == 4

    fit = fit_pelts(misfit, steps=50, callback=look)
    assert fit.steps == 4
    assert not fit.interrupted
    assert [step for step, _, _ in seen] == [0, 1, 2, 3, 4]
    assert [loss for _, loss, _ in seen] == fit.losses.tolist()
    for _, loss, system in seen[::2]:
        assert np.isclose(misfit(gs.solve(system, Y0, **WINDOW).ys), loss, rtol=1e-9)


def test_best_is_not_last():
    """A learning rate that overshoots: the best parameters are those of an early update."""
    fit = fit_decay(optimizer=optax.sgd(2.5), steps=6)
    best = int(jnp.argmin(fit.losses))
    assert 0 < best < 6
    assert fit.loss == fit.losses[best]


def explode(**changes):
    """Maximises y(1) = 1 / (1 - a), which takes `a` over the pole at 1."""
    choices = {
        "loss": lambda ys: -jnp.sum(ys),
        "optimizer": optax.chain(optax.scale_by_sign(), optax.scale(-0.2)),
        "steps": 20,
        "max_steps": 128,
        "progress": False,
        **LIGHT,
        **changes,
    }
    return gs.fit(
        Explosion(jnp.array([0.1, 0.5])),
        jnp.array(1.0),
        t0=0.0,
        t1=1.0,
        ts=jnp.array([1.0]),
        in_axes=gs.InAxes(system=eqx.if_array(0)),
        **choices,
    )


def test_failed_trajectories_stop_the_fit():
    with pytest.raises(
        gs.FitError,
        match=r"after 3 updates: 1 of 2 trajectories failed; .* trajectory 1: the maximum",
    ) as caught:
        explode()
    best = caught.value.result
    assert best is not None
    assert best.steps == 2
    assert jnp.allclose(best.system.a, jnp.array([0.5, 0.9]))
    assert isinstance(caught.value, gs.SolveError)


def test_failed_trajectories_are_left_out_on_request():
    fit = explode(loss=lambda ys: -jnp.sum(jnp.where(jnp.isnan(ys), 0.0, ys)), throw=False, steps=4)
    assert fit.steps == 4
    # The second trajectory fails at a = 1.1. Its gradient is then zero, so it stays there.
    assert jnp.allclose(fit.losses[-1], -1 / (1 - 0.9), rtol=1e-2)


def test_failure_at_the_start():
    with pytest.raises(gs.SolveError, match="`max_steps`"):
        gs.fit(
            Explosion(2.0),
            jnp.array(1.0),
            t0=0.0,
            t1=1.0,
            ts=jnp.array([1.0]),
            loss=jnp.sum,
            optimizer=ADAM,
            steps=1,
            max_steps=300,
        )


def test_loss_that_is_not_finite():
    with pytest.raises(gs.FitError, match="after 2 updates: the loss is nan") as caught:
        explode(loss=lambda ys: jnp.sum(jnp.log(8 - ys)))
    assert caught.value.result is not None
    with pytest.raises(gs.FitError, match="None of the 3 losses"):
        fit_decay(loss=lambda ys: jnp.sum(ys) + jnp.nan, throw=False, steps=2)


def test_gradient_that_is_not_finite():
    # The square root of zero: the derivative of a number that the parameters do not move.
    loss = lambda ys: jnp.sum(ys) + jnp.sqrt(0.0 * ys[0])
    with pytest.raises(gs.FitError, match=r"gradient .* `system.k` is not finite") as caught:
        fit_decay(loss=loss)
    assert caught.value.result is None


def test_parameters_that_are_not_finite():
    huge = optax.scale(-1e308)
    with pytest.raises(gs.FitError, match=r"after 0 updates: .* `system.k` inf or nan") as caught:
        fit_decay(loss=lambda ys: -1e3 * jnp.sum(ys), optimizer=huge, throw=False)
    assert caught.value.result is not None
    assert caught.value.result.system.k == 0.5


def test_unsuitable_mesh_is_noticed():
    """A mesh for a slow decay is useless for a fast one."""
    ts = jnp.linspace(0.0, 10.0, 6)
    choices = {
        "t0": 0.0,
        "t1": 10.0,
        "ts": ts,
        "loss": lambda ys: jnp.mean((ys - jnp.cos(ts)) ** 2),
        "optimizer": optax.chain(optax.scale_by_sign(), optax.scale(-0.5)),
        "controller": gs.PIDController(rtol=1e-3, atol=1e-3),
        "progress": False,
    }
    with pytest.warns(UserWarning, match="the mesh no longer suited the parameters"):
        stale = gs.fit(Relax(1.0), jnp.array(0.0), steps=8, rerecord=gs.Never(), **choices)
    # The loss that was minimised is off by more than the tolerance; the trajectory is not.
    assert abs(stale.loss / choices["loss"](stale.trajectory.ys) - 1) > 0.01


def test_replay_that_overflows_stops_the_fit():
    with pytest.raises(gs.FitError, match="the mesh no longer suits the parameters"):
        fit_decay(
            loss=lambda ys: jnp.sum(jnp.where(jnp.isfinite(ys), ys, 0.0)),
            optimizer=optax.scale(-1e150),
            rerecord=gs.Never(),
            steps=3,
        )


def test_failed_recording_stops_the_fit():
    with pytest.raises(gs.FitError, match="after 3 updates: 1 of 2 trajectories failed") as caught:
        explode(rerecord=gs.Every(1))
    assert caught.value.result is not None
    assert isinstance(caught.value.__cause__, gs.SolveError)


# What is shown


def test_progress_bar_shows_loss_and_rate(capfd):
    fit = fit_decay(progress=True, steps=20)
    shown = capfd.readouterr().err
    assert f"loss={float(fit.losses[-1]):.6g}" in shown
    assert "20/20" in shown
    assert "update/s" in shown
    fit_decay(progress=False, steps=1)
    assert capfd.readouterr().err == ""


def test_result_is_saved_and_loaded(misfit, tmp_path):
    fit = fit_pelts(misfit)
    eqx.tree_serialise_leaves(tmp_path / "fit.eqx", fit)
    empty = jtu.tree_map(lambda leaf: jnp.zeros_like(leaf) if eqx.is_array(leaf) else leaf, fit)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(tmp_path / "fit.eqx", empty), fit)


# Wrong input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda ys: ys}, r"`loss\(ys\)` must return a single .* shape \(3,\).*`jnp.mean`"),
        ({"loss": lambda ys: (jnp.sum(ys), 1)}, r"`loss\(ys\)` must return a single number"),
        ({"loss": lambda ys: jnp.argmax(ys)}, r"floating-point number, got .* dtype int64"),
        ({"loss": 3.0}, r"`loss` must be a function of `ys`, got 3.0"),
        ({"optimizer": optax.adam}, r"`optimizer` must be an Optax optimiser such as"),
        ({"optimizer": None}, r"`optimizer` must be an Optax optimiser .* got None"),
        ({"steps": 0}, r"`steps` must be a positive number of updates, got 0"),
        ({"steps": 2.5}, r"`steps` must be a positive number of updates, got 2.5"),
        ({"ts": None}, r"`ts` must be given.*`ts=\[t1\]`"),
        ({"rerecord": "always"}, r"`rerecord` must be `gradsolve.Always\(\)`.*got 'always'"),
        ({"rerecord": gs.Always}, r"`rerecord` must be `gradsolve.Always\(\)`"),
        ({"callback": 1}, r"`callback` must be a function of `\(step, loss, system\)`"),
        ({"trainable": False}, r"selects no floating-point array, so there is nothing to fit"),
        ({"trainable": lambda leaf: False}, r"so there is nothing to fit"),
        ({"trainable": Decay("k")}, r"may consist of booleans and functions of a leaf, got 'k'"),
        ({"trainable": {"k": True}}, r"must have the structure of `system` or be a prefix of it"),
        (
            {"y0": lambda system: 1.0 + system.k, "trainable": gs.Trainable(y0=True)},
            r"`y0` is a function of the system, so `trainable.y0` must be False",
        ),
        ({"in_axes": gs.InAxes()}, r"selects no array"),
        ({"t1": 1.5}, r"`ts` must lie within \[t0, t1\]"),
        ({"y0": jnp.array([1, 2])}, r"`y0` has dtype int64"),
        ({"system": Decay(jnp.nan)}, r"`system.k` is not finite"),
    ],
)
def test_wrong_input_gives_one_sentence(changes, message):
    with pytest.raises(ValueError, match=message):
        fit_decay(**changes)


@pytest.mark.parametrize("k", [0, -1, True])
def test_every_needs_a_positive_number(k):
    with pytest.raises(ValueError, match="`Every\\(k\\)` needs a positive number of updates"):
        gs.Every(k)


def test_fit_cannot_be_traced():
    def run(k):
        return fit_decay(system=Decay(k)).loss

    with pytest.raises(ValueError, match="`fit` is a loop in Python and cannot be traced"):
        jax.jit(run)(0.5)


def test_the_window_follows_from_the_output_times():
    from gradsolve._window import window_from_outputs

    ts = np.array([1.0, 2.0, 5.0])
    assert window_from_outputs(ts, None, None, None) == (1.0, 5.0, None)
    assert window_from_outputs(ts, 0.0, None, None)[:2] == (0.0, 5.0)
    ragged = np.array([[1.0, 2.0, 5.0], [3.0, 4.0, np.inf]])
    axes = gs.InAxes(ts=0)
    t0, t1, new_axes = window_from_outputs(ragged, None, None, axes)
    assert list(t0) == [1.0, 3.0]
    assert list(t1) == [5.0, 4.0]
    assert new_axes is not None
    trajectory = gs.solve(Growth(0.1), jnp.asarray(1.0), t0=t0, t1=t1, ts=ragged, in_axes=new_axes)
    assert np.isnan(trajectory.ys[1, 2])
    fitted = gs.fit(
        Growth(0.1),
        jnp.asarray(1.0),
        ts=ragged,
        loss=lambda ys: jnp.nansum((jnp.where(jnp.isfinite(ragged), ys, 0.0) - 1.0) ** 2),
        optimizer=optax.adam(1e-2),
        steps=2,
        in_axes=axes,
        progress=False,
    )
    assert (fitted.trajectory.t1 == t1).all()
    assert fitted.losses[-1] < fitted.losses[0]


class Growth(gs.ODESystem):
    rate: jax.Array

    def vector_field(self, t, y):
        return self.rate * y
