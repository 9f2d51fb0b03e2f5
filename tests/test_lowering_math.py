"""The elementary functions against extended precision."""

import ctypes

import numpy as np
import pytest

from .lowering_harness import compiled_library

# Units of the last place: what math_packs.h and sigmoid.h promise.
LIMIT = 2.0
COUNT = 1 << 14

# name: (reference, lowest and highest argument of float64, of float32)
FUNCTIONS = {
    "cos": (np.cos, (-1e5, 1e5), (-1e5, 1e5)),
    "exp": (np.exp, (-745, 709.7), (-103, 88.7)),
    "expm1": (np.expm1, (-40, 709.7), (-20, 88.7)),
    "log": (np.log, (5e-324, 1e300), (1e-45, 1e38)),
    "log1p": (np.log1p, (-1 + 1e-16, 1e300), (-1 + 1e-7, 1e38)),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), (-705, 800), (-85, 100)),
    "sin": (np.sin, (-1e5, 1e5), (-1e5, 1e5)),
    "tanh": (np.tanh, (-25, 25), (-12, 12)),
}
# Where `called.h` has the results of four, and the arguments that put `a` there.
FOUR = {"a": "a, b, b, b", "b": "b, a, b, b", "c": "b, b, a, b", "d": "b, b, b, a"}
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 800.0, -800.0, 0.5, -0.5]
SPECIAL += [1e-30, -1e-30, 2.5]

_SOURCE = """
#include "gs/called.h"
#include "gs/math.h"

using namespace gs;

template <class T, class S, class F>
void each(F f, const S* x, const S* y, S* out, int64_t n) {
  for (int64_t i = 0; i < n; i += GS_LANES) {
    T a, b;
    for (int l = 0; l < GS_LANES; ++l) set_lane(a, l, x[i + l]), set_lane(b, l, y[i + l]);
    const T r = f(a, b);
    for (int l = 0; l < GS_LANES; ++l) out[i + l] = lane(r, l);
  }
}
#define DEFINE(name, call)                                                                   \\
  extern "C" void name##_64(const double* x, const double* y, double* out, int64_t n) {      \\
    each<F64>([](F64 a, F64 b) { return gs::call; }, x, y, out, n);                          \\
  }                                                                                          \\
  extern "C" void name##_32(const float* x, const float* y, float* out, int64_t n) {         \\
    each<F32>([](F32 a, F32 b) { return gs::call; }, x, y, out, n);                          \\
  }
DEFINE(pow, pow(a, b))
"""


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda lanes: f"{lanes} lanes")
def library(request, tmp_path_factory):
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("needs a long double that is longer than a double, as a reference")
    text = _SOURCE + "".join(f"DEFINE({name}, {name}(a))\n" for name in FUNCTIONS)
    for name in FUNCTIONS:
        for place, numbers in FOUR.items():
            text += f"DEFINE({name}_{place}, called::{name}({numbers}).{place})\n"
    return compiled_library(text, tmp_path_factory.mktemp("math"), request.param)


def call(library, name, x, y):
    out = np.zeros_like(x)
    function = getattr(library, f"{name}_{8 * x.itemsize}")
    function(*(ctypes.c_void_p(array.ctypes.data) for array in (x, y, out)), ctypes.c_int64(len(x)))
    return out


def spread(low, high, dtype):
    """Numbers of all magnitudes, and more of those near one."""
    rng = np.random.default_rng(0)
    smallest = np.log(max(abs(low) if low > 0 else 1e-30, np.finfo(dtype).smallest_subnormal))
    sizes = np.exp(rng.uniform(smallest, np.log(high), COUNT // 2))
    signs = 1 if low > -1 else rng.choice([-1, 1], COUNT // 2)
    near_one = rng.uniform(max(low, -2), 2, COUNT - COUNT // 2)
    return np.clip(np.concatenate([sizes * signs, near_one]), low, high).astype(dtype)


def worst(got, exact):
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        unit = np.spacing(np.abs(rounded))
        distance = np.abs((got.astype(np.longdouble) - exact) / unit)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_accuracy(library, name, dtype):
    function, *ranges = FUNCTIONS[name]
    low, high = ranges[dtype == np.float32]
    with np.errstate(all="ignore"):
        x = spread(low, high, dtype)
        distance = worst(call(library, name, x, x), function(x.astype(np.longdouble)))
    at = int(np.argmax(distance))
    assert distance[at] <= LIMIT, (name, x[at], distance[at])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_accuracy_of_powers(library, dtype):
    x = spread(1e-30, 1e30, dtype)
    y = np.random.default_rng(1).uniform(-20, 20, len(x)).astype(dtype)
    with np.errstate(all="ignore"):
        exact = x.astype(np.longdouble) ** y.astype(np.longdouble)
        inside = (np.abs(exact) < np.finfo(dtype).max) & (np.abs(exact) > np.finfo(dtype).tiny)
    # Bases near one with large exponents are where both parts of the logarithm count.
    x[: len(x) // 8] = 1 + x[: len(x) // 8] % 1e-3
    exact = x.astype(np.longdouble) ** y.astype(np.longdouble)
    distance = np.where(inside, worst(call(library, "pow", x, y), exact), 0)
    at = int(np.argmax(distance))
    assert distance[at] <= LIMIT, (x[at], y[at], distance[at])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(library, name, dtype):
    x = np.array(SPECIAL, dtype)
    got = call(library, name, x, x)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name][0](x.astype(np.longdouble))
        want = exact.astype(dtype)
    # XLA's logistic function is 1 / (1 + inf) where exp(-x) is out of range.
    if name == "logistic":
        exact = np.where(np.abs(want) < np.finfo(dtype).tiny, np.abs(got) * 0, exact)
        want = exact.astype(dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))
    assert worst(got, exact).max() <= LIMIT, (x, got, want)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_tanh_is_exact_at_its_ends(library, dtype):
    tiny = np.ldexp(dtype(1), np.finfo(dtype).minexp - np.arange(np.finfo(dtype).nmant + 1))
    tiny = np.repeat(tiny, 4)  # whole packs
    np.testing.assert_array_equal(call(library, "tanh", tiny, tiny), tiny)
    large = np.linspace(5, 100, COUNT, dtype=dtype)
    got = call(library, "tanh", np.concatenate([large, -large]), np.tile(large, 2))
    assert np.abs(got).max() == 1
    np.testing.assert_array_equal(got[: len(large)][large > 20], 1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_four_have_the_bits_of_one(library, name, dtype):
    x = np.concatenate([np.array(SPECIAL, dtype), spread(1e-3, 50, dtype)])
    y = np.full_like(x, 0.3)
    one = call(library, name, x, y)
    for place in FOUR:
        np.testing.assert_array_equal(call(library, f"{name}_{place}", x, y), one)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_special_powers(library, dtype):
    values = np.array(SPECIAL, dtype)
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(values, values))
    got = call(library, "pow", x, y)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
        distance = worst(got, exact)
        out_of_range = np.abs(exact) > np.finfo(dtype).max  # rounds to infinity in either
        distance = np.where(out_of_range & np.isinf(got), 0, distance)
    at = int(np.argmax(distance))
    assert distance[at] <= LIMIT, (x[at], y[at], got[at], exact[at])


@pytest.mark.parametrize("name", [*FUNCTIONS, "pow"])
def test_lanes_do_not_touch_each_other(library, name):
    # An extreme argument in one lane may send all of them another way, to the same result within
    # the limit of both.
    x = np.tile(np.array([0.7, np.nan, 1e300, -1e300, 0.7, np.inf, 0.0, 0.7]), 2)
    y = np.full_like(x, 1.5)
    ordinary = call(library, name, np.full_like(x, 0.7), y)[0]
    mixed = call(library, name, x, y)[[0, 4, 7]]
    np.testing.assert_allclose(mixed, ordinary, rtol=2 * LIMIT * 2.0**-52)
