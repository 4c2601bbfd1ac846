"""What a kernel may have read instead of the right columns: each hypothesis is another computation, and says which."""

from __future__ import annotations

import numpy as np
from dsa_cases import case

from equiv.dsa_index import PAIR
from equiv.dsa_index.misreadings import misreadings


def test_every_hypothesis_changes_what_is_read_and_nothing_else() -> None:
    wanted = case(batch=5, rows="packed")
    inputs = PAIR.inputs(wanted)
    found = dict(misreadings(wanted, inputs))
    assert "the key's rows were as far apart as they are wide" in found
    assert "the head weights' rows were the next ones" in found
    assert "norm_b were read from its first element only" in found
    for words, changed in found.items():
        ((name, bits),) = changed.items()
        assert bits.shape == inputs[name].shape, words
        assert bits.dtype == inputs[name].dtype, words
        assert not np.array_equal(bits, inputs[name]), words
        if name == "projected":
            at, width = (2112, 128) if "key" in words else (2240, 32)
            kept = np.ones(2272, dtype=bool)
            kept[at : at + width] = False
            np.testing.assert_array_equal(bits[:, kept], inputs[name][:, kept], words)


def test_rows_that_are_as_far_apart_as_they_are_wide_lie_before_the_right_ones() -> None:
    wanted = case(batch=5, rows="packed")
    inputs = PAIR.inputs(wanted)
    changed = dict(misreadings(wanted, inputs))["the key's rows were as far apart as they are wide"]["projected"]
    np.testing.assert_array_equal(changed[0], inputs["projected"][0])
    np.testing.assert_array_equal(changed[3, 2112:2240], inputs["projected"][3, 2112 - 96 : 2240 - 96])


def test_dense_rows_have_no_pitch_to_ignore() -> None:
    wanted = case(batch=1)
    found = dict(misreadings(wanted, PAIR.inputs(wanted)))
    assert not any("far apart" in words or "the next ones" in words or "the first one" in words for words in found)
    assert "the key's rows began a column late" in found
    assert "the key's rows began a column early" not in found
