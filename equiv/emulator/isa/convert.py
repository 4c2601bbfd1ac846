"""`cvt` between integers, f32, f16 and bf16, `cvt.pack`, and `mov` with its packing forms.

Conversions of f64 are in `double`, those of the narrow formats in `narrow`. Source: `spec/numerics.md` section 4.
"""

from __future__ import annotations

from equiv.emulator.isa.double import FORMATS, mode
from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods, c_type

_INTS = "u8|s8|u16|s16|u32|s32|u64|s64"
_BYTES, _WORDS = "u8|s8", "u16|s16|u32|s32|u64|s64"
_ROUNDINGS = "rn|rz|rm|rp"
_INTEGRAL = "rni|rzi|rmi|rpi"
_WIDEN = {"f32": "", "f16": "eq_f16_to_f32", "bf16": "eq_bf16_to_f32"}


def _integer(mods: Mods) -> str:
    return _clamp("d", f"({c_type(mods['atype'])})a", mods["dtype"][0] == "s", TYPE_BITS[mods["dtype"]])


def _saturating() -> tuple[Entry, ...]:
    """`.sat` exists where a value of the source can lie outside the target."""

    def holds(target: str, source: str) -> bool:
        room = TYPE_BITS[target] - (target[0] == "s") >= TYPE_BITS[source] - (source[0] == "s")
        return room and not (target[0] == "u" and source[0] == "s")

    kinds = _INTS.split("|")
    sources = {target: "|".join(one for one in kinds if not holds(target, one)) for target in kinds}
    return tuple(
        Entry(f"cvt sat dtype={target} atype={others}", "d=dtype~ a:atype~", _integer)
        for target, others in sources.items()
    )


def _clamp(result: str, value: str, signed: bool, bits: int) -> str:  # noqa: FBT001
    # 128 bits hold every value of every source type, so that the clamp is one comparison of exact numbers.
    one = "(__int128)1"
    low, high = (f"-({one} << {bits - 1})", f"({one} << {bits - 1}) - 1") if signed else ("0", f"({one} << {bits}) - 1")
    return (
        f"{{ const __int128 x = {value}, low = {low}, high = {high};"
        f" {result} = ({'' if signed else 'u'}int64_t)(x < low ? low : x > high ? high : x); }}"
    )


def _float_to_integer(mods: Mods) -> str:
    flush = "_ftz" if mods.get("ftz") else ""
    value = f"eq_{mods['rnd']}{flush}({_WIDEN[mods['atype']]}(a))"
    return f"d = clamp_{mods['dtype'][0]}({value}, {TYPE_BITS[mods['dtype']]});"


def _saturated(mods: Mods, value: str) -> str:
    if not mods.get("sat"):
        return f"d = {value};"
    return f"d = {'eq_sat' if mods['dtype'] == 'f32' else 'f16_sat'}((uint32_t){value});"


def _integer_to_float(mods: Mods) -> str:
    fraction, emin, bits = FORMATS[mods["dtype"]]
    if mods["dtype"] == "f32" and TYPE_BITS[mods["atype"]] < 64:
        return _saturated(mods, f"eq_round_{mods['rnd']}(exact_integer((double)a))")
    kind = "signed" if mods["atype"][0] == "s" else "unsigned"
    return _saturated(mods, f"eq_exact_code(eq_exact_{kind}(a), {mode(mods)}, {fraction}, {emin}, {bits})")


def _float_to_float(mods: Mods) -> str:
    value = "eq_ftz(a)" if mods["ftz"] else "a"
    if mods.get("rnd"):
        value = f"eq_{mods['rnd']}({value})"
    elif mods["ftz"]:
        value = f"eq_canon({value})"
    return _saturated(mods, value)


def _half_to_half(mods: Mods) -> str:
    """An integral rounding, or none, within one format; a NaN becomes canonical."""
    kind = mods["dtype"]
    if not mods.get("rnd"):
        return _saturated(mods, f"{kind}_canon(a)")
    return _saturated(mods, f"eq_cvt_{kind}_rn(eq_{mods['rnd']}({_WIDEN[kind]}(a)))")


def _narrow(mods: Mods, value: str) -> str:
    """f32, or a half, to one f16 or bf16."""
    kind, rounding = mods["dtype"].removesuffix("x2"), mods["rnd"]
    wide = f"{_WIDEN[mods['atype']]}({value})"
    if mods.get("satfinite"):
        wide = f"clamp_finite({wide}, {'0x477fe000u' if kind == 'f16' else '0x7f7f0000u'})"
    if rounding == "rn" or (rounding == "rz" and kind == "bf16"):
        code = f"eq_cvt_{kind}_{rounding}({wide})"
    else:
        fraction, emin, bits = FORMATS[kind]
        code = f"(uint32_t)eq_exact_code(exact_integer(eq_float({wide})), {mode(mods)}, {fraction}, {emin}, {bits})"
    code = f"f16_sat({code})" if mods.get("sat") else code
    return f"half_relu({code})" if mods.get("relu") else code


def _narrow_one(mods: Mods) -> str:
    return f"d = {_narrow(mods, 'a')};"


def _narrow_two(mods: Mods) -> str:
    return f"d = {_narrow(mods, 'a')} << 16 | {_narrow(mods, 'b')};"


def _tf32(mods: Mods) -> str:
    value = f"eq_cvt_tf32_{mods['rnd']}({'relu_f32(a)' if mods.get('relu') else 'a'})"
    return f"d = eq_tf32_finite({value});" if mods.get("satfinite") else f"d = {value};"


def _pack_saturated(mods: Mods) -> str:
    """Both sources clamped, the first above the second, above them what c has in its low bits."""
    signed, bits = mods["dtype"][0] == "s", int(mods["dtype"][1:])
    mask = (1 << bits) - 1
    rest = f" | c << {2 * bits}" if bits < 16 else ""
    upper, lower = (_clamp(name, f"(int32_t){value}", signed, bits) for name, value in (("upper", "a"), ("lower", "b")))
    packed = f"(uint32_t)((upper & {mask}) << {bits} | (lower & {mask})){rest}"
    return f"{{ uint64_t upper, lower; {upper} {lower} d = {packed}; }}"


def _pack(count: int, bits: int) -> str:
    wide = f"uint{count * bits}_t"
    return "d = " + " | ".join(f"({wide})a{i} << {bits * i}" for i in range(count)) + ";"


def _unpack(count: int, bits: int) -> str:
    return " ".join(f"d{i} = (uint{bits}_t)(a >> {bits * i});" for i in range(count))


def _to_halves() -> tuple[Entry, ...]:
    entries = [
        Entry(
            "cvt rnd=rn|rz|rm|rp ftz? sat? dtype=f16 atype=f32",
            "d=f16 a:f32",
            _narrow_one,
            hints=("ftz",),
            note="`.ftz` does not flush here (measured)",
        ),
        Entry("cvt rnd=rn|rz|rm|rp dtype=bf16 atype=f32", "d=bf16 a:f32", _narrow_one),
        Entry("cvt rnd=rn|rz|rm|rp dtype=bf16 atype=f16", "d=bf16 a:f16", _narrow_one),
        Entry("cvt rnd=rn|rz|rm|rp dtype=f16 atype=bf16", "d=f16 a:bf16", _narrow_one),
        Entry("cvt rnd=rn|rz dtype=f16x2|bf16x2 atype=f32", "d=b32 a:f32 b:f32", _narrow_two),
    ]
    for more in ("relu satfinite?", "satfinite relu?"):
        entries += [
            Entry(f"cvt rnd=rn|rz {more} dtype=f16|bf16 atype=f32", "d=dtype a:f32", _narrow_one),
            Entry(f"cvt rnd=rn|rz {more} dtype=f16x2|bf16x2 atype=f32", "d=b32 a:f32 b:f32", _narrow_two),
        ]
    return tuple(entries)


_PACKED = ((2, 8), (2, 16), (4, 8), (2, 32), (4, 16))

ENTRIES = (
    Entry(f"cvt dtype={_INTS} atype={_INTS}", "d=dtype~ a:atype~", "d = a;"),
    *_saturating(),
    Entry(
        f"cvt rnd={_INTEGRAL} ftz? sat? dtype={_INTS} atype=f32",
        "d=dtype~ a:f32",
        _float_to_integer,
        note="always saturates; NaN gives 0, in 64 bits the top bit alone",
    ),
    Entry(f"cvt rnd={_INTEGRAL} sat? dtype={_BYTES} atype=f16", "d=dtype a:f16", _float_to_integer),
    Entry(f"cvt rnd={_INTEGRAL} sat? dtype={_WORDS} atype=f16", "d=dtype a:f16", _float_to_integer),
    Entry(f"cvt rnd={_INTEGRAL} dtype={_INTS} atype=bf16", "d=dtype a:bf16", _float_to_integer),
    Entry(
        f"cvt rnd={_ROUNDINGS} ftz? sat? dtype=f32 atype={_INTS}", "d=f32 a:atype~", _integer_to_float, hints=("ftz",)
    ),
    Entry(f"cvt rnd={_ROUNDINGS} sat? dtype=f16 atype={_INTS}", "d=dtype a:atype", _integer_to_float),
    Entry(f"cvt rnd={_ROUNDINGS} dtype=bf16 atype={_INTS}", "d=dtype a:atype", _integer_to_float),
    Entry("cvt ftz? sat? dtype=f32 atype=f32", "d=f32 a:f32", _float_to_float),
    Entry(f"cvt rnd={_INTEGRAL} ftz? sat? dtype=f32 atype=f32", "d=f32 a:f32", _float_to_float),
    Entry(
        "cvt ftz? sat? dtype=f32 atype=f16",
        "d=f32 a:f16",
        lambda mods: _saturated(mods, "eq_f16_to_f32(a)"),
        hints=("ftz",),
        note="an f16 subnormal is no f32 subnormal",
    ),
    Entry(
        f"cvt rnd?={_ROUNDINGS} ftz? dtype=f32 atype=bf16",
        "d=f32 a:bf16",
        lambda mods: "d = eq_ftz(eq_canon((uint32_t)a << 16));" if mods["ftz"] else "d = (uint32_t)a << 16;",
        hints=("rnd",),
    ),
    Entry("cvt sat? dtype=f16 atype=f16", "d=f16 a:f16", _half_to_half),
    Entry(f"cvt rnd={_INTEGRAL} sat? dtype=f16 atype=f16", "d=f16 a:f16", _half_to_half),
    Entry(f"cvt rnd={_INTEGRAL} dtype=bf16 atype=bf16", "d=bf16 a:bf16", _half_to_half),
    *_to_halves(),
    Entry("cvt rnd=rna satfinite? dtype=tf32 atype=f32", "d=b32 a:f32", _tf32),
    Entry("cvt rnd=rn|rz relu? dtype=tf32 atype=f32", "d=b32 a:f32", _tf32),
    Entry("cvt rnd=rn|rz satfinite relu? dtype=tf32 atype=f32", "d=b32 a:f32", _tf32, arch=100),
    Entry("cvt pack sat dtype=u16|s16 atype=s32", "d=u32 a:s32 b:s32", _pack_saturated),
    Entry("cvt pack sat dtype=u8|s8|u4|s4|u2|s2 atype=s32 ctype=b32", "d=u32 a:s32 b:s32 c:b32", _pack_saturated),
    Entry("mov type=b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64", "d=type a:type", "d = a;"),
    Entry("mov type=pred", "p=pred a:pred", "p_ = a_;", "warp"),
    Entry(
        "mov type=b32|u32|s32|b64|u64|s64",
        "d=type k:clock",
        "LANES(l) if (HAS(l)) d_[l] = w->clock >> k;",
        "warp",
        note="clocks and timers count the instructions of the warp: always growing, the same in every run, and no time",
    ),
    *(Entry(f"mov type=b{count * bits}", f"d=type a:b{bits}*{count}", _pack(count, bits)) for count, bits in _PACKED),
    *(Entry(f"mov type=b{count * bits}", f"d=b{bits}*{count} a:type", _unpack(count, bits)) for count, bits in _PACKED),
)
