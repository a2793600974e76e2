"""For the reference: msgspec's structs have a constructor, of their fields, as dataclasses have.

Never: import the package: griffe reads its source.
"""

from __future__ import annotations

from typing import Any

import griffe


class Structs(griffe.Extension):
    """What griffe calls for each class that it has read."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give a struct the constructor that msgspec makes for it."""
        if "__init__" in cls.members or not {str(base) for base in cls.bases} & {"Struct", "msgspec.Struct"}:
            return
        kind = griffe.ParameterKind.positional_or_keyword
        fields = [
            griffe.Parameter(field.name, annotation=field.annotation, kind=kind, default=field.value)
            for field in cls.members.values()
            if isinstance(field, griffe.Attribute) and field.annotation is not None and "property" not in field.labels
        ]
        parameters = griffe.Parameters(griffe.Parameter("self", kind=kind), *fields)
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters, returns="None"))
