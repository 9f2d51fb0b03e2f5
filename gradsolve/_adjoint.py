"""How the gradient is computed, as an object given to `solve`."""

import equinox as eqx

from ._memory import check_checkpoint_options


class DiscreteAdjoint(eqx.Module):
    """The exact adjoint of the recorded steps, with checkpoints of the state along the mesh.

    The gradient is the derivative of the discrete map `(system, y0, ts, t0, t1) -> ys` that takes
    exactly the recorded steps; interior mesh times are constants, the first and last move with t0
    and t1.

    The forward pass stores the state of all trajectories every `checkpoint_every` steps; the
    backward pass re-integrates the steps between two checkpoints. For `n` trajectories of `d`
    numbers of `b` bytes and a mesh of capacity `R` steps, the checkpoints and the re-integrated
    segment take

        (ceil(R / checkpoint_every) + checkpoint_every) * n * d * b   bytes

    (only the first term when `checkpoint_every` is 1), beside the mesh itself, `(R + 1) * n * b`;
    under `jax.vmap`, `n` counts the trajectories of the whole batch. A gradient that is compiled
    before it is batched, `jax.vmap(jax.jit(jax.grad(loss)))`, cannot keep fewer checkpoints than
    it would alone, and says so where it must; `jax.jit(jax.vmap(jax.grad(loss)))` can.
    `R` is the number of rows of the recorded mesh, or `max_steps` when `solve` is differentiated
    directly or traced. An integrator from `FromDiffrax` stores its solver state beside `y`.
    The gradient does not depend on the setting.

    **Arguments:**

    - `checkpoint_every`: steps between two checkpoints. `None` chooses the smallest power of two
        whose memory stays within `memory_limit`.
    - `memory_limit`: bytes the checkpoints may take. More is an error that names this setting.
    """

    checkpoint_every: int | None = eqx.field(static=True, default=None)
    memory_limit: int = eqx.field(static=True, default=2**31)

    def __check_init__(self):
        check_checkpoint_options(self.checkpoint_every, self.memory_limit)
