"""What a backend is asked to run: the static description of one ensemble computation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.tree_util as jtu

from .._adjoint import DiscreteAdjoint
from .._controllers import AbstractController
from .._custom_types import LaneTime, Leaf
from .._integrators import AbstractIntegrator
from .field import EnsembleField, FieldJaxpr


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Field, integrator and controller without their arrays.

    The arrays travel beside it as one list of leaves: first those of the field (parameters and
    arrays closed over), then those of the controller; `leaf_names` say where the user has them.
    `dtype` is that of the state. `max_steps` bounds the attempted steps of each trajectory,
    `capacity` the accepted steps that the mesh can hold, and in a fused recording for the adjoint
    the attempted ones too.
    """

    dtype: Any
    leaf_names: tuple[str, ...]
    field_jaxpr: FieldJaxpr
    num_field_leaves: int
    integrator: AbstractIntegrator
    controller_static: Any
    controller_treedef: Any
    max_steps: int
    capacity: int
    adjoint: DiscreteAdjoint

    def field(
        self, leaves: Sequence[Leaf], is_lane: Sequence[bool], direction: LaneTime
    ) -> EnsembleField:
        """The vector field of the ensemble with these leaves."""
        count = self.num_field_leaves
        return EnsembleField(self.field_jaxpr, leaves[:count], is_lane[:count], direction)

    def controller(self, leaves: Sequence[Leaf], is_lane: Sequence[bool]) -> AbstractController:
        """The controller; each of its arrays ends in an ensemble axis of size one or `lanes`."""
        count = self.num_field_leaves
        arrays = [
            leaf if lane else leaf[..., None]
            for leaf, lane in zip(leaves[count:], is_lane[count:], strict=True)
        ]
        return eqx.combine(
            jtu.tree_unflatten(self.controller_treedef, arrays), self.controller_static
        )
