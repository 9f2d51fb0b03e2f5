"""Pictures of trajectories, meshes and fits. Needs Matplotlib: the extra `plot`."""

from ._ensemble import ensemble as ensemble
from ._loss import loss as loss
from ._steps import steps as steps
from ._trajectory import trajectory as trajectory
