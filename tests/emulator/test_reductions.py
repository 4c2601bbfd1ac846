"""Reductions found in traced kernels: their terms and trees, and that a found order executes to the kernel's bits."""

from __future__ import annotations

import numpy as np
import pytest
from traced import trace

from equiv.emulator.reductions import Finder, Reduction, single
from equiv.errors import DeviceError
from equiv.rounding.orders import Order, butterfly, chain, leaves

LOAD = (
    "mov.u32 %r1, %tid.x; ld.param.b64 %rd1, [x]; ld.param.b64 %rd2, [y]; mad.wide.u32 %rd3, %r1, 4, %rd1;"
    " mad.wide.u32 %rd4, %r1, 4, %rd2; ld.global.f32 %f1, [%rd3];"
)
STORE = "st.global.f32 [%rd4], %f9;"
X = np.random.default_rng(3).standard_normal(32).astype(np.float32).view(np.uint32)


def _butterfly(combine: str) -> str:
    steps = [
        f"mov.b32 %r2, %f9; shfl.sync.bfly.b32 %r3, %r2, {stride}, 31, 0xffffffff; mov.b32 %f8, %r3; {combine}"
        for stride in (16, 8, 4, 2, 1)
    ]
    return "mov.f32 %f9, %f1;" + " ".join(steps)


def _found(body: str, x: np.ndarray = X) -> tuple[list[Reduction], np.ndarray]:
    tracer, left = trace(LOAD + body + STORE, {"x": x, "y": np.zeros(32, np.uint32)})
    return Finder(tracer.graph).all(tracer.outputs), left["y"].view(np.uint32)


def test_a_shuffle_butterfly_is_found_and_executes_to_the_kernels_bits() -> None:
    (one,), got = _found(_butterfly("add.f32 %f9, %f9, %f8;"))
    assert (one.form, len(one.terms), one.buffers, one.start) == ("values", 32, ("x",), ("x", 0, 4))
    assert one.order.digest == Order.of(32, butterfly(leaves(range(32)), (16, 8, 4, 2, 1))[0]).digest
    assert (got == one.order.sum(X)).all()


def test_a_loop_with_fused_squares_is_a_chain_after_an_exact_start() -> None:
    body = (
        "mov.f32 %f9, 0f00000000; mov.u32 %r5, 0; mov.b64 %rd5, %rd1;"
        " L: ld.global.f32 %f2, [%rd5]; fma.rn.f32 %f9, %f2, %f2, %f9; add.u64 %rd5, %rd5, 4; add.u32 %r5, %r5, 1;"
        " setp.lt.u32 %p1, %r5, 7; @%p1 bra L;"
    )
    (one,), got = _found(body)
    assert (one.form, one.order.levels[one.order.roots[0]]) == ("squares", 7)
    assert one.order.nodes[0] == ("const", 0)
    assert (got == one.order.dot(X[:7], X[:7])).all()


def test_lanes_with_different_bits_are_different_results_of_one_reduction() -> None:
    squares = "mul.f32 %f9, %f1, %f1;"
    first = (
        "mov.b32 %r2, %f9; shfl.sync.bfly.b32 %r3, %r2, 16, 31, 0xffffffff; mov.b32 %f8, %r3;"
        " fma.rn.f32 %f9, %f1, %f1, %f8;"
    )
    rest = _butterfly("add.f32 %f9, %f9, %f8;").removeprefix("mov.f32 %f9, %f1;").split("add.f32 %f9, %f9, %f8;", 1)[1]
    results = set()
    for seed in range(6):
        x = np.random.default_rng(seed).standard_normal(32).astype(np.float32).view(np.uint32)
        (one,), got = _found(squares + first + rest, x)
        assert (one.form, len(one.roots)) == ("squares", 2)
        assert set(got.tolist()) == set(one.order.dot(x, x).tolist())
        results.add(len(set(got.tolist())))
    assert results == {1, 2}


def test_a_mean_is_not_looked_into_and_an_epsilon_does_not_join_the_sum() -> None:
    mean = _butterfly("add.f32 %f9, %f9, %f8;") + "fma.rn.f32 %f1, %f9, 0fBD000000, %f1; mul.f32 %f1, %f1, %f1;"
    both = mean + _butterfly("add.f32 %f9, %f9, %f8;") + "fma.rn.f32 %f9, %f9, 0f3D000000, 0f358637BD;"
    found, _ = _found(both)
    assert [(one.form, len(one.terms)) for one in found] == [("values", 32), ("squares", 32)]
    assert all(one.terms[5] == (("x", 20, 4),) for one in found)


def test_what_a_term_reads_besides_does_not_hide_it_though_the_mean_of_all_reads_it_too() -> None:
    """Each value is halved, which the mean of all values reads too; the halves are still told apart."""
    mean = "mul.f32 %f1, %f1, 0f3F000000;" + _butterfly("add.f32 %f9, %f9, %f8;")
    found, _ = _found(mean + "sub.f32 %f1, %f1, %f9;" + _butterfly("add.f32 %f9, %f9, %f8;"))
    assert [(one.form, len(one.terms), one.terms[7]) for one in found] == [
        ("products", 32, (("x", 28, 4),)),
        ("values", 32, (("x", 28, 4),)),
    ]


def test_neighbours_that_a_term_reads_are_one_element() -> None:
    wide = (
        "mad.wide.u32 %rd3, %r1, 8, %rd1; ld.global.v2.f32 {%f1, %f2}, [%rd3]; mul.f32 %f2, %f2, %f2;"
        " sub.f32 %f1, %f1, %f2;"
    )
    (one,), _ = _found(wide + _butterfly("add.f32 %f9, %f9, %f8;"), np.resize(X, 64))
    assert one.terms[3] == (("x", 24, 8),)


def test_a_bias_among_the_terms_is_no_reduction() -> None:
    found, _ = _found(
        "ld.global.f32 %f2, [%rd1]; mul.f32 %f2, %f2, %f2; ld.global.f32 %f3, [%rd1+4]; add.f32 %f2, %f2, %f3;"
        " ld.global.f32 %f3, [%rd1+8]; add.f32 %f9, %f2, %f3;"
    )
    assert not found


def test_one_wanted_reduction_must_be_there_and_have_one_order() -> None:
    (one,), _ = _found(_butterfly("add.f32 %f9, %f9, %f8;"))
    other = Reduction(one.form, one.terms, one.roots, one.example, Order.of(32, chain(leaves(range(32)))))
    assert single([one, one], "a sum of x") is one
    with pytest.raises(DeviceError, match="no traced reduction is a sum of x"):
        single([], "a sum of x")
    with pytest.raises(DeviceError, match="2 traced reductions are a sum of x, in 2 orders"):
        single([one, other], "a sum of x")
