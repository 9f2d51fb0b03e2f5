"""Fits predator and prey to the pelts that the Hudson's Bay Company bought from 1900 to 1920.

    python examples/fit_lynx_hare.py

Prints the fitted parameters beside published ones and draws `lynx_hare.png`.

Model: Lotka and Volterra,

    d hare / dt =  alpha hare - beta hare lynx
    d lynx / dt = -gamma lynx + delta hare lynx

Errors: log-normal, with a standard deviation of its own for each species. Unknown are the four
rates, the two populations in 1900 and the two standard deviations.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

import gradsolve as gs

# Numbers of 1e-6 relative accuracy and better need double precision.
jax.config.update("jax_enable_x64", True)

# Posterior means of the same model in B. Carpenter, Predator-prey population dynamics: the
# Lotka-Volterra model in Stan (2018).
PUBLISHED = {
    "alpha": 0.55,
    "beta": 0.028,
    "gamma": 0.80,
    "delta": 0.024,
    "hare": 34.0,
    "lynx": 5.9,
}
UNITS = ("1/year", "1/(year 1000 lynx)", "1/year", "1/(year 1000 hares)", "1000", "1000")


class LotkaVolterra(gs.ODESystem):
    """Rates and initial populations are positive, so their logarithms are the parameters."""

    log_rates: Float[Array, "4"]
    log_y0: Float[Array, "2"]

    def vector_field(self, t, y):
        alpha, beta, gamma, delta = jnp.exp(self.log_rates)
        hare, lynx = y
        return jnp.stack([alpha * hare - beta * hare * lynx, delta * hare * lynx - gamma * lynx])


def initial_state(system: LotkaVolterra) -> Array:
    return jnp.exp(system.log_y0)


def first_guess(ys: np.ndarray) -> np.ndarray:
    """Rates from the data alone, by regression.

    The model says d log(hare)/dt = alpha - beta lynx and d log(lynx)/dt = delta hare - gamma. With
    finite differences for the derivatives this is linear in the rates. It matters where a fit of
    oscillations begins: from rates whose cycles are out of step with the data it ends in a local
    minimum.
    """
    hare, lynx = ys.T
    ones = np.ones(len(ys))
    slopes = np.gradient(np.log(ys), axis=0)
    alpha, beta = np.linalg.lstsq(np.stack([ones, -lynx], 1), slopes[:, 0])[0]
    gamma, delta = np.linalg.lstsq(np.stack([-ones, hare], 1), slopes[:, 1])[0]
    return np.array([alpha, beta, gamma, delta])


def main(
    steps: int = 400, progress: bool = True, plot: str | None = "lynx_hare.png"
) -> gs.FitResult[LotkaVolterra]:
    """Fits, prints and draws; no picture without a path."""
    pelts = gs.datasets.hudson_bay()
    ts = pelts.ts - pelts.ts[0]  # years since 1900
    log_pelts = jnp.log(pelts.ys)

    def loss(ys):
        """The negative logarithm of the likelihood, up to a constant.

        For each species it is n log(sigma) + sum(residuals^2) / (2 sigma^2). Whatever the other
        parameters are, the best sigma is the root mean square of the residuals; put in, what
        remains is n log(sigma).
        """
        variances = jnp.mean((jnp.log(ys) - log_pelts) ** 2, axis=0)
        return len(ts) * jnp.sum(jnp.log(variances)) / 2

    fit = gs.fit(
        LotkaVolterra(jnp.log(first_guess(pelts.ys)), jnp.log(pelts.ys[0])),
        initial_state,
        t0=ts[0],
        t1=ts[-1],
        ts=ts,
        loss=loss,
        # Parameters are logarithms: an update changes each by about one per cent.
        optimizer=optax.adam(1e-2),
        steps=steps,
        progress=progress,
    )

    fitted = [*jnp.exp(fit.system.log_rates).tolist(), *fit.y0.tolist()]
    print(f"{'':8}{'fitted':>10}{'published':>11}{'difference':>12}   unit")
    for (name, published), value, unit in zip(PUBLISHED.items(), fitted, UNITS, strict=True):
        difference = value / published - 1
        print(f"{name:8}{value:10.4f}{published:11.3f}{difference:12.1%}   {unit}")
    sigmas = jnp.sqrt(jnp.mean((jnp.log(fit.trajectory.ys) - log_pelts) ** 2, axis=0))
    print(f"standard deviations of the logarithms: hare {sigmas[0]:.2f}, lynx {sigmas[1]:.2f}")

    if plot:
        draw(fit, pelts, ts, plot)
        print(f"wrote {plot}")
    return fit


def draw(fit, pelts, ts, path):
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    gs.plot.trajectory(fit.trajectory, ts, pelts.ys, ax=left, labels=["hare", "lynx"])
    left.set_xlabel("years since 1900")
    left.set_ylabel("thousands of pelts")
    gs.plot.loss(fit, ax=right)
    right.set_ylabel("negative log-likelihood")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fits Lotka-Volterra to lynx and hare.")
    parser.add_argument("--steps", type=int, default=400, help="updates of the optimiser")
    parser.add_argument("--plot", default="lynx_hare.png", help="where to draw")
    arguments = parser.parse_args()
    main(steps=arguments.steps, plot=arguments.plot)
