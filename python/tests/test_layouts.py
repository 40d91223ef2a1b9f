"""The classes of layouts are those of the engine."""

from __future__ import annotations

from regrow import _native, layouts


def test_each_layout_of_the_engine_has_a_class() -> None:
    classes = layouts.Layout.__subclasses__()
    assert sorted(each.name for each in classes) == sorted(_native.LAYOUTS)
    assert sorted(each.__name__ for each in classes) == sorted(set(layouts.__all__) - {"Layout"})
