"""The intermediate representation: simplification, dead code, contraction, and its text."""

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import gradsolve
from gradsolve._controllers.pid import step_size_power
from gradsolve._lowering import Leaf, Op, Sink, lower, print_body
from gradsolve._lowering._build import Builder
from gradsolve._lowering._calls import CALLABLE
from gradsolve._lowering._fold import fold
from gradsolve._lowering._ir import Function, object_array
from gradsolve._lowering._passes import contract, remove_dead_code
from gradsolve._lowering._print import literal

F64 = np.dtype(np.float64)


def traced(function, *args, names=None):
    closed = jax.make_jaxpr(function)(*args)
    assert not closed.consts
    return lower(closed.jaxpr, names or [f"a{i}" for i in range(len(args))])


def text(function, accumulate=False, mask=None):
    return print_body(
        function,
        argument=lambda name, index: name if index is None else f"{name}[{index}]",
        leaf_entry=lambda leaf, entry: f"p{leaf}[{entry}]",
        leaf_array=lambda leaf: f"p{leaf}",
        sinks=[
            [Sink(f"o{k}", i, accumulate) for i in range(output.size)]
            for k, output in enumerate(function.outputs)
        ],
        mask=mask,
    )


def operations(function):
    return [value.op for value in function.walk()]


# ---- Golden text --------------------------------------------------------------------------------


def lorenz(sigma, rho, beta, t, y):
    return jnp.stack([sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]])


LORENZ = """\
  const F64 v0 = y[1] - y[0];
  const F64 v1 = p0[0] * v0;
  const F64 v2 = p1[0] - y[2];
  const F64 v3 = gs::fma(y[0], v2, -y[1]);
  const F64 v4 = y[0] * y[1];
  const F64 v5 = gs::fma(-p2[0], y[2], v4);
  o0[0] = v1;
  o0[1] = v3;
  o0[2] = v5;
"""


def lowered_lorenz():
    x, y = jnp.ones(()), jnp.ones(3)
    leaves = [Leaf(i, (), F64) for i in range(3)]
    return traced(lorenz, x, x, x, x, y, names=[*leaves, "t", "y"])


def test_golden_lorenz():
    function = lowered_lorenz()
    assert text(function) == LORENZ
    assert function.operations == 6
    assert function.leaf_entries() == ((0, 0), (1, 0), (2, 0))
    assert function.leaf_loads() == ()


def switching(table, t, y):
    """A branch, a loop and a table."""
    drive = table[jnp.floor(t).astype(jnp.int32)]

    def damped():
        return lax.while_loop(lambda x: x > 1, lambda x: x * 0.5, y[0])

    return jnp.stack([lax.cond(y[1] > 0, damped, lambda: -y[1]), drive])


SWITCHING = """\
  const F64 v0 = gs::floor(t);
  const I32 v1 = gs::truncate<I32>(v0);
  const Mask v2 = v1 < I32(0);
  const I32 v3 = v1 + I32(8);
  const I32 v4 = gs::select(v2, v3, v1);
  const I32 v5 = gs::max(v4, I32(0));
  const I32 v6 = gs::min(v5, I32(7));
  const F64 v7 = gs::load(p0, v6);
  const Mask v8 = y[1] > F64(0.0);
  const Mask v9 = !v8;
  F64 v10{};
  if (gs::any(v9)) {
    const F64 v11 = -y[1];
    v10 = gs::select(v9, v11, v10);
  }
  if (gs::any(v8)) {
    F64 v12 = y[0];
    Mask v13 = v8;
    for (;;) {
      const Mask v14 = v12 > F64(1.0);
      v13 = v13 & v14;
      if (!gs::any(v13)) break;
      const F64 v15 = v12 * F64(0.5);
      v12 = gs::select(v13, v15, v12);
    }
    v10 = gs::select(v8, v12, v10);
  }
  o0[0] = v10;
  o0[1] = v7;
"""


def lowered_switching():
    return traced(
        switching, jnp.ones(8), jnp.ones(()), jnp.ones(2), names=[Leaf(0, (8,), F64), "t", "y"]
    )


def test_golden_switching():
    function = lowered_switching()
    assert text(function) == SWITCHING
    assert function.leaf_loads() == (0,)


def test_mask_narrows_branches_and_loops():
    body = text(lowered_switching(), mask="valid")
    assert "const Mask v11 = v9 & valid;" in body
    assert "if (gs::any(v11)) {" in body


_PROGRAM = """
import sys, time
import jax
jax.config.update("jax_enable_x64", True)
from tests.test_lowering_passes import lowered_lorenz, lowered_mlp, lowered_switching, text
for lowered in (lowered_lorenz, lowered_switching, lowered_mlp):
    sys.stdout.write(text(lowered()))
start = time.process_time()
text(lowered_mlp())
sys.stderr.write(str(time.process_time() - start))
"""


def lowered_mlp():
    """The adjoint of a small network, whose parameters are leaves."""
    sizes = (4, 32, 32, 4)
    shapes = [shape for a, b in itertools.pairwise(sizes) for shape in ((b, a), (b,))]

    def field(weights, y):
        for weight, bias in zip(weights[::2], weights[1::2], strict=True):
            y = jnp.tanh(weight @ y + bias)
        return y

    def adjoint(*args):
        *weights, y, ct = args
        return jax.vjp(field, weights, y)[1](ct)

    args = [*map(jnp.ones, shapes), jnp.ones(4), jnp.ones(4)]
    leaves = [Leaf(i, shape, F64) for i, shape in enumerate(shapes)]
    return traced(adjoint, *args, names=[*leaves, "y", "ct"])


def test_same_bytes_in_every_process_and_quickly():
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=Path(gradsolve.__file__).parent.parent,
            env={**os.environ, "PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    (one, seconds), (other, _) = [process.communicate() for process in processes]
    assert one == other
    assert one.startswith(text(lowered_lorenz()) + text(lowered_switching()))
    # The adjoint of the network has 4000 products, most of them in loops; tracing and lowering it
    # takes 0.5 s of an idle core, and caches shared with other processes may double that.
    assert one.count("add_product") == 0
    assert one.count("gs::product") >= 5
    assert float(seconds) < 2


# ---- Products as loops -------------------------------------------------------------------------


def layers(w, y):
    return jnp.tanh(w @ jnp.tanh(w.T @ y))


def test_a_large_product_is_a_loop_over_the_leaf():
    weights, y = jnp.ones((12, 12)), jnp.ones(12)
    got = text(traced(layers, weights, y, names=[Leaf(0, (12, 12), F64), "y"]))
    assert "const F64 v0[12] = {y[0], y[1]," in got
    first = "gs::product<1, 12, 12, F64>(gs::computed<12>(v0), gs::in_leaf<0, 1, 12>(p0), v1);"
    assert first in got
    assert "gs::in_leaf<0, 12, 1>(p0)" in got
    assert "] = gs::called::tanh(v1[0], v1[1], v1[2], v1[3]);" in got
    assert "p0[" not in got


def calls(function, *args):
    """How many numbers each call of a function that is there often takes."""
    got = text(traced(function, *args, names=[f"a{i}" for i in range(len(args))]))
    return [len(numbers.split(",")) for numbers in re.findall(r"gs::called::\w+\((.*)\);", got)]


def test_calls_of_one_function_are_joined():
    assert calls(jnp.tanh, jnp.ones(14)) == [4, 4, 4, 1, 1]
    assert calls(lambda x: x * jax.nn.sigmoid(x), jnp.ones(12)) == [4, 4, 4]
    assert calls(lambda x: jnp.tanh(jnp.sin(x)), jnp.ones(10)) == [4, 4, 1, 1] * 2
    pull = lambda x, ct: jax.vjp(lambda x: jnp.tanh(jnp.tanh(x)), x)[1](ct)
    assert calls(pull, jnp.ones(12), jnp.ones(12)) == [4] * 6


def test_calls_that_need_each_other_are_not_joined():
    def again(x):
        for _ in range(10):
            x = jnp.tanh(x)
        return x

    assert calls(again, jnp.ones(())) == [1] * 10
    assert calls(lambda x, y: x**y, jnp.ones(12), jnp.ones(12)) == [2] * 12


def test_calls_of_two_precisions_are_not_joined():
    two = lambda x, y: [jnp.tanh(z) for pair in zip(x, y, strict=True) for z in pair]
    assert calls(two, jnp.ones(6), jnp.ones(6, "float32")) == [1] * 12


def test_every_function_that_may_be_called_can_be():
    header = (Path(gradsolve.__file__).parent / "csrc/gs/called.h").read_text()
    names = set(re.findall(r"^GS_CALLED[12]\((\w+)\)$", header, re.MULTILINE))
    assert names == {op.name.lower() for op in CALLABLE}


def test_a_cotangent_that_is_a_product_is_added_without_being_kept():
    weights, y = jnp.ones((12, 12)), jnp.ones(12)
    for field in (lambda w, y: w @ y, lambda w, y: w.T @ y, lambda w, y: y @ w):
        pull = lambda w, y, ct, field=field: jax.vjp(field, w, y)[1](ct)[:1]
        function = traced(pull, weights, y, y, names=[Leaf(0, (12, 12), F64), "y", "ct"])
        got = text(function, accumulate=True)
        assert "gs::add_product<12, 12, 1, F64>" in got
        assert "gs::product<" not in got
        assert len(got.splitlines()) == 3


def test_a_product_that_is_added_and_used_is_kept_too():
    y = jnp.ones(12)

    def function(y, ct):
        product = jax.lax.dot_general(y, ct, (((), ()), ((), ())))
        return product, jnp.sin(product[0, 0])

    got = text(traced(function, y, y, names=["y", "ct"]), accumulate=True)
    assert "gs::product<12, 12, 1, F64>" in got
    assert "gs::add_product<12, 12, 1, F64>" in got
    assert "gs::sin(v2[0])" in got


def test_what_is_known_of_a_product_makes_it_vanish():
    weights, y = jnp.ones((12, 12)), jnp.ones(12)
    one = lambda w, y: w @ jnp.where(jnp.arange(12) == 3, y, 0)
    function = traced(one, weights, y, names=[Leaf(0, (12, 12), F64), "y"])
    assert set(operations(function)) == {Op.MUL}
    assert len(operations(function)) == 12


# ---- Simplification -----------------------------------------------------------------------------

X, Y = jnp.ones(()), jnp.ones(())
VANISHING = {
    "add zero": lambda x, y: x + 0.0,
    "multiply by one": lambda x, y: x * 1.0,
    "divide by one": lambda x, y: x / 1.0,
    "subtract zero": lambda x, y: x - 0.0,
    "negate twice": lambda x, y: jnp.negative(-x),
    "select by a constant": lambda x, y: jnp.where(jnp.array(1.0) > 0, x, y),
    "select the same": lambda x, y: jnp.where(y > 0, x, x),
    "multiply by zero": lambda x, y: x + 0.0 * y,
    "zero divided": lambda x, y: x + 0.0 / y,
    "maximum of one": lambda x, y: jnp.maximum(x, x),
    "not not": lambda x, y: jnp.where(~~(y > 0) | True, x, y),
    "unused": lambda x, y: (jnp.sin(y), x)[1],
    "unused branch": lambda x, y: (lax.cond(y > 0, jnp.sin, jnp.cos, y), x)[1],
    "unused loop": lambda x, y: (lax.while_loop(lambda y: y < 3, lambda y: y + 1, y), x)[1],
    "branches that agree": lambda x, y: lax.cond(y > 0, lambda: x, lambda: x),
    "carry that stays": lambda x, y: lax.while_loop(
        lambda s: s[1] < 3, lambda s: (s[0], s[1] + 1), (x, y)
    )[0],
}


@pytest.mark.parametrize("name", VANISHING)
def test_vanishes(name):
    function = traced(VANISHING[name], X, Y)
    assert operations(function) == []
    assert function.outputs[0][()].data == ("a0", None)


def test_structural_zeros_thin_out_a_jacobian():
    def chain(y):
        return jnp.stack([y[1] * y[0], y[2] * y[1], y[2]])

    function = traced(jax.jacfwd(chain), jnp.ones(3))
    assert operations(function) == []  # its entries are those of y, zeros and a one
    zeros = [value for value in function.outputs[0].flat if value.is_constant and value.data == 0]
    assert len(zeros) == 4


def test_accumulating_a_zero_prints_nothing():
    function = traced(lambda y: jnp.stack([y[0], jnp.zeros(())]), jnp.ones(2))
    assert text(function, accumulate=True) == "  o0[0] = o0[0] + a0[0];\n"
    assert text(function) == "  o0[0] = a0[0];\n  o0[1] = F64(0.0);\n"


def test_common_subexpressions_merge():
    function = traced(lambda x, y: jnp.sin(x * y) + jnp.cos(y * x) * jnp.sin(x * y), X, Y)
    assert operations(function) == [Op.MUL, Op.SIN, Op.COS, Op.FMA]


def test_two_bodies_are_equally_far_from_each_other():
    def distances(y):
        apart = y[:, None, :] - y[None, :, :]
        return apart, jnp.sqrt(jnp.sum(apart**2, axis=-1))

    function = traced(distances, jnp.ones((4, 2)))
    counts = Counter(operations(function))
    # Differences are needed in both directions, and to itself: one that is not finite shows there.
    pairs, selves = 6, 4
    assert counts[Op.SUB] == 2 * (2 * pairs + selves)
    assert counts[Op.SQRT] == pairs + selves
    apart, distance = function.outputs
    assert distance[0, 1] is distance[1, 0]
    assert apart[0, 1, 0] is not apart[1, 0, 0]


@pytest.mark.parametrize("exponent", [0.5, 1.5, -3.5, 2.0, -4.0])
def test_short_powers_are_products_and_roots(exponent):
    power = lambda x, y: x**y
    assert Op.POW in operations(traced(power, X, Y))
    assert Op.POW not in operations(traced(lambda x: x**exponent, X))
    assert Op.POW not in operations(traced(jax.grad(lambda x: x ** (exponent + 1)), X))


@pytest.mark.parametrize("exponent", [4.5, 5.0, 1 / 3, np.inf, np.nan])
def test_other_powers_are_general(exponent):
    assert operations(traced(lambda x: x**exponent, X)) == [Op.POW]


def test_inner_blocks_use_what_is_outside_but_not_the_reverse():
    def branch(x, y):
        s = jnp.sin(x)
        return lax.cond(y > 0, lambda: s + jnp.cos(x), lambda: s) + jnp.cos(x)

    function = traced(branch, X, Y)
    assert operations(function).count(Op.SIN) == 1
    assert operations(function).count(Op.COS) == 2  # the inner one runs only if its branch does


@pytest.mark.parametrize(
    ("exponent", "op"),
    [
        (-1 / 10, Op.INVERSE_ROOT),  # an I controller of a method of order 5
        (-1 / 18, Op.INVERSE_ROOT),
        (-0.07, Op.POWER),  # of a PI controller
        (0.04, Op.POWER),
        (-1 / 22, Op.POWER),  # beyond the root's range
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_step_control(exponent, op, dtype):
    function = traced(lambda x: step_size_power(x, dtype(exponent)), np.ones(1, dtype))
    assert operations(function) == [op]


def test_a_number_that_is_marked_as_failed_is_asked_once():
    def twice(ok, x):
        marked = jnp.where(ok, x, jnp.nan)
        return jnp.isfinite(marked)

    assert operations(traced(twice, True, 1.0)) == [Op.IS_FINITE, Op.AND]


def test_entries_without_a_sink_are_not_computed():
    function = traced(lambda x, y: jnp.stack([jnp.sin(x), jnp.cos(y)]), X, Y)
    body = print_body(
        function,
        argument=lambda name, index: name,
        leaf_entry=lambda leaf, entry: "",
        leaf_array=lambda leaf: "",
        sinks=[[None, Sink("out")]],
    )
    assert body == "  const F64 v0 = gs::cos(a1);\n  out = v0;\n"


FOLDED = [
    (Op.DIV, (7, -2), np.int32, -3),
    (Op.DIV, (7, 0), np.int32, -1),
    (Op.DIV, (-(2**31), -1), np.int32, -(2**31)),
    (Op.DIV, (7, 0), np.uint32, 2**32 - 1),
    (Op.REM, (-7, 2), np.int32, -1),
    (Op.REM, (7, 0), np.int32, 7),
    (Op.REM, (-7.5, 2.0), np.float64, -1.5),
    (Op.ADD, (2**31 - 1, 1), np.int32, -(2**31)),
    (Op.SHIFT_LEFT, (1, 40), np.int32, 0),
    (Op.SHIFT_RIGHT_ARITHMETIC, (-8, 40), np.int32, -1),
    (Op.SHIFT_RIGHT_LOGICAL, (-1, 31), np.int32, 1),
    (Op.ROUND_AWAY, (-2.5,), np.float64, -3.0),
    (Op.ROUND_EVEN, (-2.5,), np.float64, -2.0),
    (Op.MAX, (1.0, np.nan), np.float64, np.nan),
    (Op.ADD, (0.1, 0.2), np.float32, np.float32(0.1) + np.float32(0.2)),
    (Op.EXP, (1.0,), np.float32, np.exp(np.float32(1))),
]


@pytest.mark.parametrize(("op", "args", "dtype", "result"), FOLDED, ids=str)
def test_folding(op, args, dtype, result):
    folded = fold(op, tuple(map(dtype, args)), np.dtype(dtype))
    assert type(folded) is dtype
    np.testing.assert_equal(folded, dtype(result))


def test_conversion_saturates():
    for number, dtype, result in (
        (1e20, np.int32, 2**31 - 1),
        (-1e20, np.int32, -(2**31)),
        (np.nan, np.int64, 0),
        (-3.7, np.uint32, 0),
        (3.7, np.int32, 3),
    ):
        assert fold(Op.CONVERT, (np.float64(number),), np.dtype(dtype)) == result


LITERALS = [
    (np.float64(0.1), "F64(0.1)"),
    (np.float32(0.1), "F32(0.1f)"),
    (np.float64(-0.0), "F64(-0.0)"),
    (np.float64(1e300), "F64(1e+300)"),
    (np.float32(1.17549435e-38), "F32(1.1754944e-38f)"),
    (np.float64(np.inf), "gs::infinity<F64>()"),
    (np.float32(-np.inf), "-gs::infinity<F32>()"),
    (np.float64(np.nan), "gs::quiet_nan<F64>()"),
    (np.int32(-(2**31)), "I32(-2147483647 - 1)"),
    (np.int64(5), "I64(5ll)"),
    (np.uint64(2**64 - 1), "U64(18446744073709551615ull)"),
    (np.bool_(True), "Mask(true)"),
]


@pytest.mark.parametrize(("number", "printed"), LITERALS, ids=str)
def test_literals(number, printed):
    assert literal(number) == printed


def test_literals_are_lossless():
    rng = np.random.default_rng(0)
    for dtype, bits in ((np.float64, np.uint64), (np.float32, np.uint32)):
        numbers = rng.integers(0, np.iinfo(bits).max, 2000, dtype=bits).view(dtype)
        for number in numbers[np.isfinite(numbers)]:
            digits = literal(number).partition("(")[2].rstrip("f)")
            assert dtype(digits) == number


# ---- Passes, each on its own --------------------------------------------------------------------


def _function(builder, *outputs):
    return Function((), (object_array(list(outputs), (len(outputs),)),), builder.root)


def _arguments(builder, count):
    return [builder.argument("x", i, F64) for i in range(count)]


def test_dead_code():
    b = Builder(100)
    x, y = _arguments(b, 2)
    b.emit(Op.SIN, b.emit(Op.MUL, x, y))
    kept = b.emit(Op.ADD, x, y)
    assert operations(remove_dead_code(_function(b, kept))) == [Op.ADD]


def test_contraction():
    b = Builder(100)
    x, y, z = _arguments(b, 3)
    xy, yz, zx = b.emit(Op.MUL, x, y), b.emit(Op.MUL, y, z), b.emit(Op.MUL, z, x)
    sum_ = b.emit(Op.ADD, xy, z)  # fma(x, y, z)
    left = b.emit(Op.SUB, yz, x)  # fma(y, z, -x)
    right = b.emit(Op.SUB, y, zx)  # fma(-z, x, y)
    function = contract(_function(b, sum_, left, right))
    assert operations(function) == [Op.FMA, Op.FMS, Op.FNMA]
    assert "gs::fma(y, z, -x)" in text(function).replace("x[0]", "x").replace("x[1]", "y").replace(
        "x[2]", "z"
    )


def test_no_contraction_of_a_product_that_is_needed_or_of_integers():
    b = Builder(100)
    x, y, z = _arguments(b, 3)
    product = b.emit(Op.MUL, x, y)
    function = contract(_function(b, b.emit(Op.ADD, product, z), product))
    assert operations(function) == [Op.MUL, Op.ADD]
    b = Builder(100)
    i, j = (b.argument("i", k, np.dtype(np.int32)) for k in range(2))
    function = contract(_function(b, b.emit(Op.ADD, b.emit(Op.MUL, i, j), j)))
    assert operations(function) == [Op.MUL, Op.ADD]


def test_no_contraction_across_blocks():
    def branch(x, y):
        product = x * y
        return lax.cond(x > 0, lambda: product + x, lambda: x)

    assert Op.MUL in operations(traced(branch, X, Y))


def test_carries_that_nothing_needs_go():
    def loop(x, y):
        # The second carry feeds only itself.
        return lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, jnp.sin(s[1])), (x, y))[0]

    function = traced(loop, X, Y)
    assert Op.SIN not in operations(function)
    (owner,) = [value for value in function.walk() if value.op is Op.LOOP]
    assert len(owner.data.carries) == 1


def test_passes_leave_their_input_alone():
    b = Builder(100)
    x, y = _arguments(b, 2)
    function = _function(b, b.emit(Op.ADD, b.emit(Op.MUL, x, y), x))
    before = text(function)
    contract(remove_dead_code(function))
    assert text(function) == before
