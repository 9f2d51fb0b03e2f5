"""Step control is Diffrax's, step for step; where it differs, the difference is documented."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradsolve as gs
from tests.helpers import (
    NON_STIFF,
    SHARED_WITH_DIFFRAX,
    LotkaVolterra,
    diffrax_term,
    reference_case,
    relative,
)


@eqx.filter_jit
def diffrax_solve(solver, controller, system, y0, t0, t1, dt0, max_steps):
    return diffrax.diffeqsolve(
        diffrax_term(),
        solver,
        t0,
        t1,
        dt0,
        y0,
        args=system,
        stepsize_controller=controller,
        max_steps=max_steps,
        saveat=diffrax.SaveAt(t1=True, steps=True),
        throw=False,
    )


def compare(ours, theirs, *, times=1e-7, states=1e-7):
    """Counts are equal, times and end states agree.

    The estimate is a difference of stages that cancel to about the tolerance, so its rounding is
    eps / rtol relative, 2e-11 for rtol 1e-5, times the cancellation in the weights. It changes the
    next step by about as much, and the following ones inherit that: hence 1e-7 of the window.
    """
    assert int(ours.stats.num_accepted_steps) == int(theirs.stats["num_accepted_steps"])
    assert int(ours.stats.num_rejected_steps) == int(theirs.stats["num_rejected_steps"])
    count = int(ours.mesh.num_steps)
    window = float(abs(ours.t1 - ours.t0))
    assert np.max(np.abs(ours.mesh.times[1 : count + 1] - theirs.ts[:count])) <= times * window
    assert relative(ours.ys, theirs.ys[count - 1]) <= states


# Tsit5 on every problem, every method on some.
FOR_ALL_METHODS = ("lotka_volterra", "vdp_mu2", "pk_two_compartment")


# A loose tolerance for methods of order 2, which otherwise need tens of thousands of steps. The
# first step is given, since Diffrax's automatic one is always 0.01.
@pytest.mark.parametrize("name", NON_STIFF)
def test_counts_on_the_reference_problems(name):
    system, y0, problem = reference_case(name)
    t0, t1 = problem["t0"], problem["t1"]
    dt0 = 1e-3 * (t1 - t0)
    for integrator, solver in SHARED_WITH_DIFFRAX:
        if not (name in FOR_ALL_METHODS or isinstance(integrator, gs.Tsit5)):
            continue
        rtol = 1e-3 if integrator.order < 4 else 1e-6
        atol = jnp.asarray(problem["scale"]) * rtol
        ours = gs.solve(
            system,
            y0,
            t0=t0,
            t1=t1,
            dt0=dt0,
            integrator=integrator,
            controller=gs.PIDController(rtol=rtol, atol=atol),
            max_steps=20_000,
            backend=gs.XLA(),
        )
        theirs = diffrax_solve(
            solver,
            diffrax.PIDController(rtol=rtol, atol=atol),
            system,
            y0,
            t0,
            t1,
            dt0,
            max(64, int(ours.stats.num_steps) + 8),
        )
        # The first steps are far shorter than the tolerance asks for: there a method of order 8
        # estimates errors of some eps, rounding is a part of the estimate, and the steps after it
        # are shifted. The end states then differ as two solutions of this tolerance may.
        compare(ours, theirs, times=1e-3, states=rtol * max(1.0, problem["sensitivity"]))


SYSTEM = LotkaVolterra(0.55, 0.028, 0.8, 0.024)
Y0 = jnp.array([34.0, 5.9])


@pytest.mark.parametrize(
    "options",
    [
        {"pcoeff": 0.3, "icoeff": 0.4},
        {"pcoeff": 0.2, "icoeff": 0.3, "dcoeff": 0.1},
        {"dtmax": 0.2},
        {"dtmin": 0.6},
        {"safety": 0.7, "factormin": 0.3, "factormax": 2.0},
        {"norm": lambda x: jnp.max(jnp.abs(x))},
    ],
    ids=lambda options: "-".join(options),
)
def test_every_option_of_the_controller(options):
    tolerances = {"rtol": 1e-5, "atol": 1e-7}
    ours = gs.solve(
        SYSTEM, Y0, t0=0.0, t1=20.0, dt0=0.5, controller=gs.PIDController(**tolerances, **options)
    )
    theirs = diffrax_solve(
        diffrax.Tsit5(),
        diffrax.PIDController(**tolerances, **options),
        SYSTEM,
        Y0,
        0.0,
        20.0,
        0.5,
        512,
    )
    compare(ours, theirs)
    plain = gs.solve(
        SYSTEM, Y0, t0=0.0, t1=20.0, dt0=0.5, controller=gs.PIDController(**tolerances)
    )
    rows = min(int(plain.mesh.num_steps), int(ours.mesh.num_steps)) + 1
    difference = jnp.max(jnp.abs(plain.mesh.times[:rows] - ours.mesh.times[:rows]))
    assert difference > 1e-2  # the option did something


def test_tolerances_per_component():
    class Named(gs.ODESystem):
        inner: LotkaVolterra

        def vector_field(self, t, y):
            hare, lynx = self.inner.vector_field(t, jnp.stack([y["hare"], y["lynx"]]))
            return {"hare": hare, "lynx": lynx}

    rtol = {"hare": 1e-8, "lynx": 1e-4}
    atol = {"hare": 1e-6, "lynx": 1e-3}
    y0 = {"hare": jnp.asarray(34.0), "lynx": jnp.asarray(5.9)}
    ours = gs.solve(
        Named(SYSTEM), y0, t0=0.0, t1=20.0, dt0=0.1, controller=gs.PIDController(rtol, atol)
    )
    theirs = diffrax_solve(
        diffrax.Tsit5(),
        diffrax.PIDController(rtol=jnp.array([1e-8, 1e-4]), atol=jnp.array([1e-6, 1e-3])),
        SYSTEM,
        Y0,
        0.0,
        20.0,
        0.1,
        512,
    )
    assert int(ours.stats.num_accepted_steps) == int(theirs.stats["num_accepted_steps"])
    assert int(ours.stats.num_rejected_steps) == int(theirs.stats["num_rejected_steps"])


def test_backwards_time():
    ours = gs.solve(SYSTEM, Y0, t0=10.0, t1=-3.0, dt0=0.1)
    theirs = diffrax_solve(
        diffrax.Tsit5(),
        diffrax.PIDController(rtol=1e-6, atol=1e-9),
        SYSTEM,
        Y0,
        10.0,
        -3.0,
        -0.1,
        512,
    )
    compare(ours, theirs)


def test_constant_steps():
    ours = gs.solve(SYSTEM, Y0, t0=1.0, t1=5.0, controller=gs.ConstantStep(0.125))
    theirs = diffrax_solve(
        diffrax.Tsit5(), diffrax.ConstantStepSize(), SYSTEM, Y0, 1.0, 5.0, 0.125, 64
    )
    compare(ours, theirs, times=1e-15, states=1e-13)
    # A step that does not divide the interval: equal steps, none longer than asked for.
    ours = gs.solve(SYSTEM, Y0, t0=0.0, t1=1.0, controller=gs.ConstantStep(0.3))
    assert list(ours.mesh.times[:5]) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_step_to():
    ts = jnp.array([0.0, 0.1, 0.5, 0.6, 2.0])
    ours = gs.solve(SYSTEM, Y0, t0=0.0, t1=2.0, controller=gs.StepTo(ts))
    theirs = diffrax_solve(diffrax.Tsit5(), diffrax.StepTo(ts), SYSTEM, Y0, 0.0, 2.0, None, 16)
    compare(ours, theirs, times=0.0, states=1e-13)
    assert list(ours.mesh.times[:5]) == list(ts)
    backwards = gs.solve(SYSTEM, Y0, t0=2.0, t1=0.0, controller=gs.StepTo(ts[::-1]))
    assert list(backwards.mesh.times[:5]) == list(ts[::-1])


def test_step_to_in_both_directions_within_one_ensemble():
    ts = jnp.array([[0.0, 0.5, 2.0, jnp.inf], [2.0, 1.5, 1.0, 0.0]])
    trajectory = gs.solve(
        SYSTEM,
        Y0,
        t0=ts[:, 0],
        t1=jnp.array([2.0, 0.0]),
        controller=gs.StepTo(ts),
        in_axes=gs.InAxes(t0=0, t1=0, controller=eqx.if_array(0)),
    )
    assert list(trajectory.mesh.num_steps) == [2, 3]
    assert list(trajectory.mesh.times[:4, 1]) == [2.0, 1.5, 1.0, 0.0]


def test_automatic_first_step_is_hairers():
    """Against the algorithm written out for this problem (Hairer, Norsett & Wanner I, II.4).

    The unit of time is the one in which the state changes by its own size.
    """
    rtol, atol = 1e-6, 1e-9
    scale = atol + rtol * np.abs(np.asarray(Y0))
    rms = lambda x: np.sqrt(np.mean(np.square(x)))
    f0 = np.asarray(SYSTEM.vector_field(0.0, Y0))
    unit = rms(np.asarray(Y0) / scale) / rms(f0 / scale)
    d1 = rms(f0 * unit / scale)
    f1 = np.asarray(SYSTEM.vector_field(0.01 * unit, Y0 + 0.01 * unit * f0))
    d2 = rms((f1 - f0) * unit / scale) / 0.01
    h = unit * min(1.0, (0.01 / max(d1, d2)) ** (1 / 5))
    trajectory = gs.solve(SYSTEM, Y0, t0=0.0, t1=20.0)
    assert abs(float(trajectory.mesh.times[1]) - h) < 1e-12 * h


def test_the_norm_takes_further_components():
    """Tangents carried behind the state take part in error control without any special case."""
    from gradsolve._controllers import Window
    from gradsolve._ensemble.layout import StateLayout

    layout = StateLayout(jax.tree_util.tree_structure(0), ((2,),), jnp.dtype(jnp.float64))
    controller = gs.PIDController(rtol=1e-3, atol=1e-6).bind(layout)
    t0, t1 = jnp.zeros(1), jnp.full(1, 0.1)
    window = Window(t0, jnp.ones(1))
    _, state = controller.init(window, t1)
    quiet = jnp.array([[1e-9], [1e-9]])
    loud = jnp.concatenate([quiet, jnp.ones((2, 1))])
    for error, accepted in ((quiet, True), (loud, False)):
        y = jnp.ones_like(error)
        decision = controller.adapt(window, t0, t1, y, y, error, 5.0, state)
        assert bool(decision.accept[0]) is accepted
