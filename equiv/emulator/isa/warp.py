"""Instructions in which lanes of a warp exchange values. The lanes named by the membermask execute them together."""

from __future__ import annotations

from equiv.emulator.isa.table import MEMBERS, Entry, Mods


def _shuffle(mods: Mods) -> str:
    source = {
        "up": "const uint32_t j = l - b; const int valid = (int)j >= (int)limit;",
        "down": "const uint32_t j = l + b; const int valid = j <= limit;",
        "bfly": "const uint32_t j = l ^ b; const int valid = j <= limit;",
        "idx": "const uint32_t j = (l & segment) | (b & ~segment & 31); const int valid = j <= limit;",
    }[mods["mode"]]
    # `limit` is the highest lane that may be read, or for `up` the lowest.
    return (
        "uint32_t from[32], value[32];\n"
        "for (uint32_t l = 0; l < 32; l++) {"
        " const uint32_t b = b_[l] & 31, segment = c_[l] >> 8 & 31, limit = (l & segment) | (c_[l] & 31 & ~segment);"
        f" {source} from[l] = valid ? j & 31 : l; p_ |= (uint32_t)valid << l; }}\n"
        "LANES(l) value[l] = a_[from[l]];\n"
        "LANES(l) d_[l] = HAS(l) ? value[l] : d_[l];"
    )


def _vote(mods: Mods) -> str:
    value = {"all": "(a_ & m) == m", "any": "(a_ & m) != 0", "uni": "(a_ & m) == 0 || (a_ & m) == m"}[mods["mode"]]
    return f"p_ = {value} ? FULL : 0;"


def _reduce(mods: Mods) -> str:
    """A tree over 32 values, an inactive lane standing in with that of an active one; add and xor count it as zero."""
    kind, operation = mods["type"], mods["op"]
    if kind == "f32":
        step = f"eq_{operation}{'_nan' if mods['NaN'] else ''}(x, y)"
        value = "eq_canon(eq_abs(a_[k]))" if mods["abs"] else "eq_canon(a_[k])"
    else:
        step = {
            "add": "x + y",
            "min": "x < y ? x : y",
            "max": "x > y ? x : y",
            "and": "x & y",
            "or": "x | y",
            "xor": "x ^ y",
        }[operation]
        value = "HAS(l) ? a_[l] : 0" if operation in {"add", "xor"} else "a_[k]"
    lane = "int32_t" if kind == "s32" else "uint32_t"
    return (
        f"const int first = __builtin_ctz(m); {lane} r[32];\n"
        f"LANES(l) {{ const int k = HAS(l) ? l : first; (void)k; r[l] = ({lane})({value}); }}\n"
        f"for (int n = 16; n; n >>= 1) for (int i = 0; i < n; i++) {{"
        f" const {lane} x = r[i], y = r[i + n]; r[i] = {step}; }}\n"
        "LANES(l) d_[l] = HAS(l) ? (uint32_t)r[0] : d_[l];"
    )


_MATCH_ANY = (
    "uint32_t same[32] = {0}; LANES(l) for (int k = 0; k < 32; k++) same[l] |= (uint32_t)(a_[k] == a_[l]) << k;"
    " LANES(l) d_[l] = HAS(l) ? same[l] & m : d_[l];"
)
_MATCH_ALL = (
    "const int first = __builtin_ctz(m); uint32_t all = 1; LANES(l) if (HAS(l)) all &= a_[l] == a_[first];"
    " LANES(l) d_[l] = HAS(l) ? (all ? m : 0) : d_[l]; p_ = all ? FULL : 0;"
)

ENTRIES = (
    Entry(
        "shfl sync mode=up|down|bfly|idx type=b32",
        "d|p=b32 a:b32 b:b32 c:b32 mask:b32",
        _shuffle,
        "warp",
        needs_lanes=MEMBERS,
    ),
    Entry("vote sync mode=all|any|uni type=pred", "p=pred a:pred mask:b32", _vote, "warp", needs_lanes=MEMBERS),
    Entry(
        "vote sync ballot type=b32",
        "d=b32 a:pred mask:b32",
        "LANES(l) d_[l] = HAS(l) ? a_ & m : d_[l];",
        "warp",
        needs_lanes=MEMBERS,
    ),
    Entry("match any sync type=b32|b64", "d=b32 a:type mask:b32", _MATCH_ANY, "warp", needs_lanes=MEMBERS),
    Entry("match all sync type=b32|b64", "d|p=b32 a:type mask:b32", _MATCH_ALL, "warp", needs_lanes=MEMBERS),
    Entry("redux sync op=add|min|max type=u32|s32", "d=type a:type mask:b32", _reduce, "warp", needs_lanes=MEMBERS),
    Entry("redux sync op=and|or|xor type=b32", "d=type a:type mask:b32", _reduce, "warp", needs_lanes=MEMBERS),
    Entry(
        "redux sync op=min|max abs? NaN? type=f32",
        "d=type a:type mask:b32",
        _reduce,
        "warp",
        needs_lanes=MEMBERS,
        arch=100,
    ),
    Entry(
        "elect sync",
        "d|p=b32 mask:b32",
        "const int leader = __builtin_ctz(m); LANES(l) d_[l] = HAS(l) ? (uint32_t)leader : d_[l]; p_ = 1u << leader;",
        "warp",
        needs_lanes=MEMBERS,
    ),
    Entry("activemask type=b32", "d=b32", "LANES(l) d_[l] = HAS(l) ? m : d_[l];", "warp"),
)
