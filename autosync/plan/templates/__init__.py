"""Templates: the steps of each synchroniser in a plan, one file for each kind.

A synchroniser names the function that makes its template. The function is imported when the first message of its kind
is lowered.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

from autosync.plan.steps import Site, Template
from autosync.strategy.codecs import Codec
from autosync.strategy.synchronisers.base import Synchroniser

TemplateFunction: TypeAlias = Callable[[Site, Any, Codec | None], Template]


def template_of(site: Site, synchroniser: Synchroniser, codec: Codec | None) -> Template:
    """Return the template of a canonical synchroniser with a codec."""
    return _template_function(synchroniser.template)(site, synchroniser, codec)


@functools.cache
def _template_function(place: str) -> TemplateFunction:
    module, _, attribute = place.partition(":")
    function: TemplateFunction = getattr(importlib.import_module(module), attribute)
    return function
