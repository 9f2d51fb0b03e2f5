"""Fits the kinetics of theophylline in twelve subjects, all at once.

    python examples/fit_theophylline.py

Prints the fitted parameters of each subject and compares them with least squares on the closed-form
solution, one subject after the other, by SciPy. Draws `theophylline.png`.

Model: a dose taken by mouth is absorbed into one compartment and eliminated from it,

    d A / dt = -ka A                    A(0) = dose, in mg per kg of body weight
    d C / dt =  ka A / V - ke C         C(0) = 0, in mg/L

with the volume V = Cl / ke. Each subject has an absorption rate ka (1/h), an elimination rate ke
(1/h) and a clearance Cl (L/h per kg) of its own, a dose of its own and samples at times of its own.
Twelve subjects are one ensemble, and their fits are one fit.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from scipy.optimize import least_squares

import gradsolve as gs

jax.config.update("jax_enable_x64", True)

# Where every subject starts: ka, ke, Cl. Concentrations stay the same if ka and ke change places
# and Cl is kept: the model has two equally good fits. Both methods start on the side ka > ke, of
# absorption faster than elimination, and stay there.
START = (1.5, 0.08, 0.04)
NAMES = ("ka", "ke", "Cl")


class OralAbsorption(gs.ODESystem):
    """All three are positive, so their logarithms are the parameters."""

    log_ka: Float[Array, "*subjects"]
    log_ke: Float[Array, "*subjects"]
    log_cl: Float[Array, "*subjects"]

    def vector_field(self, t, y):
        ka, ke, cl = jnp.exp(self.log_ka), jnp.exp(self.log_ke), jnp.exp(self.log_cl)
        depot, concentration = y
        absorbed = ka * depot
        return jnp.stack([-absorbed, absorbed * ke / cl - ke * concentration])

    def table(self) -> np.ndarray:
        """The parameters themselves, `(subjects, 3)`."""
        return np.exp(np.stack([self.log_ka, self.log_ke, self.log_cl], axis=1))


def closed_form(log_parameters: np.ndarray, dose: float, t: np.ndarray) -> np.ndarray:
    """The concentrations at the times `t`."""
    ka, ke, cl = np.exp(log_parameters)
    return dose * ka * ke / cl / (ka - ke) * (np.exp(-ke * t) - np.exp(-ka * t))


def by_scipy(data: gs.datasets.Theophylline) -> np.ndarray:
    """The reference: each subject alone, on the closed form. `(subjects, 3)`."""
    rows = []
    for dose, t, measured in zip(data.dose, data.ts, data.ys, strict=True):
        residuals = lambda p, dose=dose, t=t, y=measured: closed_form(p, dose, t) - y
        solution = least_squares(residuals, np.log(START), xtol=1e-12, ftol=1e-12, gtol=1e-12)
        rows.append(np.exp(solution.x))
    return np.stack(rows)


def main(
    steps: int = 1000, progress: bool = True, plot: str | None = "theophylline.png"
) -> tuple[gs.FitResult[OralAbsorption], np.ndarray, np.ndarray]:
    """Fits, compares, prints and draws; returns the fit and the two tables of parameters."""
    data = gs.datasets.theophylline()
    subjects = len(data.subject)
    system = OralAbsorption(*(jnp.full(subjects, np.log(value)) for value in START))
    y0 = jnp.stack([jnp.asarray(data.dose), jnp.zeros(subjects)], axis=1)

    def loss(ys):
        """Squared errors of all subjects; each one's parameters see only their own.

        The first sample is at time 0, where the model says 0 whatever its parameters are: it adds
        a constant, here and in the reference.
        """
        concentrations = ys[:, :, 1]
        return jnp.sum((concentrations - data.ys) ** 2)

    fit = gs.fit(
        system,
        y0,
        t0=0.0,
        t1=data.ts.max(),
        ts=data.ts,  # a row for each subject
        in_axes=gs.InAxes(system=0, y0=0, ts=0),
        loss=loss,
        # Adam treats each number by itself, so the fits of the subjects do not mix.
        optimizer=optax.adam(optax.cosine_decay_schedule(5e-2, steps)),
        steps=steps,
        progress=progress,
    )

    fitted, reference = fit.system.table(), by_scipy(data)
    differences = np.abs(fitted / reference - 1)
    print("subject" + "".join(f"{name:>10}{'SciPy':>10}" for name in NAMES) + f"{'difference':>13}")
    for subject, ours, theirs, off in zip(
        data.subject, fitted, reference, differences, strict=True
    ):
        numbers = "".join(f"{a:10.4f}{b:10.4f}" for a, b in zip(ours, theirs, strict=True))
        print(f"{subject:7d}{numbers}{off.max():13.1e}")
    print(f"largest relative difference: {differences.max():.1e}")

    if plot:
        draw(fit, data, plot)
        print(f"wrote {plot}")
    return fit, fitted, reference


def draw(fit, data, path):
    from matplotlib import pyplot

    times = np.linspace(0.0, float(fit.trajectory.t1), 300)
    concentrations = fit.trajectory.evaluate(times)[:, :, 1]
    figure, axes = pyplot.subplots(
        3, 4, figsize=(11, 7), sharex=True, sharey=True, layout="constrained"
    )
    for i, ax in enumerate(axes.flat):
        ax.plot(times, concentrations[i])
        ax.plot(data.ts[i], data.ys[i], "o", markersize=4)
        ax.set_title(f"subject {data.subject[i]}", fontsize="medium")
    figure.supxlabel("hours after the dose")
    figure.supylabel("theophylline, mg/L")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fits theophylline in twelve subjects.")
    parser.add_argument("--steps", type=int, default=1000, help="updates of the optimiser")
    parser.add_argument("--plot", default="theophylline.png", help="where to draw")
    arguments = parser.parse_args()
    main(steps=arguments.steps, plot=arguments.plot)
