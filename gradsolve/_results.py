"""The status of each trajectory, and the error that reports failed ones."""

import equinox as eqx

# The integers behind the enumeration, for code that computes with plain arrays.
SUCCESSFUL = 0
MAX_STEPS_REACHED = 1
STEP_SIZE_UNDERFLOW = 2
NONFINITE = 3
EVENT = 4

MESSAGES = (
    "",
    "the maximum number of steps was reached. Increase `max_steps`, loosen the tolerances, or use "
    "a stiff integrator such as `gradsolve.Rodas5P()`.",
    "the step size fell below `dtmin` or the resolution of `t`. The solution may have a "
    "singularity there, or the problem is too stiff for the integrator.",
    "the vector field returned inf or nan (or an implicit equation was not solved) and no smaller "
    "step avoided it. Check the parameters and the domain of the vector field near that time.",
    "a terminating event occurred.",
)


class RESULTS(eqx.Enumeration):
    """How each trajectory ended: one member per trajectory.

    `successful`; `max_steps_reached`; `step_size_underflow` (below `dtmin`, or so small that `t`
    no longer changes); `nonfinite` (the vector field); `event` (reserved for terminating events).
    """

    successful = MESSAGES[SUCCESSFUL]
    max_steps_reached = MESSAGES[MAX_STEPS_REACHED]
    step_size_underflow = MESSAGES[STEP_SIZE_UNDERFLOW]
    nonfinite = MESSAGES[NONFINITE]
    event = MESSAGES[EVENT]


# In the order of the integers.
MEMBERS = (
    RESULTS.successful,
    RESULTS.max_steps_reached,
    RESULTS.step_size_underflow,
    RESULTS.nonfinite,
    RESULTS.event,
)


class SolveError(RuntimeError):
    """At least one trajectory failed and `throw=True` was in force."""
