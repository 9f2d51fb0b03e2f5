"""From the intermediate representation to C++ statements.

The text is the same for CUDA threads and for packs of lanes: it uses only the lane types of
`csrc/gs/lanes.h` and the functions of `csrc/gs/math.h`. Branches run if any lane wants them, and
each lane selects its own results.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._calls import called_functions, joined
from ._ir import Block, Function, Loop, Op, Product, Table, Value
from ._order import keep_few_alive
from ._passes import remove_dead_code
from ._quotients import changing_quotients, is_quotient, joined_quotients, quotients_together
from ._stores import Sink, Sum, only_added, stores_of

_TYPES = {
    np.dtype(np.bool_): "Mask",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.uint32): "U32",
    np.dtype(np.uint64): "U64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
}

_SCALARS = {
    np.dtype(np.bool_): "bool",
    np.dtype(np.int32): "int32_t",
    np.dtype(np.int64): "int64_t",
    np.dtype(np.uint32): "uint32_t",
    np.dtype(np.uint64): "uint64_t",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
}

_SUFFIXES = {
    np.dtype(np.int32): "",
    np.dtype(np.int64): "ll",
    np.dtype(np.uint32): "u",
    np.dtype(np.uint64): "ull",
}

_INFIX = {
    Op.ADD: "+",
    Op.SUB: "-",
    Op.MUL: "*",
    Op.DIV: "/",
    Op.EQ: "==",
    Op.NE: "!=",
    Op.LT: "<",
    Op.LE: "<=",
    Op.GT: ">",
    Op.GE: ">=",
    Op.AND: "&",
    Op.OR: "|",
    Op.XOR: "^",
}

# Functions whose C++ name is not that of the operation.
_FUNCTIONS = {
    Op.DIV: "divide",
    Op.REM: "remainder",
    Op.EQ_TOTAL: "total_equal",
    Op.LT_TOTAL: "total_less",
    Op.LE_TOTAL: "total_less_equal",
}

# The classes of `csrc/gs/quotients.h`.
_JOINED = {Op.DIV: "Quotients", Op.SQRT: "Roots"}


def print_body(
    function: Function,
    *,
    argument: Callable[[str, int | None], str],
    leaf_entry: Callable[[int, int], str],
    leaf_array: Callable[[int], str],
    sinks: Sequence[Sequence[Sink | None]],
    mask: str | None = None,
    quotients: str | None = None,
    join_quotients: bool = False,
) -> str:
    """The statements that compute a function, indented by two spaces.

    **Arguments:**

    - `function`: as `lower` returns it.
    - `argument`: the text of an argument, given its name and index.
    - `leaf_entry`: the text of an entry of a leaf, given the leaf and the flat entry.
    - `leaf_array`: the text of a leaf that is read at a computed place.
    - `sinks`: for each output, one sink per entry in C order; without a sink (`None`) the entry is
        not computed. The sinks are assigned after everything is computed, in order.
    - `mask`: the text of a flag: loops need not finish in lanes where it is not set.
    - `quotients`: the text of one of the objects of `csrc/gs/quotients.h`, which then computes
        quotients and square roots of doubles. The statements are those of a function that returns
        false, before anything is assigned, if that object has failed, and true otherwise.
    - `join_quotients`: whether quotients that do not need each other are computed together, as
        `csrc/gs/quotients.h` does. Not with `quotients`, which have no branches to share.
    """
    wanted: list[tuple[Value, Sink]] = []
    for output, targets in zip(function.outputs, sinks, strict=True):
        pairs = zip(output.flat, targets, strict=True)
        wanted.extend((value, sink) for value, sink in pairs if sink is not None)
    entries = np.empty(len(wanted), dtype=object)
    entries[:] = [value for value, _ in wanted]
    function = remove_dead_code(Function(function.inputs, (entries,), function.block))
    called = called_functions(function)
    function = keep_few_alive(function, called)
    together = changing_quotients(function) if join_quotients else frozenset()
    function = quotients_together(function, together, called)
    printer = _Printer(argument, leaf_entry, leaf_array, mask, quotients)
    stores = stores_of(list(zip(function.outputs[0], (sink for _, sink in wanted), strict=True)))
    printer.skipped = only_added(function, stores)
    printer.called = called
    printer.together = together
    printer.block(function.block)
    if quotients is not None:
        printer.leave_if_failed()
    for store in stores:
        printer.store(*store)
    if quotients is not None:
        printer.succeed()
    return "".join(f"{line}\n" for line in (*printer.tables, *printer.lines))


def joins_quotients(body: str) -> bool:
    """Whether a printed function computes quotients or roots together."""
    return any(f"gs::{kind}<" in body for kind in _JOINED.values())


class _Printer:
    def __init__(
        self,
        argument: Callable[[str, int | None], str],
        leaf_entry: Callable[[int, int], str],
        leaf_array: Callable[[int], str],
        mask: str | None,
        quotients: str | None,
    ) -> None:
        self.lines: list[str] = []
        self.tables: list[str] = []
        self.skipped: set[Value] = set()
        self.called: frozenset[Op] = frozenset()
        self.together: frozenset[Value] = frozenset()
        self._argument = argument
        self._leaf_entry = leaf_entry
        self._leaf_array = leaf_array
        self._mask = mask
        self._quotients = quotients
        self._names: dict[Value, str] = {}
        self._tables: dict[Table, str] = {}
        self._operands: dict[Value, tuple[str, str]] = {}
        self._count = 0
        self._indent = "  "

    # ---- Statements -----------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Prints the operations of a block."""
        printed: set[Value] = set()
        for position, value in enumerate(block.values):
            if value in printed:
                continue
            calls = joined(block.values, position, self.called)
            quotients = joined_quotients(block.values, position, self.together)
            printed.update(calls, quotients)
            if calls:
                self._calls(calls)
            elif quotients:
                self._joined_quotients(quotients)
            elif value.op is Op.BRANCHES:
                self._branches(value, self._results(block, position))
            elif value.op is Op.LOOP:
                self._loop(value, self._results(block, position))
            elif value.op is Op.PRODUCT:
                self._product(value)
            elif value.op is Op.RESULT:
                if value.args[0].op is Op.PRODUCT and value.args[0] not in self.skipped:
                    self._names[value] = f"{self._names[value.args[0]]}[{value.data}]"
            else:
                text = self._expression(value)
                self._line(f"{self._type(value.dtype)} {self._name(value)} = {text};")

    def leave_if_failed(self) -> None:
        """Prints the end of a function whose quotients may be wrong."""
        self._line(f"if ({self._quotients}.failed) return false;")

    def succeed(self) -> None:
        """Prints the end of a function whose quotients are right."""
        self._line("return true;")

    def store(self, value: Value | Sum, sink: Sink) -> None:
        """Prints the assignment of an entry of an output, or of all that a product is added to."""
        if isinstance(value, Sum):
            left, right = self._operands[value.owner]
            if value.product is not value.owner.data:
                left, right = right, left
            self._multiply("add_product", value.owner.dtype, value.product, (left, right), sink)
        elif not sink.accumulate:
            self._line(f"{sink.target} = {self._use(value)};")
        elif not (value.is_constant and value.data == 0):
            self._line(f"{sink.target} = {sink.target} + {self._use(value)};")

    def _calls(self, values: Sequence[Value]) -> None:
        args = ", ".join(self._use(value.args[0]) for value in values)
        names = ", ".join(self._name(value) for value in values)
        self._line(f"const auto [{names}] = gs::called::{_function(values[0].op)}({args});")

    def _joined_quotients(self, values: Sequence[Value]) -> None:
        operands = zip(*(value.args for value in values), strict=True)
        arrays = ", ".join(f"{{{', '.join(map(self._use, same))}}}" for same in operands)
        name = self._new_name()
        self._line(f"const gs::{_JOINED[values[0].op]}<{len(values)}> {name}({arrays});")
        self._names.update({value: f"{name}[{i}]" for i, value in enumerate(values)})

    def _product(self, value: Value) -> None:
        product: Product = value.data
        args = iter(value.args)
        operands = []
        for matrix, rows in ((product.left, product.rows), (product.right, product.columns)):
            if matrix is not None:
                start, (row, column) = matrix.start, matrix.strides
                array = self._leaf_array(matrix.leaf)
                operands.append(f"gs::in_leaf<{start}, {row}, {column}>({array})")
                continue
            size, name = rows * product.inner, self._new_name()
            entries = ", ".join(self._use(next(args)) for _ in range(size))
            self._line(f"const {_TYPES[value.dtype]} {name}[{size}] = {{{entries}}};")
            operands.append(f"gs::computed<{product.inner}>({name})")
        self._operands[value] = (operands[0], operands[1])
        if value in self.skipped:
            return
        name = self._name(value)
        self._line(f"{_TYPES[value.dtype]} {name}[{product.size}];")
        self._multiply("product", value.dtype, product, self._operands[value], Sink(name))

    def _multiply(
        self,
        function: str,
        dtype: np.dtype,
        product: Product,
        operands: tuple[str, str],
        sink: Sink,
    ) -> None:
        sizes = f"{product.rows}, {product.columns}, {product.inner}, {_TYPES[dtype]}"
        out = sink.array if sink.index is None else f"&{sink.target}"
        self._line(f"gs::{function}<{sizes}>({', '.join(operands)}, {out});")

    @staticmethod
    def _results(block: Block, position: int) -> list[Value]:
        # The builder puts the results right behind, in order.
        owner = block.values[position]
        results = []
        for value in block.values[position + 1 :]:
            if value.op is not Op.RESULT or value.args[0] is not owner:
                break
            results.append(value)
        return results

    def _branches(self, value: Value, results: Sequence[Value]) -> None:
        for result in results:
            self._line(f"{_TYPES[result.dtype]} {self._name(result)}{{}};")
        outer = self._mask
        for flag, block in zip(value.args, value.data, strict=True):
            chosen = self._use(flag)
            if outer is not None:
                narrowed = self._new_name()
                self._line(f"{self._type(np.dtype(np.bool_))} {narrowed} = {chosen} & {outer};")
                chosen = narrowed
            self._line(f"if (gs::any({chosen})) {{")
            self._mask = chosen
            self._enter()
            self.block(block)
            self._assign(chosen, results, block.outputs)
            self._leave()
            self._line("}")
        self._mask = outer

    def _loop(self, value: Value, results: Sequence[Value]) -> None:
        loop: Loop = value.data
        for carry, initial in zip(loop.carries, value.args, strict=True):
            self._line(f"{_TYPES[carry.dtype]} {self._name(carry)} = {self._use(initial)};")
        for result in results:
            self._names[result] = self._names[loop.carries[result.data]]
        outer = self._mask
        active = self._new_name()
        self._line(f"Mask {active} = {'Mask(true)' if outer is None else outer};")
        self._line("for (;;) {")
        self._mask = active
        self._enter()
        self.block(loop.condition)
        self._line(f"{active} = {active} & {self._use(loop.condition.outputs[0])};")
        self._line(f"if (!gs::any({active})) break;")
        self.block(loop.body)
        # The carries change together: one that another takes over is kept first.
        outputs = []
        for carry, output in zip(loop.carries, loop.body.outputs, strict=True):
            if output in loop.carries and output is not carry:
                copy = self._new_name()
                self._line(f"{self._type(output.dtype)} {copy} = {self._use(output)};")
                outputs.append(copy)
            else:
                outputs.append(self._use(output))
        for carry, text in zip(loop.carries, outputs, strict=True):
            name = self._names[carry]
            if text != name:
                self._line(f"{name} = gs::select({active}, {text}, {name});")
        self._leave()
        self._line("}")
        self._mask = outer

    def _assign(self, flag: str, targets: Sequence[Value], values: Sequence[Value]) -> None:
        for target, value in zip(targets, values, strict=True):
            name = self._names[target]
            self._line(f"{name} = gs::select({flag}, {self._use(value)}, {name});")

    def _type(self, dtype: np.dtype) -> str:
        """The type of a value that does not change.

        In a template, NVRTC asks of every integer and flag that is declared `const` whether it is
        known, then of those that it is computed from, each time anew: a binary search in a table of
        81 numbers takes minutes. A function with `quotients` is a template.
        """
        asked = self._quotients is not None and dtype.kind != "f"
        return _TYPES[dtype] if asked else f"const {_TYPES[dtype]}"

    def _line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    def _enter(self) -> None:
        self._indent += "  "

    def _leave(self) -> None:
        self._indent = self._indent[:-2]

    def _table(self, table: Table) -> str:
        name = self._tables.get(table)
        if name is None:
            name = self._tables[table] = f"table{len(self._tables)}"
            kind = _SCALARS[table.numbers.dtype]
            numbers = ", ".join(_digits(number) for number in table.numbers)
            self.tables.append(f"  static const {kind} {name}[] = {{{numbers}}};")
        return name

    # ---- Expressions ----------------------------------------------------------------------------

    def _new_name(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _name(self, value: Value) -> str:
        name = self._names[value] = self._new_name()
        return name

    def _use(self, value: Value) -> str:
        name = self._names.get(value)
        if name is not None:
            return name
        if value.op is Op.CONSTANT:
            return literal(value.data)
        if value.op is Op.ARGUMENT:
            return self._argument(*value.data)
        assert value.op is Op.ENTRY, value
        return self._leaf_entry(*value.data)

    def _expression(self, value: Value) -> str:
        args = [self._use(arg) for arg in value.args]
        op, kind = value.op, value.args[0].dtype.kind
        if self._quotients is not None and is_quotient(value):
            return f"{self._quotients}.{_function(op)}({', '.join(args)})"
        if op in _INFIX and not (op is Op.DIV and kind != "f"):
            return f"{args[0]} {_INFIX[op]} {args[1]}"
        text = self._special(value, args)
        if text is not None:
            return text
        name = _function(op)
        if op in self.called:
            name = f"called::{name}"
        return f"gs::{name}({', '.join(args)})"

    def _special(self, value: Value, args: Sequence[str]) -> str | None:
        to = _TYPES[value.dtype]
        kind = value.args[0].dtype.kind
        match value.op:
            case Op.NEG:
                return f"-{args[0]}"
            case Op.NOT:
                return f"{'!' if kind == 'b' else '~'}{args[0]}"
            case Op.FMS:
                return f"gs::fma({args[0]}, {args[1]}, -{args[2]})"
            case Op.FNMA:
                return f"gs::fma(-{args[0]}, {args[1]}, {args[2]})"
            case Op.CONVERT:
                # A conversion in C++ leaves numbers out of range undefined.
                saturates = kind == "f" and value.dtype.kind != "f"
                return f"gs::{'truncate' if saturates else 'convert'}<{to}>({args[0]})"
            case Op.BITCAST:
                return f"gs::bit_cast<{to}>({args[0]})"
            case Op.REDUCE_PRECISION:
                exponent, mantissa = value.data
                return f"gs::reduce_precision<{exponent}, {mantissa}>({args[0]})"
            case Op.INVERSE_ROOT:
                return f"gs::inverse_root<{value.data}>({args[0]})"
            case Op.LOOKUP:
                return f"gs::lookup<{to}>({self._table(value.data)}, {args[0]})"
            case Op.LOAD:
                return f"gs::load({self._leaf_array(value.data)}, {args[0]})"
        return None


def _function(op: Op) -> str:
    return _FUNCTIONS.get(op, op.name.lower())


def literal(number: Any) -> str:
    """A number of a lane type, without loss."""
    name = _TYPES[number.dtype]
    if number.dtype.kind == "f" and not np.isfinite(number):
        if np.isnan(number):
            return f"gs::quiet_nan<{name}>()"
        return f"{'-' if number < 0 else ''}gs::infinity<{name}>()"
    return f"{name}({_digits(number)})"


def _digits(number: Any) -> str:
    """A number of a scalar type, without loss."""
    kind = number.dtype.kind
    if kind == "b":
        return "true" if number else "false"
    if kind in "iu":
        digits, suffix = int(number), _SUFFIXES[number.dtype]
        if digits == np.iinfo(number.dtype).min and kind == "i":
            # The digits of the smallest integer are no literal without their sign.
            return f"{digits + 1}{suffix} - 1"
        return f"{digits}{suffix}"
    suffix = "f" if number.dtype.itemsize == 4 else ""
    # The shortest decimals that read back as the same number, in its own precision.
    return repr(float(np.format_float_scientific(number, unique=True, trim="-"))) + suffix
