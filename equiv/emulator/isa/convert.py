"""`cvt`: between integers, floats and the narrow formats (`spec/numerics.md` section 4), and `mov` packing.

In the forms with two sources the first goes to the high half of the destination.
"""

from __future__ import annotations

from equiv.emulator.isa.table import TYPE_BITS, Entry, Mods, c_type

_INTS = "u8|s8|u16|s16|u32|s32|u64|s64"


def _integer(mods: Mods) -> str:
    target, source = mods["dtype"], mods["atype"]
    if not mods["sat"]:
        return "d = a;"
    bits = TYPE_BITS[target]
    # 128 bits hold every value of every source type, so that the clamp is one comparison of exact numbers.
    low, high = (
        ("0", f"((__int128)1 << {bits}) - 1")
        if target[0] == "u"
        else (f"-((__int128)1 << {bits - 1})", f"((__int128)1 << {bits - 1}) - 1")
    )
    return (
        f"{{ const __int128 x = ({c_type(source)})a, low = {low}, high = {high};"
        f" d = ({c_type(target)})(x < low ? low : x > high ? high : x); }}"
    )


def _float_to_integer(mods: Mods) -> str:
    widen = {"f32": "", "f16": "eq_f16_to_f32", "bf16": "eq_bf16_to_f32"}[mods["atype"]]
    flush = "_ftz" if mods.get("ftz") else ""
    return f"d = clamp_{mods['dtype'][0]}(eq_{mods['rnd']}{flush}({widen}(a)), {TYPE_BITS[mods['dtype']]});"


def _integer_to_float(mods: Mods) -> str:
    # A 64-bit source is not exact in double: only rn, by the compiler's own single rounding.
    wide = TYPE_BITS[mods["atype"]] == 64
    call = "eq_bits((float)a)" if wide else f"eq_round_{mods['rnd']}(exact_integer((double)a))"
    return f"d = eq_sat({call});" if mods.get("sat") else f"d = {call};"


def _integer_to_half(mods: Mods) -> str:
    return f"d = eq_cvt_{mods['dtype']}_rn(round_odd(exact_integer((double)a)));"


def _float_to_float(mods: Mods) -> str:
    value = "eq_ftz(a)" if mods["ftz"] else "a"
    if mods.get("rnd"):
        value = f"eq_{mods['rnd']}({value})"
    return f"d = eq_sat({value});" if mods["sat"] else f"d = {value};"


def _narrow(mods: Mods, value: str) -> str:
    """f32 to one f16 or bf16."""
    kind = mods["dtype"].removesuffix("x2")
    flush = f"eq_ftz({value})" if mods.get("ftz") else value
    if mods.get("sat"):
        flush = f"eq_sat({flush})"
    if mods.get("satfinite"):
        limit = {"f16": "0x477fe000u", "bf16": "0x7f7f0000u"}[kind]
        flush = f"clamp_finite({flush}, {limit})"
    call = f"eq_cvt_{kind}_{mods['rnd']}({flush})"
    return f"half_relu({call})" if mods.get("relu") else call


def _narrow_one(mods: Mods) -> str:
    return f"d = {_narrow(mods, 'a')};"


def _narrow_two(mods: Mods) -> str:
    return f"d = {_narrow(mods, 'a')} << 16 | {_narrow(mods, 'b')};"


def _tiny(mods: Mods, value: str) -> str:
    """f32 to one code of a narrow format."""
    kind, finite = mods["dtype"].removesuffix("x2"), "_satfinite" if mods["satfinite"] else ""
    value = f"relu_f32({value})" if mods.get("relu") else value
    return f"eq_cvt_{kind}_{mods['rnd']}{finite}({value})"


def _tiny_two(mods: Mods) -> str:
    shift = 4 if mods["dtype"] == "e2m1x2" else 8
    return f"d = {_tiny(mods, 'a')} << {shift} | {_tiny(mods, 'b')};"


def _tiny_packed(mods: Mods) -> str:
    """Two halves in one register to two codes: element by element, low to low."""
    widen = {"f16x2": "eq_f16_to_f32", "bf16x2": "eq_bf16_to_f32"}[mods["atype"]]
    shift = 4 if mods["dtype"] == "e2m1x2" else 8
    return f"d = {_tiny(mods, f'{widen}(a >> 16)')} << {shift} | {_tiny(mods, f'{widen}(a & 0xffffu)')};"


def _widen_packed(mods: Mods) -> str:
    kind, shift, mask = mods["atype"].removesuffix("x2"), *((4, 15) if mods["atype"] == "e2m1x2" else (8, 255))
    target = mods["dtype"].removesuffix("x2")
    low, high = (
        f"eq_cvt_{target}_rn(eq_{kind}_to_f32({value}))" for value in (f"a & {mask}", f"a >> {shift} & {mask}")
    )
    if mods.get("relu"):
        low, high = f"half_relu({low})", f"half_relu({high})"
    return f"d = (uint32_t){high} << 16 | {low};"


def _scale_two(mods: Mods) -> str:
    name = f"eq_cvt_ue8m0_{mods['rnd']}{'_satfinite' if mods['satfinite'] else ''}"
    return f"d = {name}(a) << 8 | {name}(b);"


def _scale_packed(mods: Mods) -> str:
    name = f"eq_cvt_ue8m0_{mods['rnd']}{'_satfinite' if mods['satfinite'] else ''}"
    return f"d = {name}(a & 0xffff0000u) << 8 | {name}(a << 16);"


def _pack(count: int, bits: int) -> str:
    wide = f"uint{count * bits}_t"
    return "d = " + " | ".join(f"({wide})a{i} << {bits * i}" for i in range(count)) + ";"


def _unpack(count: int, bits: int) -> str:
    return " ".join(f"d{i} = (uint{bits}_t)(a >> {bits * i});" for i in range(count))


_PACKED = ((2, 8), (2, 16), (4, 8), (2, 32), (4, 16))

ENTRIES = (
    Entry(f"cvt sat? dtype={_INTS} atype={_INTS}", "d=dtype~ a:atype~", _integer),
    Entry(
        f"cvt rnd=rni|rzi|rmi|rpi ftz? sat? dtype={_INTS} atype=f32",
        "d=dtype~ a:f32",
        _float_to_integer,
        note="always saturates; NaN gives 0",
    ),
    Entry(f"cvt rnd=rni|rzi|rmi|rpi sat? dtype={_INTS} atype=f16|bf16", "d=dtype~ a:atype", _float_to_integer),
    Entry("cvt rnd=rn|rz|rm|rp sat? dtype=f32 atype=u8|s8|u16|s16|u32|s32", "d=f32 a:atype~", _integer_to_float),
    Entry("cvt rnd=rn sat? dtype=f32 atype=u64|s64", "d=f32 a:atype", _integer_to_float),
    Entry("cvt rnd=rn dtype=f16|bf16 atype=u8|s8|u16|s16|u32|s32", "d=dtype a:atype~", _integer_to_half),
    Entry("cvt ftz? sat? dtype=f32 atype=f32", "d=f32 a:f32", _float_to_float),
    Entry("cvt rnd=rni|rzi|rmi|rpi ftz? sat? dtype=f32 atype=f32", "d=f32 a:f32", _float_to_float),
    Entry(
        "cvt ftz? sat? dtype=f32 atype=f16",
        "d=f32 a:f16",
        lambda mods: f"d = {'eq_sat' if mods['sat'] else ''}(eq_f16_to_f32({'half_ftz' if mods['ftz'] else ''}(a)));",
    ),
    Entry("cvt dtype=f32 atype=bf16", "d=f32 a:bf16", "d = (uint32_t)a << 16;"),
    Entry("cvt rnd=rn ftz? sat? dtype=f16 atype=f32", "d=f16 a:f32", _narrow_one),
    Entry("cvt rnd=rn relu satfinite? dtype=f16 atype=f32", "d=f16 a:f32", _narrow_one),
    Entry("cvt rnd=rn satfinite dtype=f16 atype=f32", "d=f16 a:f32", _narrow_one),
    Entry("cvt rnd=rn relu? satfinite? dtype=bf16 atype=f32", "d=bf16 a:f32", _narrow_one),
    Entry("cvt rnd=rz relu? satfinite? dtype=bf16 atype=f32", "d=bf16 a:f32", _narrow_one),
    Entry("cvt rnd=rn satfinite? relu? dtype=f16x2|bf16x2 atype=f32", "d=b32 a:f32 b:f32", _narrow_two),
    Entry("cvt rnd=rz satfinite? relu? dtype=bf16x2 atype=f32", "d=b32 a:f32 b:f32", _narrow_two),
    Entry("cvt rnd=rn dtype=bf16 atype=f16", "d=bf16 a:f16", "d = eq_cvt_bf16_rn(eq_f16_to_f32(a));"),
    Entry("cvt rnd=rn dtype=f16 atype=bf16", "d=f16 a:bf16", "d = eq_cvt_f16_rn((uint32_t)a << 16);"),
    Entry("cvt rnd=rna dtype=tf32 atype=f32", "d=b32 a:f32", "d = eq_cvt_tf32_rna(a);"),
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=f32", "d=dtype a:f32 b:f32", _tiny_two, arch=89),
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=f16x2", "d=dtype a:f16x2", _tiny_packed, arch=89),
    Entry("cvt rnd=rn satfinite relu? dtype=e4m3x2|e5m2x2 atype=bf16x2", "d=dtype a:bf16x2", _tiny_packed, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m1x2 atype=f32", "d=e2m1x2~ a:f32 b:f32", _tiny_two, arch=100),
    Entry("cvt rnd=rn satfinite relu? dtype=e2m1x2 atype=f16x2|bf16x2", "d=e2m1x2~ a:atype", _tiny_packed, arch=100),
    Entry("cvt rnd=rn relu? dtype=f16x2 atype=e4m3x2|e5m2x2", "d=b32 a:atype", _widen_packed, arch=89),
    Entry("cvt rnd=rn relu? dtype=bf16x2 atype=e4m3x2|e5m2x2", "d=b32 a:atype", _widen_packed, arch=100),
    Entry("cvt rnd=rn relu? dtype=f16x2|bf16x2 atype=e2m1x2", "d=b32 a:e2m1x2~", _widen_packed, arch=100),
    Entry("cvt rnd=rz|rp satfinite? dtype=ue8m0x2 atype=f32", "d=ue8m0x2 a:f32 b:f32", _scale_two, arch=100),
    Entry("cvt rnd=rz|rp satfinite? dtype=ue8m0x2 atype=bf16x2", "d=ue8m0x2 a:bf16x2", _scale_packed, arch=100),
    Entry(
        "cvt rnd=rn dtype=bf16x2 atype=ue8m0x2",
        "d=b32 a:ue8m0x2",
        "d = eq_ue8m0_to_bf16(a >> 8) << 16 | eq_ue8m0_to_bf16(a);",
        arch=100,
    ),
    Entry("mov type=b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64", "d=type a:type", "d = a;"),
    Entry("mov type=pred", "p=pred a:pred", "p_ = a_;", "warp"),
    *(Entry(f"mov type=b{count * bits}", f"d=type a:b{bits}*{count}", _pack(count, bits)) for count, bits in _PACKED),
    *(Entry(f"mov type=b{count * bits}", f"d=b{bits}*{count} a:type", _unpack(count, bits)) for count, bits in _PACKED),
)
