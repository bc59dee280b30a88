# SPDX-License-Identifier: Apache-2.0

"""Makes the dataclasses of answers of JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from typing import Any, Callable, Dict, List, Tuple, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _converter(hint: Any) -> _Convert:
    """What makes a value of a type. Values that are what they are already stay so."""
    if dataclasses.is_dataclass(hint):
        return functools.partial(decode, cast(Type[Any], hint))
    origin, of = get_origin(hint), get_args(hint)
    if origin is Union and type(None) in of and len(of) == 2:
        return _converter(of[0] if of[1] is type(None) else of[1])
    if origin is list:
        one = _converter(of[0])
        return _same if one is _same else lambda value: [one(v) for v in value] if isinstance(value, list) else value
    if origin is dict:
        one = _converter(of[1])
        return _same if one is _same else lambda value: {k: one(v) for k, v in value.items()} if isinstance(value, dict) else value
    return _same


@functools.lru_cache(maxsize=None)
def _fields(cls: Any) -> List[Tuple[str, str, _Convert]]:
    hints = get_type_hints(cls)
    return [(f.name, f.metadata.get("name", f.name), _converter(hints[f.name])) for f in dataclasses.fields(cls)]


def decode(cls: Type[T], data: Any) -> T:
    """An object of a class. Fields that the class does not have are left out."""
    if not isinstance(data, dict):
        raise ValueError(f"{cls.__name__}: a JSON object is expected, not {type(data).__name__}")
    values: Dict[str, Any] = {}
    for name, wire, convert in _fields(cast(Hashable, cls)):
        value = data.get(wire)
        values[name] = None if value is None else convert(value)
    return cls(**values)
