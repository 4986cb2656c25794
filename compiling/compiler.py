"""Numba's compiler with this project's options.

Importing it takes a quarter of a second, so it is imported only when something must be compiled (`decorators`). All
functions disable reference counting (`_nrt=False`): with it, an allocation inside a kernel would go unnoticed; without
it, an allocation is a compile error. State is passed as records (`pdes.core.jit.reader`).
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

from nadi.compiling import primitives
from nadi.compiling.primitives import ItemsType, RecordType


class _NoEnvironment:
    """A substitute for a code generator where Numba only sets a function's environment."""

    def set_env(self, _name, _environment):
        """Ignore the environment."""


class _Library(JITCodeLibrary):
    """Code of a function. Each function that it calls, directly or indirectly, is linked once.

    Callers come before their callees in the list, because LLVM links only functions that already have a caller.
    """

    def add_linking_library(self, library):
        """Link the code of another function, `library`, and of the functions that it calls, each once."""
        # linked already, with all that it calls
        if library in self._linking_libraries:
            return
        library._ensure_finalized()  # noqa: SLF001 - as Numba does
        added = [library]
        if isinstance(library, _InnerLibrary):
            added += library._linking_libraries  # noqa: SLF001 - own class
        behind = set(added)
        # moved behind all callers
        self._linking_libraries = [other for other in self._linking_libraries if other not in behind] + added

    def _optimize_final_module(self):
        """Optimize this library, whose linked functions nobody else calls.

        So LLVM sees that they never raise, and drops the code that would report an exception and calls Numba's runtime.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                # internal: nobody outside calls it, so LLVM may change its signature or drop it
                function.linkage = "internal"
        super()._optimize_final_module()


class _InnerLibrary(_Library):
    """Code of a function that is only linked into others, so it is never compiled to machine code by itself."""

    codegen = _NoEnvironment()

    def get_pointer_to_function(self, _name):
        """Return 0: the function is never called by itself."""
        return 0

    def _optimize_functions(self, ll_module):
        """Skip optimization, which happens in the callers' libraries."""
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as Numba does

    def finalize(self):
        """Make all functions linkonce_odr, because several callers may link them.

        None but those of the decorator `inline` are inlined, although LLVM would do so with one that has a single call.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
                if b"alwaysinline" not in list(function.attributes):
                    # without it LLVM inlines any function with one caller, and each of these kernels would be one huge
                    # function
                    function.add_function_attribute("noinline")
        self._finalized = True

    def _get_module_for_linking(self):
        """Return the module."""
        return self._final_module


class _KernelCompiler(Compiler):
    """Numba's compiler without negative indices, and with machine code only for functions that Python or C calls.

    Kernels never use negative indices (tests/rules/kernels.py), so this compiler omits the code that maps -1 to
    the last element: 15 % of the speed. It disables LLVM's vectorisers, which find nothing to vectorise here: a fifth
    of the compile time. It disables Numba's timer of LLVM calls, which runs once for every nested compilation: a
    twentieth. It caches the default flags that Numba compares one by one whenever it looks up an operator: a seventh.
    Numba's own functions are restored after each compilation.
    """

    def compile_extra(self, func):
        """Compile the Python function `func` with the options of kernels; return Numba's result of the compilation."""
        originals = arrayobj.fix_integer_index, event.install_timer, TargetConfig.values
        arrayobj.fix_integer_index, event.install_timer, TargetConfig.values = _plain_index, _no_timer, _flags
        vectorised = numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE
        numba.config.LOOP_VECTORIZE = numba.config.SLP_VECTORIZE = 0
        # without wrappers nobody but kernels can call it: no machine code of its own is needed
        flags = self.state.flags
        # only kernels call it
        if flags.no_cpython_wrapper and flags.no_cfunc_wrapper:
            self.state.library = _InnerLibrary(self.state.targetctx.codegen(), func.__qualname__)
        else:
            self.state.library = _Library(self.state.targetctx.codegen(), func.__qualname__)
            # so that the object can be taken from memory and written to the cache (`compiled_c_function`)
            self.state.library.enable_object_caching()
        try:
            return super().compile_extra(func)
        finally:
            arrayobj.fix_integer_index, event.install_timer, TargetConfig.values = originals
            numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE = vectorised


def _plain_index(context, builder, index_type, index, _size):
    """Replace numba.np.arrayobj.fix_integer_index: return the index unchanged."""
    return context.cast(builder, index, index_type, types.intp)


def _no_timer(_kind, _callback):
    """Replace numba.core.event.install_timer: measure nothing."""
    return contextlib.nullcontext()


def _flags(config):
    """Replace numba.core.targetconfig.TargetConfig.values: return all flags by name, with cached defaults."""
    return _default_flags(type(config)) | config._values  # noqa: SLF001 - as Numba does


@functools.cache
def _default_flags(kind):
    """Return the defaults of all flags."""
    return {name: option.default for name, option in kind.options.items()}


_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_rewrites": True,
    "_nrt": False,
    "pipeline_class": _KernelCompiler,
}
_INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# A function inherits forceinline from its caller unless it is set to False.
_DECORATORS = {
    "python": numba.njit(no_cfunc_wrapper=True, **_OPTIONS),
    "c": numba.njit(no_cpython_wrapper=True, **_OPTIONS),
    "inline": numba.njit(forceinline=True, **_OPTIONS, **_INNER),
    "outline": numba.njit(forceinline=False, **_OPTIONS, **_INNER),
}
_PARAMETERS = {"i": types.int64, "a": ItemsType(types.int64)}


def dispatcher(function, use):
    """Return Numba's dispatcher of one Python function.

    use: "python" for a kernel that Python calls with any types, "c" for a kernel that is called as a C function,
    "inline" or "outline" for a function that kernels call.
    """
    return _DECORATORS[use](function)


def compiled_c_function(dispatched, parameters):
    """Compile a function that returns an int64 or None as a C function.

    Returns the address of the C function, its name, and its ELF object; None if the object contains addresses of this
    process, so that no other process can use it.

    Args:
        dispatched: The function's dispatcher for "c".
        parameters: Types of its parameters, as `compiling.machine_code.c_function` takes them.
    """
    arguments = tuple(_PARAMETERS[parameter] for parameter in parameters)
    dispatched.compile(arguments)
    overload = dispatched.overloads[arguments]
    # the caller reads the result from a register as int64: any other type would be misread
    result = types.unliteral(overload.signature.return_type)
    if result not in {types.int64, types.none}:
        raise TypeError(f"{dispatched.py_func.__qualname__} returns {result}, expected int64 or None")
    symbol, library = overload.fndesc.llvm_cfunc_wrapper_name, overload.library
    # dynamic globals are addresses of Python objects, which another process does not have
    code = None if library.has_dynamic_globals else library.serialize_using_object_code()[2][0]
    return library.get_pointer_to_function(symbol), symbol, code


def type_of_primitive(name):
    """Return Numba's type of a primitive.

    Args:
        name: The name of a function of `compiling.primitives`.
    """
    return _type_of(getattr(primitives, name))


def type_of_reader(record):
    """Return Numba's type of a function that takes an address (int64) and returns the record of a class at it."""
    kind = RecordType(record)

    @intrinsic
    def record_at(_typing_context, _address):
        def codegen(_context, builder, _signature, args):
            # a record is represented by the address of its directory
            return builder.inttoptr(args[0], ir.IntType(64).as_pointer())

        return kind(types.int64), codegen

    return _type_of(record_at)


def type_of_row_view(row_class):
    """Return Numba's type of a function that views an array of rows as rows of another class, equal in size.

    Args:
        row_class: Class of the rows that the view has.
    """
    kind = ItemsType(from_dtype(row_class.dtype))

    @intrinsic
    def seen(_typing_context, rows):
        if not isinstance(rows, ItemsType) or rows.dtype.size != kind.dtype.size:
            raise TypeError(f"{rows} as rows of {row_class.__name__}: expected rows of the same size")

        def codegen(_context, _builder, _signature, args):
            return args[0]

        return kind(rows), codegen

    return _type_of(seen)


def _type_of(function):
    """Return the type that Numba infers for a function."""
    context = cpu_target.typing_context
    # intrinsics that were registered after Numba started must be found
    context.refresh()
    return context.resolve_value_type(function)
