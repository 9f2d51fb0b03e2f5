"""Up to how many components loops over them are unrolled."""

import dataclasses

# Unrolled, the components of all stages are to fit into the registers and the nearest cache of a
# CPU, and compile in little time.
_VALUES_ON_CPU = 64
_COMPONENTS_ON_GPU = 16


@dataclasses.dataclass(frozen=True)
class _LinearSystems:
    """Loops over larger states are unrolled with the linear system, but not those over the stages.

    That gains if the system is sparse: its entries are where the text says, and no loop looks for
    them. The length of the text, and the compiler's time, grow with the `products`.
    """

    components: int
    products: int


# As many products as a full system takes with 10 and with 16 unknowns.
_ON_CPU = _LinearSystems(components=24, products=285)
_ON_GPU = _LinearSystems(components=32, products=1240)


@dataclasses.dataclass(frozen=True)
class Unrolling:
    """The largest states whose components are unrolled, on a CPU and on a GPU."""

    on_cpu: int
    on_gpu: int


def unrolling(stages: int, products: int | None) -> Unrolling:
    """What `lanes.h` is told.

    **Arguments:**

    - `stages`: those of a step, the extra ones of its dense output included.
    - `products`: what a linear system takes in each step, `None` for a method that has none.
    """
    on_cpu, on_gpu = max(1, _VALUES_ON_CPU // stages), _COMPONENTS_ON_GPU
    if products is not None:
        if products <= _ON_CPU.products:
            on_cpu = max(on_cpu, _ON_CPU.components)
        if products <= _ON_GPU.products:
            on_gpu = max(on_gpu, _ON_GPU.components)
    return Unrolling(on_cpu, on_gpu)
