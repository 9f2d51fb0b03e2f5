"""Primitives that wrap a jaxpr: it is lowered in place."""

import functools as ft
from typing import Any

import jax
from jax.extend.core import primitives

from .._arrays import Operand
from .._ir import Op
from .._registry import AbstractContext, existing, lowers, lowers_named
from .elementwise import elementwise

# The power in a controller's formula, a function of this name, has code of its own: general powers
# cost more than a small vector field.
_STEP_SIZE_POWER = "step_size_power"


@lowers(*existing("jit", "pjit"))
def _jit(
    context: AbstractContext,
    *operands: Operand,
    jaxpr: Any,
    in_shardings: Any = None,
    out_shardings: Any = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    donated_invars: Any = None,
    ctx_mesh: Any = None,
    name: Any = None,
    keep_unused: Any = None,
    inline: Any = None,
    compiler_options_kvs: Any = None,
) -> list[Operand]:
    if name == _STEP_SIZE_POWER:
        return [elementwise(context, ft.partial(context.builder.emit, Op.POWER), *operands)]
    # The rest says where and how XLA compiles it.
    return context.run(jaxpr.jaxpr, jaxpr.consts, operands)


@lowers(*existing("closed_call", "call"))
def _closed_call(
    context: AbstractContext, *operands: Operand, call_jaxpr: Any, name: Any = None
) -> list[Operand]:
    return _run(context, call_jaxpr, operands)


@lowers(primitives.remat_p)
def _remat(
    context: AbstractContext,
    *operands: Operand,
    jaxpr: Any,
    prevent_cse: Any = None,
    differentiated: Any = None,
    policy: Any = None,
) -> list[Operand]:
    # What is kept and what is computed again was decided when the jaxpr was differentiated.
    return _run(context, jaxpr, operands)


@lowers(primitives.custom_jvp_call_p)
def _custom_jvp_call(
    context: AbstractContext,
    *operands: Operand,
    call_jaxpr: Any,
    jvp_jaxpr_fun: Any = None,
    num_consts: Any = None,
    symbolic_zeros: Any = None,
) -> list[Operand]:
    # A jaxpr that still holds the call is not differentiated any more.
    return _run(context, call_jaxpr, operands)


@lowers(primitives.custom_vjp_call_p)
def _custom_vjp_call(
    context: AbstractContext,
    *operands: Operand,
    call_jaxpr: Any,
    fwd_jaxpr_thunk: Any = None,
    bwd: Any = None,
    num_consts: Any = None,
    out_trees: Any = None,
    symbolic_zeros: Any = None,
) -> list[Operand]:
    return _run(context, call_jaxpr, operands)


@lowers_named("call_hi_primitive")
def _call_hi_primitive(context: AbstractContext, *operands: Operand, _prim: Any) -> list[Operand]:
    # From JAX 0.12 on, `searchsorted` is one of these; each knows the primitives it stands for.
    structs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    return _run(context, jax.make_jaxpr(_prim.expand)(*structs), operands)


def _run(context: AbstractContext, jaxpr: Any, operands: tuple[Operand, ...]) -> list[Operand]:
    consts = getattr(jaxpr, "consts", ())
    return context.run(getattr(jaxpr, "jaxpr", jaxpr), consts, operands)
