"""Calls that do not match a signature raise one of our errors, which shows the right call, and not a bare TypeError.

Missing, misspelt and surplus arguments are refused before the call. Argument types are checked only after a call has
failed for another reason: functions check what they need themselves, and nothing is checked twice.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from anabranch.errors import AnabranchError, InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def called_as(example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function or method with an example call for its errors. The signature does not change."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        call = _Call(function, function.__name__, example)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = call.bound(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except AnabranchError:
                raise
            except Exception as error:
                call.check_types(given, error)
                raise

        return checked

    return decorate


def made_as(example: str) -> Callable[[C], C]:
    """`called_as` for a public class."""

    def decorate(cls: C) -> C:
        named = called_as(example)(cls.__init__)  # type: ignore[misc]
        cls.__init__ = named  # type: ignore[misc]
        return cls

    return decorate


class _Call:
    """How a function is called."""

    def __init__(self, function: Callable[..., Any], name: str, example: str) -> None:
        self._signature = inspect.signature(function)
        self._names = vars(sys.modules[function.__module__])
        self._name = function.__qualname__.split(".")[-2] if name == "__init__" else name
        self._hint = f"write {example}"

    def bound(self, *args: object, **kwargs: object) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgumentError(
                f"{self._name}() does not accept this call: {error}{self._near(str(error))}", hint=self._hint
            ) from None

    def check_types(self, given: inspect.BoundArguments, error: Exception) -> None:
        """Raise an error for the first argument whose type does not match the signature, if there is one."""
        for name, value in given.arguments.items():
            parameter = self._signature.parameters[name]
            wanted = self._type_of(parameter)
            values = [value]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                values = list(value)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values = list(value.values())
            for each in values:
                if not fits(each, wanted):
                    raise InvalidArgumentError(
                        f"{name}={each!r} of {self._name}() must be of type {parameter.annotation}",
                        hint=self._hint,
                    ) from error

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        if not isinstance(parameter.annotation, str):  # `self` has none
            return Any
        try:
            return eval(parameter.annotation, dict(self._names))  # our own source code
        except NameError:  # a name that is imported for type checkers only
            return Any

    def _near(self, error: str) -> str:
        """A suggestion for a misspelt parameter."""
        unknown = re.search(r"unexpected keyword argument '(\w+)'", error)
        near = difflib.get_close_matches(unknown[1], self._signature.parameters, n=1) if unknown else []
        return f"; did you mean {near[0]!r}?" if near else ""


def fits(value: object, wanted: Any) -> bool:
    """Whether a value matches an annotation. Annotations that cannot be checked match everything."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return isinstance(value, str | int) and value in arguments
    if wanted is None:
        return value is None
    if wanted in (int, float):  # to Python True is an int
        return isinstance(value, int | wanted) and not isinstance(value, bool)
    if origin is tuple and Ellipsis not in arguments:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin in (Sequence, list, tuple) and not isinstance(value, str):
        return isinstance(value, origin) and all(fits(each, arguments[0]) for each in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(each, arguments[1]) for each in value.values())
    kind = wanted if origin is None else origin
    return isinstance(value, kind) if isinstance(kind, type) and kind is not Any else True
