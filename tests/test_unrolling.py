"""Up to how many components loops over them are unrolled."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import gradsolve as gs
from gradsolve._fused.unrolling import Unrolling, unrolling


class Diffusion(gs.ODESystem):
    """Each of 20 points exchanges with its neighbours, or with all."""

    rate: jax.Array
    with_all: bool = eqx.field(static=True)

    def vector_field(self, t, y):
        mean = jnp.mean(y) if self.with_all else (jnp.roll(y, 1) + jnp.roll(y, -1)) / 2
        return self.rate * (mean - y)


def test_methods_without_linear_systems():
    """On a CPU it depends on how many stages there are."""
    assert unrolling(7, None) == Unrolling(9, 16)
    assert unrolling(100, None) == Unrolling(1, 16)


@pytest.mark.parametrize("stages", [3, 8])
def test_linear_systems_that_take_few_products_are_unrolled_further(stages):
    plain = unrolling(stages, None)
    assert unrolling(stages, 0) == unrolling(stages, 285) == Unrolling(24, 32)
    assert unrolling(stages, 286) == unrolling(stages, 1240) == Unrolling(plain.on_cpu, 32)
    assert unrolling(stages, 1241) == plain


@pytest.mark.parametrize(("with_all", "limits"), [(False, (24, 32)), (True, (8, 16))])
def test_kernels_say_it(with_all, limits):
    system = Diffusion(jnp.float32(2.0), with_all)
    text = gs.kernel_source(
        system, jnp.zeros(20, "float32"), integrator=gs.Rodas5P(), backend=gs.CUDA()
    )
    on_cpu, on_gpu = limits
    assert f"#define GS_UNROLLED_ON_CPU {on_cpu}\n#define GS_UNROLLED_ON_GPU {on_gpu}\n" in text
