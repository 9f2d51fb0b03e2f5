"""The text of a unit: the structure `Problem`, with the functions of a problem."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._ensemble.program import Program
from .._integrators import AbstractExplicitRK, AbstractRosenbrock
from .._lowering import (
    Function,
    Op,
    Sink,
    called_functions,
    has_elementary_functions,
    has_quotients,
    joins_quotients,
    print_body,
)
from .._null_spaces import regularised
from .elimination import elimination
from .functions import StepControl, nonzero_entries
from .parameters import LANE_TYPES, Leaves
from .tableau import flag, number, print_rosenbrock_tableau, print_tableau
from .unit import Unit
from .unrolling import unrolling

# A longer function is called, not repeated in every stage: a step would have to fetch more than the
# instruction cache of a GPU holds. Divisions and roots are a dozen instructions each there.
_INLINED_OPERATIONS = 400
_LONG_OPERATIONS = frozenset({Op.DIV, Op.SQRT, Op.RSQRT})
_LENGTH_OF_LONG = 12

# From so many operations on a function is long straight-line code, for which an optimising compiler
# takes minutes and gains little.
_LARGE = 2000
_LESS_OPTIMISED = """\
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC_RTC__)
#pragma GCC optimize("O1")
#endif"""


class Writer:
    """Collects the members of the structure `Problem`, and writes the text of a unit."""

    def __init__(
        self,
        job: str,
        program: Program,
        structs: Sequence[Any],
        functions: Sequence[Function],
    ) -> None:
        assert isinstance(program.integrator, AbstractExplicitRK | AbstractRosenbrock)
        self._job = job
        self._integrator = program.integrator
        self._tableau = program.integrator.tableau
        self._adaptive = False
        self._dtype = np.dtype(program.dtype)
        self._dim = program.field_jaxpr.dim
        self._mass_matrix = program.field_jaxpr.mass
        self._leaves = Leaves(program.leaf_names, structs, functions)
        self._num_leaves = len(structs)
        self._members: list[str] = []
        self._num_wanted = 0
        self._largest = 0
        self._products: int | None = None
        self._with_products = any(
            value.op is Op.PRODUCT for function in functions for value in function.walk()
        )
        self._with_calls = any(called_functions(function) for function in functions)
        self._with_elementary_functions = any(map(has_elementary_functions, functions))
        self._with_quotients = False
        self._side_by_side = False
        self._wanted_begin = [0]

    # ---- Members of the problem ------------------------------------------------------------------

    def field(self, function: Function) -> None:
        """`dy = f(t, y)`."""
        self._function(
            "field",
            "const Parameters& p, Real t, const Real* y, Real* dy",
            function,
            [[Sink("dy", i) for i in range(self._dim)]],
            in_stages=True,
        )

    def pull(self, function: Function, wanted: Sequence[Any], with_time: bool) -> None:
        """Pulls a cotangent of `dy`, or of what a stage adds, back.

        Those of the leaves are accumulated, and so are all but the first of each kind.
        """
        self._num_wanted = len(wanted)
        for struct in wanted:
            size = math.prod(struct.shape)
            self._wanted_begin.append(self._wanted_begin[-1] + size)
        of_leaves = [
            [Sink("ct_p", entry, accumulate=True) for entry in range(begin, end)]
            for begin, end in zip(self._wanted_begin, self._wanted_begin[1:], strict=False)
        ]
        of_state = [Sink("ct_y", i) for i in range(self._dim)]
        of_times = [[Sink("ct_t")]] if with_time else []
        if isinstance(self._integrator, AbstractRosenbrock):
            of_start = [Sink("ct_y0", i, accumulate=True) for i in range(self._dim)]
            if with_time:
                of_times += [[Sink(name, accumulate=True)] for name in ("ct_t0", "ct_h")]
            self._function(
                "pull_stage",
                "const Parameters& p, Real t, const Real* y, Real t0, const Real* y0, Real h, "
                "Real d, const Real* k, const Real* ct, Real* ct_y, Real* ct_y0, Real& ct_t, "
                "Real& ct_t0, Real& ct_h, Real* ct_p",
                function,
                [of_state, of_start, *of_times, *of_leaves],
                in_stages=True,
            )
        else:
            self._function(
                "pull",
                "const Parameters& p, Real t, const Real* y, const Real* ct, Real* ct_y, "
                "Real& ct_t, Real* ct_p",
                function,
                [of_state, *of_times, *of_leaves],
                in_stages=True,
            )

    def jacobian(self, functions: Sequence[Function]) -> None:
        """The derivatives of the field by the state and by time, if there are any."""
        for function in functions:
            rows = nonzero_entries(function)
            table = ", ".join(f"{{{', '.join(flag(bool(used)) for used in row)}}}" for row in rows)
            with_slope = len(function.outputs) > 1
            masses = self._masses()
            linear = elimination(_pattern(rows, list(masses.values())))
            self._products = linear.products
            order = ", ".join(map(str, linear.order))
            self._members += [
                f"static constexpr bool with_slope = {flag(with_slope)};\n"
                f"static constexpr bool depends[{self._dim}][{self._dim}] = {{{table}}};\n"
                f"{self._print_masses(masses)}"
                f"static constexpr int order[{self._dim}] = {{{order}}};\n"
            ]
            # Entries that are zero whatever the state are never read.
            sinks: list[list[Sink | None]] = [
                [Sink("dfdy", i) if used else None for i, used in enumerate(rows.flat)]
            ]
            if with_slope:
                sinks.append([Sink("dfdt", i) for i in range(self._dim)])
            self._function(
                "jacobian",
                "const Parameters& p, Real t, const Real* y, Real* dfdy, Real* dfdt",
                function,
                sinks,
            )

    def _masses(self) -> dict[str, np.ndarray]:
        """The matrix that multiplies the time derivative, and the regular one in its place.

        None for the identity.
        """
        mass = self._mass_matrix
        if mass is None:
            return {}
        regular = regularised(mass)
        return {"mass": mass} if regular is mass else {"mass": mass, "regular_mass": regular}

    def _print_masses(self, masses: Mapping[str, np.ndarray]) -> str:
        flags = {"with_mass": "mass" in masses, "singular_mass": "regular_mass" in masses}
        lines = [f"static constexpr bool {name} = {flag(on)};\n" for name, on in flags.items()]
        for name, matrix in masses.items():
            rows = [
                f"{{{', '.join(number(float(entry), self._dtype) for entry in row)}}}"
                for row in matrix
            ]
            size = f"[{self._dim}][{self._dim}]"
            lines.append(f"static constexpr Scalar {name}{size} = {{{', '.join(rows)}}};\n")
        return "".join(lines)

    def step_control(self, control: StepControl) -> None:
        """The state of the controller, and its two functions."""
        self._adaptive = True
        entries = [(LANE_TYPES[entry.dtype.name], entry.name) for entry in control.state]
        lines = ["struct ControllerState {"]
        lines += [f"  {kind} {name};" for kind, name in entries]
        lines.append("")
        lines.append(
            "  GS_FN static ControllerState select(Mask m, const ControllerState& a, "
            "const ControllerState& b) {"
        )
        lines.append("    ControllerState out;")
        lines += [f"    out.{name} = gs::select(m, a.{name}, b.{name});" for _, name in entries]
        lines += ["    return out;", "  }", "};"]
        self._members.append("\n".join(lines) + "\n")
        state = [[Sink(f"after.{entry.name}")] for entry in control.state]
        self._function(
            "begin",
            "const Parameters& p, Real direction, Real t0, Real t1, Real dt0, const Real* y, "
            "const Real* f0, Real& t_next, Real& floor, I32& status, ControllerState& after",
            control.begin,
            [
                [Sink("t_next")],
                [Sink("floor")],
                [Sink("status")],
                *_per_output(control.begin, 3, state),
            ],
        )
        self._function(
            "judge",
            "const Parameters& p, Real t0, Real t1, Real floor, Real t, Real t_next, "
            "const Real* y, const Real* y1, const Real* error, const ControllerState& state, "
            "Mask& accepted, Mask& done, Real& t_after, I32& status, ControllerState& after",
            control.judge,
            [
                [Sink("accepted")],
                [Sink("done")],
                [Sink("t_after")],
                [Sink("status")],
                *_per_output(control.judge, 4, state),
            ],
        )

    def _function(
        self,
        name: str,
        signature: str,
        function: Function,
        sinks: Sequence[Sequence[Sink | None]],
        in_stages: bool = False,
    ) -> None:
        length = function.operations
        if in_stages:
            long = sum(value.op in _LONG_OPERATIONS for value in function.walk())
            length += (_LENGTH_OF_LONG - 1) * long
        inlined = length <= _INLINED_OPERATIONS
        # The text doubles: not where every stage has a copy of it.
        in_two_ways = has_quotients(function) and not (inlined and in_stages)
        # Where an adjoint takes powers and the like, those take its time and all its registers: of
        # a system of six components, three numbers would be spilled for nothing.
        crowded = self._job == "adjoint" and self._with_elementary_functions
        body = print_body(
            function,
            argument=lambda name, index: name if index is None else f"{name}[{index}]",
            leaf_entry=self._leaves.entry,
            leaf_array=self._leaves.array,
            sinks=sinks,
            quotients="quotients" if in_two_ways else None,
            join_quotients=not in_two_ways and not crowded,
        )
        joined = joins_quotients(body)
        self._largest = max(self._largest, function.operations)
        self._with_quotients |= in_two_ways or joined
        self._side_by_side |= joined
        kind = "GS_FN" if inlined else "GS_NOINLINE"
        if in_two_ways:
            body = self._in_two_ways(name, signature, body)
        self._members.append(f"{kind} static void {name}({signature}) {{\n{body}}}\n")

    def _in_two_ways(self, name: str, signature: str, body: str) -> str:
        """Adds a function for either way of dividing; the body of the one that chooses."""
        arguments = ", ".join(word.split()[-1].lstrip("*&") for word in signature.split(", "))
        self._members.append(
            "template <class Quotients>\n"
            f"GS_FN static bool {name}_by(Quotients quotients, {signature}) {{\n{body}}}\n"
        )
        return (
            "  if constexpr (gs::kQuickQuotients) {\n"
            f"    if ({name}_by(gs::Quick(), {arguments})) return;\n"
            "  }\n"
            f"  {name}_by(gs::Exact(), {arguments});\n"
        )

    def _print_tableau(self, adaptive: bool) -> str:
        if isinstance(self._integrator, AbstractRosenbrock):
            return print_rosenbrock_tableau(self._integrator.tableau, self._dtype, adaptive)
        return print_tableau(self._integrator.tableau, self._dtype, adaptive)

    def unit(self, flags: dict[str, bool]) -> Unit:
        """The complete text."""
        num_leaves, entries = self._num_leaves, self._wanted_begin[-1]
        rosenbrock = isinstance(self._integrator, AbstractRosenbrock)
        adaptive = self._adaptive and self._integrator.error_order is not None
        begin = ", ".join(map(str, self._wanted_begin))
        members = [
            "using Tableau = ::Tableau;",
            "using Parameters = ::Parameters;",
            f"using Method = gs::{'Rosenbrock' if rosenbrock else 'ExplicitRK'}<Problem>;",
            f"static constexpr int dim = {self._dim}, num_leaves = {num_leaves};",
            f"static constexpr int num_wanted = {self._num_wanted}, num_cotangents = {entries};",
            f"static constexpr int wanted_begin[{len(self._wanted_begin)}] = {{{begin}}};",
            *[f"static constexpr bool {name} = {flag(on)};" for name, on in flags.items()],
        ]
        stages = self._tableau.stages + len(self._tableau.dense.extra_a)
        unrolled = unrolling(stages, self._products)
        text = "\n".join(
            [
                f"// The {self._job} kernel of a system with {self._dim} components. Generated.",
                f"#define GS_REAL_BITS {8 * self._dtype.itemsize}",
                f"#define GS_UNROLLED_ON_CPU {unrolled.on_cpu}",
                f"#define GS_UNROLLED_ON_GPU {unrolled.on_gpu}",
                *([_LESS_OPTIMISED] if self._largest > _LARGE else []),
                '#include "gs/math.h"',
                *(['#include "gs/product.h"'] if self._with_products else []),
                *(['#include "gs/called.h"'] if self._with_calls else []),
                *(['#include "gs/quotients.h"'] if self._with_quotients else []),
                *(['#include "gs/power.h"'] if self._job == "record" else []),
                f'#include "gs/{self._job}.h"',
                *(['#include "gs/rosenbrock.h"'] if rosenbrock else []),
                "",
                "namespace {",
                "",
                "using gs::F32, gs::F64, gs::I32, gs::I64, gs::U32, gs::U64, gs::Mask;",
                "using gs::Real, gs::Scalar;",
                "",
                self._print_tableau(adaptive),
                self._leaves.structure(),
                "struct Problem {",
                _indented("\n".join(members) + "\n\n" + "\n".join(self._members)),
                "};",
                "",
                "}  // namespace",
                "",
            ]
        )
        side_by_side = self._side_by_side or (self._with_calls and self._dtype == np.float64)
        return Unit(
            self._job, text, num_leaves, self._num_wanted, entries, side_by_side, rosenbrock
        )


def _pattern(jacobian: np.ndarray, masses: Sequence[np.ndarray]) -> np.ndarray:
    """Where `M / gamma - h J` can have entries."""
    out = jacobian.copy()
    for mass in masses:
        out |= mass != 0
    return out


def _per_output(
    function: Function, first: int, sinks: Sequence[Sequence[Sink]]
) -> list[list[Sink]]:
    """Sinks of scalars, regrouped as the outputs of a function from `first` on."""
    remaining = [sink for group in sinks for sink in group]
    out = []
    for output in function.outputs[first:]:
        out.append(remaining[: output.size])
        remaining = remaining[output.size :]
    return out


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" if line else "\n" for line in text.splitlines()).rstrip("\n")
