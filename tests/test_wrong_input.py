"""Wrong input gives one sentence that names the value and the remedy, before any computation."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

import gradsolve as gs
from tests.helpers import Decay, LotkaVolterra

SYSTEM = Decay(0.5)
Y0 = jnp.array([1.0, 2.0])
WINDOW = {"t0": 0.0, "t1": 1.0}


def refuses(words, call):
    """`call` raises a `ValueError` of one sentence or two in which all these words occur."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are the check)
        call()
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert len(message) < 700, message


class Wrong(gs.ODESystem):
    """Returns whatever it is given."""

    what: str

    def vector_field(self, t, y):
        return {
            "structure": (y, y),
            "shape": y[:1],
            "scalar": jnp.sum(y),
            "integer": jnp.array([1, 2]),
            "float32": y.astype(jnp.float32),
        }[self.what]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("structure", ["vector_field", "expected PyTreeDef(*)", "got PyTreeDef((*, *))"]),
        ("shape", ["vector_field", "expected [(2,)]", "got [(1,)]"]),
        ("scalar", ["vector_field", "expected [(2,)]", "got [()]", "jnp.stack"]),
        ("integer", ["vector_field", "expected float64", "got int"]),
        ("float32", ["vector_field", "expected float64", "got float32", ".astype"]),
    ],
)
def test_what_the_field_returns(what, words):
    refuses(words, lambda: gs.solve(Wrong(what), Y0, **WINDOW))


def test_the_state():
    refuses(["y0", "int", "decimal points"], lambda: gs.solve(SYSTEM, jnp.array([1, 2]), **WINDOW))
    refuses(["y0", "float16", "astype"], lambda: gs.solve(SYSTEM, Y0.astype(jnp.float16), **WINDOW))
    refuses(["y0", "complex"], lambda: gs.solve(SYSTEM, Y0 * 1j, **WINDOW))
    mixed = {"a": Y0, "b": Y0.astype(jnp.float32)}
    refuses(["y0['b']", "float32", "float64", "Convert"], lambda: gs.solve(SYSTEM, mixed, **WINDOW))
    refuses(["y0", "no arrays"], lambda: gs.solve(SYSTEM, {}, **WINDOW))
    refuses(["y0", "no components"], lambda: gs.solve(SYSTEM, jnp.zeros(0), **WINDOW))
    refuses(["y0", "'one'"], lambda: gs.solve(SYSTEM, ["one"], **WINDOW))
    bad = Y0.at[1].set(jnp.nan)
    refuses(["y0", "nan", "index (1,)", "throw=False"], lambda: gs.solve(SYSTEM, bad, **WINDOW))


def test_the_system():
    refuses(["system", "ODESystem"], lambda: gs.solve(lambda t, y: -y, Y0, **WINDOW))
    system = Decay(jnp.asarray(0.5, jnp.float32))
    refuses(["system.k", "float32", "float64", "astype"], lambda: gs.solve(system, Y0, **WINDOW))
    refuses(["system.k", "nan", "throw=False"], lambda: gs.solve(Decay(jnp.nan), Y0, **WINDOW))


def test_the_times():
    refuses(["t1"], lambda: gs.solve(SYSTEM, Y0, t0=0.0, t1=None))
    with pytest.raises(TypeError, match="t1"):
        gs.solve(SYSTEM, Y0, t0=0.0)
    refuses(["t1", "finite", "inf"], lambda: gs.solve(SYSTEM, Y0, t0=0.0, t1=jnp.inf))
    refuses(["`t0`", "'now'"], lambda: gs.solve(SYSTEM, Y0, t0="now", t1=1.0))
    refuses(
        ["`t1`", "single number", "(2,)", "InAxes(t1=0"],
        lambda: gs.solve(SYSTEM, Y0, t0=0.0, t1=jnp.ones(2)),
    )
    kinds = {
        "bool": True,
        "complex": 1j,
        "U3": np.array("now"),
        "timedelta": np.timedelta64(1, "s"),
    }
    for dtype, value in kinds.items():
        refuses(
            ["`t1`", "real numbers", dtype],
            lambda value=value: gs.solve(SYSTEM, Y0, t0=0.0, t1=value),
        )
    masked = np.ma.masked_array([0.5, 1.0], mask=[False, True])
    refuses(["masked"], lambda: gs.solve(SYSTEM, Y0, ts=masked, **WINDOW))
    solve = lambda ts, **kwargs: gs.solve(SYSTEM, Y0, ts=jnp.array(ts), **{**WINDOW, **kwargs})
    refuses(["ts", "sorted", "jnp.sort"], lambda: solve([0.5, 0.2]))
    refuses(["ts", "sorted"], lambda: solve([0.2, 0.5], t0=1.0, t1=0.0))
    refuses(["ts", "[t0, t1]", "1.5"], lambda: solve([0.5, 1.5]))
    refuses(["ts", "[t0, t1]", "-0.5"], lambda: solve([-0.5, 0.5]))
    refuses(["ts", "nan", "inf"], lambda: solve([0.5, jnp.nan]))
    refuses(["ts", "sorted", "padding"], lambda: solve([jnp.inf, 0.5]))
    refuses(["ts", "empty", "None"], lambda: solve([]))
    refuses(["ts", "(times,)", "InAxes(ts=0"], lambda: solve([[0.5], [0.7]]))
    # They are found inside a jit too, as long as the times themselves are not traced.
    refuses(
        ["ts", "sorted"],
        lambda: jax.jit(lambda k: gs.solve(Decay(k), Y0, ts=[0.5, 0.2], **WINDOW).ys)(0.5),
    )


def test_the_controllers():
    for name in ("rtol", "atol"):
        for value in (-1e-3, jnp.nan, jnp.array([1e-3, -1.0])):
            options = {"rtol": 1e-3, "atol": 1e-6, name: value}
            refuses(
                [name, "positive" if name == "rtol" else "negative"],
                lambda o=options: gs.PIDController(**o),
            )
    refuses(["rtol", "0.0"], lambda: gs.PIDController(0.0, 1e-6))
    refuses(["dtmin", "-1"], lambda: gs.PIDController(1e-3, 1e-6, dtmin=-1.0))
    refuses(["dt", "positive", "0"], lambda: gs.ConstantStep(0.0))
    refuses(["StepTo", "two times"], lambda: gs.StepTo(jnp.array([0.0])))
    refuses(["StepTo", "increasing"], lambda: gs.StepTo(jnp.array([0.0, 0.5, 0.5])))
    step_to = gs.StepTo(jnp.array([0.0, 0.5]))
    refuses(["StepTo", "0.5", "t1=1"], lambda: gs.solve(SYSTEM, Y0, controller=step_to, **WINDOW))
    wrong_shape = gs.PIDController(1e-3, jnp.ones(3))
    refuses(["atol", "(3,)"], lambda: gs.solve(SYSTEM, Y0, controller=wrong_shape, **WINDOW))
    for dt0 in (0.0, -0.1, jnp.nan):
        refuses(["dt0", "positive"], lambda dt0=dt0: gs.solve(SYSTEM, Y0, dt0=dt0, **WINDOW))
    refuses(
        ["dt0", "ConstantStep"],
        lambda: gs.solve(SYSTEM, Y0, dt0=0.1, controller=gs.ConstantStep(0.1), **WINDOW),
    )
    for integrator in (gs.Euler(), gs.RK4(), gs.FromDiffrax(diffrax.Euler())):
        refuses(
            [type(integrator).__name__, "no error estimate", "ConstantStep", "Tsit5"],
            lambda i=integrator: gs.solve(SYSTEM, Y0, integrator=i, **WINDOW),
        )


def test_the_choices():
    refuses(
        ["integrator", "FromDiffrax"],
        lambda: gs.solve(SYSTEM, Y0, integrator=diffrax.Tsit5(), **WINDOW),
    )
    refuses(["integrator", "Tsit5()"], lambda: gs.solve(SYSTEM, Y0, integrator=gs.Tsit5, **WINDOW))
    refuses(
        ["controller"],
        lambda: gs.solve(SYSTEM, Y0, controller=diffrax.PIDController(1e-3, 1e-6), **WINDOW),
    )
    refuses(["backend"], lambda: gs.solve(SYSTEM, Y0, backend="gpu", **WINDOW))
    refuses(["adjoint"], lambda: gs.solve(SYSTEM, Y0, adjoint=diffrax.DirectAdjoint(), **WINDOW))
    for max_steps in (0, 1.5, True):
        refuses(
            ["max_steps", str(max_steps)],
            lambda m=max_steps: gs.solve(SYSTEM, Y0, max_steps=m, **WINDOW),
        )
    refuses(["checkpoint_every", "0"], lambda: gs.DiscreteAdjoint(checkpoint_every=0))
    refuses(["memory_limit", "-1"], lambda: gs.DiscreteAdjoint(memory_limit=-1))


def test_in_axes():
    batched = jnp.ones((3, 2))
    solve = lambda in_axes, y0=batched, system=SYSTEM, **kw: gs.solve(
        system, y0, in_axes=in_axes, **{**WINDOW, **kw}
    )
    refuses(["in_axes", "selects no array"], lambda: solve(gs.InAxes()))
    refuses(["in_axes.y0", "axis 2", "(3, 2)"], lambda: solve(gs.InAxes(y0=2)))
    refuses(["in_axes.system", "no axes", "if_array"], lambda: solve(gs.InAxes(system=0)))
    refuses(["in_axes", "InAxes", "(0, None)"], lambda: solve((0, None)))
    refuses(["in_axes.y0", "'all'"], lambda: solve(gs.InAxes(y0="all")))
    refuses(["in_axes.y0", "prefix"], lambda: solve(gs.InAxes(y0={"a": 0})))
    refuses(
        ["disagree", "3 in `y0`", "4 in `system`"],
        lambda: solve(gs.InAxes(y0=0, system=eqx.if_array(0)), system=Decay(jnp.ones(4))),
    )
    refuses(["empty"], lambda: solve(gs.InAxes(y0=0), y0=jnp.ones((0, 2))))


def test_replays():
    trajectory = gs.solve(SYSTEM, Y0, ts=jnp.array([0.5, 1.0]), **WINDOW)
    other = LotkaVolterra(1.0, 1.0, 1.0, 1.0)
    refuses(["system", "recorded structure", "Solve again"], lambda: trajectory.replay(other))
    refuses(["system.k", "()", "(2,)"], lambda: trajectory.replay(Decay(jnp.ones(2))))
    refuses(["y0", "(2,)", "(3,)"], lambda: trajectory.replay(y0=jnp.ones(3)))
    refuses(["float32"], lambda: trajectory.replay(y0=Y0.astype(jnp.float32)))
    refuses(["ts", "[t0, t1]"], lambda: trajectory.replay(ts=jnp.array([2.0])))
    refuses(["[t0, t1]"], lambda: trajectory.evaluate(-1.0))
    refuses(["t1", "finite", "nan"], lambda: trajectory.replay(t1=jnp.nan))
    refuses(["ts", "[t0, t1]"], lambda: trajectory.replay(t0=0.6))
    refuses(["t1", "()", "(3,)"], lambda: trajectory.replay(t1=jnp.ones(3)))
    final = gs.solve(SYSTEM, Y0, **WINDOW)
    assert int(final.mesh.num_steps) > 2
    refuses(["t0", "Solve again"], lambda: final.replay(t0=0.999))
    refuses(["t1", "Solve again"], lambda: final.replay(t1=-1.0))
    refuses(["wrt", "None"], lambda: trajectory.loss_grad(jnp.sum, wrt=None))
    refuses(["wrt", "'p'", "'system'"], lambda: trajectory.loss_grad(jnp.sum, wrt="p"))
    refuses(["wrt"], lambda: trajectory.loss_grad(jnp.sum, wrt=()))
    final = gs.solve(SYSTEM, Y0, **WINDOW)
    refuses(["wrt", "ts=None"], lambda: final.loss_grad(jnp.sum, wrt="ts"))


class Pole(gs.ODESystem):
    k: Array

    def vector_field(self, t, y):
        return self.k * y * y


def test_failures_name_how_many_the_first_its_time_and_the_remedy():
    y0 = jnp.array([0.1, 1.0, 0.2, 3.0])
    axes = gs.InAxes(y0=0)
    solve = lambda **kw: gs.solve(Pole(1.0), y0, t0=0.0, t1=2.0, in_axes=axes, **kw)
    with pytest.raises(
        gs.SolveError, match="2 of 4 trajectories failed; the first is trajectory 1"
    ):
        solve()
    with pytest.raises(gs.SolveError, match=r"reached t = 0\..*`max_steps`"):
        solve(max_steps=12)
    with pytest.raises(gs.SolveError, match="The trajectory failed"):
        gs.solve(Pole(1.0), jnp.asarray(1.0), t0=0.0, t1=2.0, max_steps=12)
