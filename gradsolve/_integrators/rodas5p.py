"""Steinebach's fifth order method."""

from typing import ClassVar

from ._rosenbrock import AbstractRosenbrock
from ._rosenbrock_tableau import RosenbrockTableau
from ._tableau import rationals

# The numbers, those of the dense output too, are published with 16 digits.
(_gamma,) = rationals("0.21193756319429014")

_tableau = RosenbrockTableau(
    order=5,
    embedded_order=4,
    gamma=_gamma,
    a=(
        (),
        rationals("3"),
        rationals("2.849394379747939 0.45842242204463923"),
        rationals("-6.954028509809101 2.489845061869568 -10.358996098473584"),
        rationals(
            """
            2.8029986275628964 0.5072464736228206 -0.3988312541770524 -0.04721187230404641
            """
        ),
        rationals(
            """
            -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256
            0.030198172008377946
            """
        ),
        rationals(
            """
            -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256
            0.030198172008377946 1
            """
        ),
        rationals(
            """
            -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256
            0.030198172008377946 1 1
            """
        ),
    ),
    C=(
        (),
        rationals("-14.155112264123755"),
        rationals("-17.97296035885952 -2.859693295451294"),
        rationals("147.12150275711716 -1.41221402718213 71.68940251302358"),
        rationals(
            """
            165.43517024871676 -0.4592823456491126 42.90938336958603 -5.961986721573306
            """
        ),
        rationals(
            """
            24.854864614690072 -3.0009227002832186 47.4931110020768 5.5814197821558125
            -0.6610691825249471
            """
        ),
        rationals(
            """
            30.91273214028599 -3.1208243349937974 77.79954646070892 34.28646028294783
            -19.097331116725623 -28.087943162872662
            """
        ),
        rationals(
            """
            37.80277123390563 -3.2571969029072276 112.26918849496327 66.9347231244047
            -40.06618937091002 -54.66780262877968 -9.48861652309627
            """
        ),
    ),
    c=rationals(
        """
        0 0.6358126895828704 0.4095798393397535 0.9769306725060716 0.4288403609558664 1 1 1
        """
    ),
    d=rationals(
        """
        0.21193756319429014 -0.42387512638858027 -0.3384627126235924 1.8046452872882734
        2.325825639765069 0 0 0
        """
    ),
    m=rationals(
        """
        -7.502846399306121 2.561846144803919 -11.627539656261098 -0.18268767659942256
        0.030198172008377946 1 1 1
        """
    ),
    m_error=rationals("0 0 0 0 0 0 0 1"),
    H=(
        rationals(
            """
            25.948786856663858 -2.5579724845846235 10.433815404888879 -2.3679251022685204
            0.524948541321073 1.1241088310450404 0.4272876194431874 -0.17202221070155493
            """
        ),
        rationals(
            """
            -9.91568850695171 -0.9689944594115154 3.0438037242978453 -24.495224566215796
            20.176138334709044 15.98066361424651 -6.789040303419874 -6.710236069923372
            """
        ),
        rationals(
            """
            11.419903575922262 2.8879645146136994 72.92137995996029 80.12511834622643
            -52.072871366152654 -59.78993625266729 -0.15582684282751913 4.883087185713722
            """
        ),
    ),
    dense_order=4,
)


class Rodas5P(AbstractRosenbrock):
    """Steinebach's fifth order method.

    Eight stages, order 5, embedded order 4, L-stable and stiffly accurate; order 4 and more remains
    on parabolic problems and on differential-algebraic equations of index 1. The dense output is of
    order 4.

    The stiff method to begin with: for relative tolerances of 1e-4 and smaller.

    ??? cite "Reference"

        G. Steinebach, "Construction of Rosenbrock-Wanner method Rodas5P and numerical benchmarks
        within the Julia Differential Equations package", BIT Numerical Mathematics 63 (2023), 27.
        doi:10.1007/s10543-023-00967-x
    """

    tableau: ClassVar[RosenbrockTableau] = _tableau
