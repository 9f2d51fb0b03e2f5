"""The recorded mesh: the steps that each trajectory accepted."""

import equinox as eqx

from ._custom_types import Array, Float, Int


class Mesh(eqx.Module):
    """The accepted steps of a solve.

    `times[k, i]` is the `k`-th accepted time of trajectory `i`; row 0 is `t0`. Rows past
    `num_steps[i]` repeat the last time, so that a padded step has length zero and is the identity.
    Step `k` has the length `times[k + 1] - times[k]`, by that subtraction, in the recording and in
    every replay. The number of rows is at least `max(num_steps) + 1`; it is rounded up to one of a
    few sizes (and stays `max_steps + 1` where that takes little memory), so that solves share
    compiled code.

    A single trajectory has `times` of shape `(rows,)` and a scalar `num_steps`.
    """

    times: Float[Array, "rows *lanes"]
    num_steps: Int[Array, "*lanes"]
