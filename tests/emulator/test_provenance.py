"""Expressions: equal ones are one object, and moves of bytes leave no trace."""

from __future__ import annotations

from equiv.emulator.provenance import Graph, elements, is_bf16


def test_the_same_operation_on_the_same_operands_is_one_node() -> None:
    graph = Graph()
    a, b = graph.element("x", 0, 4), graph.element("x", 4, 4)
    assert graph.node("add.f32", (a, b)) is graph.node("add.f32", (a, b))
    assert graph.node("add.f32", (a, b)) is not graph.node("add.f32", (b, a))


def test_neighbouring_elements_join_and_come_apart_again() -> None:
    graph = Graph()
    low, high = graph.element("x", 6, 2), graph.element("x", 8, 2)
    both = graph.concat([low, high])
    assert both is graph.element("x", 6, 4)
    assert graph.slice(both, 2, 2) is high
    assert graph.concat([high, low]).op == "concat"


def test_a_bf16_is_the_same_after_widening_and_cutting_its_upper_half() -> None:
    graph = Graph()
    half = graph.element("x", 2, 2)
    wide = graph.concat([graph.const(0, 2), half])
    assert is_bf16(wide)
    assert graph.slice(wide, 2, 2) is half
    assert str(wide) == "bf16(x[2:4])"
    assert not is_bf16(graph.concat([graph.const(1, 2), half]))


def test_bytes_of_a_computed_value_join_to_that_value() -> None:
    graph = Graph()
    value = graph.node("add.f32", (graph.element("x", 0, 4), graph.const(0, 4)))
    assert graph.concat(graph.bytes_of(value)) is value
    assert graph.slice(graph.slice(value, 1, 3), 1, 1) is graph.slice(value, 2, 1)
    assert graph.resized(value, 8).args == (value, graph.const(0, 4))


def test_constants_join_by_their_bits_and_elements_are_found_through_everything() -> None:
    graph = Graph()
    assert graph.concat([graph.const(0x34, 1), graph.const(0x12, 1)]) is graph.const(0x1234, 2)
    node = graph.node("mul.f32", (graph.element("x", 0, 4), graph.node("ex2", (graph.element("y", 8, 4),))))
    assert elements(node) == {("x", 0, 4), ("y", 8, 4)}
