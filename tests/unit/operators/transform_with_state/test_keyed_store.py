"""What a key costs: hardly anything in the cyclic garbage collector, which stops all threads."""

from __future__ import annotations

import gc

import pytest

from headgate.operators.transform_with_state.keyed_store import KeyedStore, StateVariable
from headgate.operators.transform_with_state.restored_rows import RestoredRows
from headgate.operators.transform_with_state.state_rows import Kind


def tracked(store: KeyedStore) -> int:
    """Return how many objects of the cells the collector would look at again, after a few times."""
    for _ in range(4):  # what holds untracked objects only is untracked after them
        gc.collect()
    cells = list(store.cells.values())
    held = [each for cell in cells for each in (cell, cell.slots, *cell.slots)]
    return sum(map(gc.is_tracked, held))


@pytest.mark.parametrize(("kind", "for_each_key"), [("value", 0), ("list", 0), ("map", 1)])
def test_the_garbage_collector_looks_at_no_object_of_a_key_but_its_maps(kind: Kind, for_each_key: int) -> None:
    gc.freeze()  # whatever other tests left: the collector looks at the stores only
    variables = (StateVariable(name="a", kind=kind, schema="x"), StateVariable(name="b", kind="value", schema="x"))
    store = KeyedStore(variables)
    for number in range(100):
        store.turn_to(b"key%d" % number, 0)
        if kind == "value":
            store.set_value(0, b"x")
        elif kind == "list":
            store.append(0, [b"x", b"y"])
        else:
            store.put_entry(0, b"k", b"x")
        store.turn_over()
    assert tracked(store) <= 100 * for_each_key

    rows = RestoredRows()
    list(rows.add_in_steps(store.changed_rows().table()))
    restored = KeyedStore(variables, restored=rows)
    restored.fetch(list(store.cells))
    assert tracked(restored) <= 100 * for_each_key
    assert {key: cell.slots for key, cell in restored.cells.items()} == {
        key: cell.slots for key, cell in store.cells.items()
    }


def test_a_list_grows_beyond_the_items_that_are_held_in_a_tuple() -> None:
    store = KeyedStore((StateVariable(name="a", kind="list", schema="x"),))
    store.turn_to(b"key", 0)
    for number in range(50):
        store.append(0, [b"%d" % number])
    assert [data for data, _ in store.slot(0)] == [b"%d" % number for number in range(50)]
    store.changed_rows()
    store.append(0, [b"50"])
    assert len(store.changed_rows()) == 1, "only what is new"
