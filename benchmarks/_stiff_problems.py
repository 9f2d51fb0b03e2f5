"""The stiff problems: classical test sets, one rate swept around its published value."""

import diffrax
import jax.numpy as jnp
import numpy as np
from _problems import Problem, Swept, sweep
from jaxtyping import Array

import gradsolve as gs


class Robertson(Swept):
    """Robertson (1966): three reactions, rates from 0.04 to 3e7. The parameter is the slowest."""

    def vector_field(self, t: Array, y: Array) -> Array:
        a = self.parameter * y[0]
        b = 1e4 * y[1] * y[2]
        c = 3e7 * y[1] * y[1]
        return jnp.stack([b - a, a - b - c, c])


class Hires(Swept):
    """HIRES, eight reactions of morphogenesis (IVP test set). The parameter is the first rate."""

    def vector_field(self, t: Array, y: Array) -> Array:
        y1, y2, y3, y4, y5, y6, y7, y8 = y
        bind = 280.0 * y6 * y8
        decay = 1.81 * y7
        return jnp.stack(
            [
                0.0007 - self.parameter * y1 + 0.43 * y2 + 8.32 * y3,
                self.parameter * y1 - 8.75 * y2,
                0.43 * y4 + 0.035 * y5 - (self.parameter + 8.32) * y3,
                8.32 * y2 + self.parameter * y3 - 1.12 * y4,
                0.43 * (y6 + y7) - (self.parameter + 0.035) * y5,
                0.69 * y4 + self.parameter * y5 + 0.69 * y7 - 0.43 * y6 - bind,
                bind - decay,
                decay - bind,
            ]
        )


class Orego(Swept):
    """The Oregonator (Hairer & Wanner, section IV.10). The parameter is `w`, 0.161."""

    def vector_field(self, t: Array, y: Array) -> Array:
        s = 77.27
        return jnp.stack(
            [
                s * (y[0] + y[1] - y[0] * y[1] - 8.375e-6 * y[0] * y[0]),
                (y[2] - y[1] - y[0] * y[1]) / s,
                self.parameter * (y[0] - y[2]),
            ]
        )


class VanDerPol(Swept):
    """The parameter is mu, in the original time scale."""

    def vector_field(self, t: Array, y: Array) -> Array:
        return jnp.stack([y[1], self.parameter * (1.0 - y[0] * y[0]) * y[1] - y[0]])


class Pollu(Swept):
    """POLLU, the chemistry of air pollution (Verwer 1994): 25 reactions of 20 species.

    The parameter is the rate of the first reaction.
    """

    def vector_field(self, t: Array, y: Array) -> Array:
        (no2, no, o3p, o3, ho2, oh, hcho, _, ald, meo2) = y[:10]
        (c2o3, _, pan, ch3o, _, o1d, so2, _, no3, n2o5) = y[10:]
        r1 = self.parameter * no2
        r2 = 26.6 * no * o3
        r3 = 12300.0 * ho2 * no
        r4 = 0.00086 * hcho
        r5 = 0.00082 * hcho
        r6 = 15000.0 * hcho * oh
        r7 = 0.00013 * ald
        r8 = 24000.0 * ald * oh
        r9 = 16500.0 * c2o3 * no
        r10 = 9000.0 * c2o3 * no2
        r11 = 0.022 * pan
        r12 = 12000.0 * meo2 * no
        r13 = 1.88 * ch3o
        r14 = 16300.0 * no2 * oh
        r15 = 4.8e6 * o3p
        r16 = 0.00035 * o3
        r17 = 0.0175 * o3
        r18 = 1e8 * o1d
        r19 = 4.44e11 * o1d
        r20 = 1240.0 * so2 * oh
        r21 = 2.1 * no3
        r22 = 5.78 * no3
        r23 = 0.0474 * no2 * o3
        r24 = 1780.0 * no3 * no2
        r25 = 3.12 * n2o5
        return jnp.stack(
            [
                (r2 + r3 + r9 + r11 + r12 + r22 + r25) - (r1 + r10 + r14 + r23 + r24),
                (r1 + r21) - (r2 + r3 + r9 + r12),
                (r1 + r17 + r19 + r22) - r15,
                r15 - (r2 + r16 + r17 + r23),
                (2.0 * r4 + r6 + r7 + r13 + r20) - r3,
                (r3 + 2.0 * r18) - (r6 + r8 + r14 + r20),
                r13 - (r4 + r5 + r6),
                r4 + r5 + r6 + r7,
                -(r7 + r8),
                (r7 + r9) - r12,
                (r8 + r11) - (r9 + r10),
                r9,
                r10 - r11,
                r12 - r13,
                r14,
                r16 - (r18 + r19),
                -r20,
                r20,
                (r23 + r25) - (r21 + r22 + r24),
                r24 - r25,
            ]
        )


# The parameter runs from 0.8 to 1.25 of its published value.
LOW, HIGH = 0.8, 1.25
SAMPLE = 32

_POLLU_START = {1: 0.2, 3: 0.04, 6: 0.1, 7: 0.3, 8: 0.01, 16: 0.007}


def positions(n: int) -> np.ndarray:
    """Where the members of an ensemble lie in the sweep, from 0 to just below 1.

    Those of `SAMPLE` members are among them, `n` being a multiple of it, so that one reference
    serves ensembles of every size.
    """
    if n % SAMPLE:
        raise ValueError(f"`n` must be a multiple of {SAMPLE}, got {n}.")
    return np.arange(n) / n


def sampled(n: int) -> np.ndarray:
    """The members of an ensemble that are compared with the reference."""
    return np.arange(SAMPLE) * (n // SAMPLE)


def _stiff(
    name: str,
    title: str,
    model: type[Swept],
    published: float,
    y0: tuple[float, ...],
    sizes: tuple[float, ...],
    t1: float,
    dt0: float,
) -> Problem:
    sample = sweep(model, LOW * published, HIGH * published, y0)
    return Problem(
        name,
        title,
        len(y0),
        sample,
        t1,
        dt0,
        integrator=gs.Rodas5P(),
        diffrax_solver=diffrax.Kvaerno5(),
        sizes=sizes,
    )


# The sizes are the largest values on the way, to two digits.
STIFF = {
    problem.name: problem
    for problem in (
        _stiff(
            "robertson",
            "Robertson, d = 3",
            Robertson,
            0.04,
            (1.0, 0.0, 0.0),
            (1.0, 3.6e-5, 0.42),
            100.0,
            1e-4,
        ),
        _stiff(
            "hires",
            "HIRES, d = 8",
            Hires,
            1.71,
            (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057),
            (1.0, 0.13, 0.02, 0.46, 0.19, 0.75, 0.0057, 0.0057),
            321.8122,
            1e-4,
        ),
        _stiff(
            "orego",
            "Oregonator, d = 3",
            Orego,
            0.161,
            (1.0, 2.0, 3.0),
            (1.2e5, 1.5e3, 3.1e4),
            30.0,
            1e-4,
        ),
        _stiff(
            "van_der_pol",
            "van der Pol, d = 2",
            VanDerPol,
            1000.0,
            (2.0, 0.0),
            (2.0, 1e-3),
            500.0,
            1e-4,
        ),
        _stiff(
            "pollu",
            "POLLU, d = 20",
            Pollu,
            0.35,
            tuple(_POLLU_START.get(i, 0.0) for i in range(20)),
            (
                *(0.056, 0.2, 4.1e-9, 0.04, 4.4e-7, 5.8e-7, 0.1, 0.32, 0.01, 5.9e-8),
                *(4.3e-8, 2.2e-3, 2.1e-4, 3e-5, 9e-3, 3.2e-17, 7e-3, 1e-4, 1.8e-6, 5.7e-5),
            ),
            60.0,
            1e-5,
        ),
    )
}
