"""Numba's compiler with our options.

It is imported when something has to be compiled (`jit`), as it takes a quarter of a second. All switch reference
counting off (`_nrt=False`): with it on, an allocation inside a kernel would go unnoticed; with it off it is a compile
error. State is passed as records (`pdes.core.jit.reader`).
"""

import contextlib
import functools

import numba
from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core import event, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.core.targetconfig import TargetConfig
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype

from compiling import primitives
from compiling.records import ItemsType, RecordType


class _NoEnvironment:
    """Takes the place of a code generator where only a function's environment would be set."""

    def set_env(self, _name, _environment):
        """Nothing to do."""


class _Library(JITCodeLibrary):
    """Code of a function. What it calls is linked in once, with all that that calls in turn.

    Who calls stands before what it calls, since LLVM links only functions that somebody calls already.
    """

    def add_linking_library(self, library):
        if library in self._linking_libraries:
            return
        library._ensure_finalized()  # noqa: SLF001 - as Numba does
        added = [library]
        if isinstance(library, _Ingredient):
            added += library._linking_libraries  # noqa: SLF001 - it is ours
        behind = set(added)
        self._linking_libraries = [other for other in self._linking_libraries if other not in behind] + added


class _Ingredient(_Library):
    """Code of a function that is linked into others and never run by itself, so it is not made machine code."""

    codegen = _NoEnvironment()

    def get_pointer_to_function(self, _name):
        return 0

    def _optimize_functions(self, ll_module):
        """All of it is done where it is used."""
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as Numba does

    def finalize(self):
        """It is linked with what it calls where it is used; there may be several that use it."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalized = True

    def _get_module_for_linking(self):
        return self._final_module


class _PlainIndices(Compiler):
    """Numba's compiler, but an index is used as it stands, and what others link in is made machine code only there.

    Kernels never use negative indices (tests/pdes/test_house_rules.py), so the code that would turn -1 into the last
    element is left out: 15 % of the speed. LLVM's vectorisers, which find nothing here, are off: a fifth of the
    compile time. Numba would time each call of LLVM for the function that is compiled, the one that calls it, the one
    that calls that and so on: a twentieth. It compares all flags of a function one by one wherever it looks up what an
    operator does: a seventh. Only what is compiled in here is affected.
    """

    def compile_extra(self, func):
        usual = arrayobj.fix_integer_index, event.install_timer, TargetConfig.values
        arrayobj.fix_integer_index, event.install_timer, TargetConfig.values = _plain_index, _no_timer, _flags
        vectorised = numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE
        numba.config.LOOP_VECTORIZE = numba.config.SLP_VECTORIZE = 0
        flags = self.state.flags
        if flags.no_cpython_wrapper and flags.no_cfunc_wrapper:
            self.state.library = _Ingredient(self.state.targetctx.codegen(), func.__qualname__)
        else:
            self.state.library = _Library(self.state.targetctx.codegen(), func.__qualname__)
            self.state.library.enable_object_caching()
        try:
            return super().compile_extra(func)
        finally:
            arrayobj.fix_integer_index, event.install_timer, TargetConfig.values = usual
            numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = vectorised


def _plain_index(context, builder, index_type, index, _size):
    """Stands in for numba.np.arrayobj.fix_integer_index."""
    return context.cast(builder, index, index_type, types.intp)


def _no_timer(_kind, _callback):
    """Stands in for numba.core.event.install_timer."""
    return contextlib.nullcontext()


def _flags(config):
    """Stands in for numba.core.targetconfig.TargetConfig.values, and gives the same: all flags by name."""
    return _usual_flags(type(config)) | config._values  # noqa: SLF001 - as Numba does


@functools.cache
def _usual_flags(kind):
    """The flags of which nothing else is said."""
    return {name: option.default for name, option in kind.options.items()}


_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_rewrites": True,
    "_nrt": False,
    "pipeline_class": _PlainIndices,
}
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Where forceinline is not said to be off, a function has it from the function for which it is compiled.
_DECORATORS = {
    "python": numba.njit(no_cfunc_wrapper=True, **_OPTIONS),
    "c": numba.njit(no_cpython_wrapper=True, **_OPTIONS),
    "inline": numba.njit(forceinline=True, **_OPTIONS, **_INNER),
    "outline": numba.njit(forceinline=False, **_OPTIONS, **_INNER),
}
_PARAMETERS = {"i": types.int64, "a": ItemsType(types.int64)}


def dispatcher(function, use):
    """Return Numba's compiler of one function.

    Args:
        function: Python function.
        use: "python" for a kernel that Python calls with any types, "c" for one that is called as a C function,
            "inline" or "outline" for a function that kernels call.
    """
    return _DECORATORS[use](function)


def compiled_c_function(made, parameters):
    """Compile a function as a C function.

    Args:
        made: Dispatcher of the function, made for "c".
        parameters: Types of its parameters, as `compiling.machine_code.c_function` takes them.

    Returns:
        Address of the C function, its name, and its ELF object; None for the object if it holds addresses of this
        process, so that no other process can use it.

    Raises:
        TypeError: The function gives neither an int64 nor nothing.
    """
    signature_of = tuple(_PARAMETERS[parameter] for parameter in parameters)
    made.compile(signature_of)
    found = made.overloads[signature_of]
    result = types.unliteral(found.signature.return_type)
    if result not in {types.int64, types.none}:
        raise TypeError(f"{made.py_func.__qualname__} gives {result}, expected int64 or nothing")
    symbol, library = found.fndesc.llvm_cfunc_wrapper_name, found.library
    code = None if library.has_dynamic_globals else library.serialize_using_object_code()[2][0]
    return library.get_pointer_to_function(symbol), symbol, code


def type_of_primitive(name):
    """Numba's type of one of the primitives."""
    return _type_of(getattr(primitives, name))


def type_of_reader(record):
    """Numba's type of a function from an address to a record."""
    kind = RecordType(record)

    @intrinsic
    def record_at(_typing_context, _address):
        def codegen(_context, builder, _signature, args):
            return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

        return kind(types.int64), codegen

    return _type_of(record_at)


def type_of_seer(row):
    """Numba's type of a function from an array of rows to the same memory as rows of another kind."""
    kind = ItemsType(from_dtype(row.dtype))

    @intrinsic
    def seen(_typing_context, rows):
        if not isinstance(rows, ItemsType) or rows.dtype.size != kind.dtype.size:
            raise TypeError(f"{rows} as rows of {row.__name__}: expected rows as long as those")

        def codegen(_context, _builder, _signature, args):
            return args[0]

        return kind(rows), codegen

    return _type_of(seen)


def _type_of(primitive):
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(primitive)
