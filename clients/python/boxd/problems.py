# SPDX-License-Identifier: Apache-2.0
#
# Code generated from relay/openapi.json by UPDATE=1 go test ./clients. DO NOT EDIT.

"""The errors that boxd answers, a class for each code."""

from __future__ import annotations

from typing import Dict, Type

from .errors import Problem


class Internal(Problem):
    """The error of the code internal."""


class Invalid(Problem):
    """The error of the code invalid."""


class NotFound(Problem):
    """The error of the code not_found."""


class Conflict(Problem):
    """The error of the code conflict."""


class Denied(Problem):
    """The error of the code denied."""


class Exhausted(Problem):
    """The error of the code exhausted."""


class Unsupported(Problem):
    """The error of the code unsupported."""


class Unauthenticated(Problem):
    """The error of the code unauthenticated."""


class Unavailable(Problem):
    """The error of the code unavailable."""


BY_CODE: Dict[str, Type[Problem]] = {
    "internal": Internal,
    "invalid": Invalid,
    "not_found": NotFound,
    "conflict": Conflict,
    "denied": Denied,
    "exhausted": Exhausted,
    "unsupported": Unsupported,
    "unauthenticated": Unauthenticated,
    "unavailable": Unavailable,
}
