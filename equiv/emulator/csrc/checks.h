/* What is known about shared memory beyond its bytes: which were written, where mbarriers live, who still runs.
 *
 * Memory that nobody has written holds 0xff bytes, so only a unit that was *written* as all ones needs a mark in the shadow,
 * and only a value that shows such a unit needs a look at it. That makes the check cheap. A unit is a byte in kernels that
 * access shared memory byte by byte, else two bytes, of which far fewer are all ones by chance. */
#ifndef EQUIV_CHECKS_H
#define EQUIV_CHECKS_H

#include <stdlib.h>

#include "observer.h"

#define SHADOW_WRITTEN 1  /* the byte is 0xff because somebody wrote that */
#define SHADOW_MBARRIER 2 /* the byte is part of an mbarrier */

/* Non-zero if a unit of x is all ones. low, high: the lowest and the highest bit of every unit. */
#define ODD32(x, low, high) ((~(uint32_t)(x) - (uint32_t)(low)) & (uint32_t)(x) & (uint32_t)(high))
#define ODD64(x, low, high) ((~(uint64_t)(x) - (low)) & (uint64_t)(x) & (high))

/* An mbarrier by its shared address, and the instructions (NEVER: none) that initialised it, that last raised and last
 * lowered the bytes it expects. */
typedef struct { uint32_t address, init, expect, complete, cta, warp; } BarrierRecord;

/* Of a cluster. shadow: a byte for each of the window's. unit: bytes; low, high: for ODD32. */
struct Watch {
    uint8_t *shadow;
    uint64_t low, high;
    uint32_t unit;
    BarrierRecord *barrier;
    uint32_t count, capacity;
};

/* What deserves a look but may be right: at most one an instruction. */
typedef struct Note { uint32_t kind, pc, lane, size; uint64_t address; uint32_t cta, warp; } Note;
typedef enum { NOTE_PARTLY_WRITTEN = 1, NOTE_TENSOR_UNWRITTEN } NoteKind;
#define NOTES 64

static inline int in_window(const Launch *launch, uint64_t host) {
    return host - (uint64_t)(uintptr_t)launch->window < (uint64_t)launch->cluster_size * SHARED_SLICE;
}

COLD void note(Warp *w, const Op *o, uint32_t kind, uint32_t lane, uint64_t address, uint32_t size) {
    Launch *launch = w->launch;
    Note one = {kind, (uint32_t)(o - launch->code), lane, size, address, w->cta->linear, w->id};
    for (uint32_t i = 0; i < launch->note_count; i++)
        if (launch->notes[i].pc == one.pc && launch->notes[i].kind == kind) return;
    if (launch->note_count < NOTES) launch->notes[launch->note_count++] = one;
}

/* How many of `size` bytes of shared memory at a host address nobody has written. */
COLD uint32_t unwritten_slow(const Launch *launch, uint64_t host, uint32_t size) {
    const uint8_t *byte = (const uint8_t *)host, *shadow = launch->watch->shadow + (host - (uint64_t)(uintptr_t)launch->window);
    uint32_t count = 0;
    uint32_t unit = launch->watch->unit;
    for (uint32_t i = 0; i < size; i += unit)
        count += byte[i] == 0xff && byte[i + unit - 1] == 0xff && !(shadow[i] & SHADOW_WRITTEN) ? unit : 0;
    return count;
}
static inline uint32_t unwritten(const Launch *launch, uint64_t host, uint32_t size) {
    uint64_t odd = 0, word;
    uint32_t i = 0;
    if (!launch->watch || !in_window(launch, host)) return 0;
    for (; i + 8 <= size; i += 8) {
        memcpy(&word, (const void *)(host + i), 8);
        odd |= ODD64(word, launch->watch->low, launch->watch->high);
    }
    return odd || i < size ? unwritten_slow(launch, host, size) : 0;
}

/* Marks the 0xff bytes of a write to shared memory that has happened; `poison`: they are none's, and no mbarrier is left. */
COLD void mark(const Launch *launch, uint64_t host, uint32_t size, int poison) {
    if (!launch->watch || !in_window(launch, host)) return;
    const uint8_t *byte = (const uint8_t *)host;
    uint8_t *shadow = launch->watch->shadow + (host - (uint64_t)(uintptr_t)launch->window);
    if (poison) memset(shadow, 0, size);
    else for (uint32_t i = 0; i < size; i++) if (byte[i] == 0xff) shadow[i] |= SHADOW_WRITTEN;
}

/* A load by the lanes of `m` from host addresses: a fault if a byte of shared memory was never written. */
COLD int read_check(Warp *w, const Op *o, uint32_t m, const uint64_t *at, uint32_t size) {
    LANES(l) {
        if (!HAS(l) || !unwritten(w->launch, at[l], size)) continue;
        return fault(w, o, FAULT_UNWRITTEN, (uint32_t)l, at[l] - (uint64_t)(uintptr_t)w->launch->window, size, 0);
    }
    return NEXT;
}
COLD void mark_lanes(Warp *w, uint32_t m, const uint64_t *at, uint32_t size) {
    LANES(l) if (HAS(l)) mark(w->launch, at[l], size, 0);
}

/* A read of a whole block at once (matrices, copies), of which `count` of `size` bytes were never written: a fault if all,
 * a note if some, since a kernel may never use what it computes from them. */
COLD int read_block(Warp *w, const Op *o, uint32_t lane, uint64_t host, uint32_t count, uint32_t size) {
    uint64_t address = host - (uint64_t)(uintptr_t)w->launch->window;
    if (!count) return NEXT;
    if (count == size) return fault(w, o, FAULT_UNWRITTEN, lane, address, size, 0);
    note(w, o, NOTE_PARTLY_WRITTEN, lane, address, count);
    return NEXT;
}

/* Shared memory of a CTA is gone once all its threads have exited. */
COLD int peers_check(Warp *w, const Op *o, uint32_t m, const uint64_t *address) {
    LANES(l) {
        uint32_t rank = (uint32_t)(address[l] >> 24), live = 0;
        if (!HAS(l) || rank == w->cta->rank) continue;
        for (uint32_t i = 0; i < w->launch->ctas[rank].warps; i++) live |= w->launch->ctas[rank].warp[i].live;
        if (!live) return fault(w, o, FAULT_PEER, (uint32_t)l, address[l], 0, 0);
    }
    return NEXT;
}

/* The record of the mbarrier at a shared address, or 0. */
static inline BarrierRecord *barrier_record(const Launch *launch, uint32_t address) {
    struct Watch *watch = launch->watch;
    for (uint32_t i = 0; watch && i < watch->count; i++)
        if (watch->barrier[i].address == address) return &watch->barrier[i];
    return 0;
}

COLD void barrier_begin(Warp *w, const Op *o, uint32_t address) {
    struct Watch *watch = w->launch->watch;
    BarrierRecord *one = barrier_record(w->launch, address);
    if (!watch) return;
    if (!one) {
        if (watch->count == watch->capacity) {
            watch->capacity = watch->capacity ? watch->capacity * 2 : 32;
            watch->barrier = realloc(watch->barrier, watch->capacity * sizeof *watch->barrier);
            if (!watch->barrier) abort();
        }
        one = &watch->barrier[watch->count++];
    }
    *one = (BarrierRecord){address, (uint32_t)(o - w->launch->code), NEVER, NEVER, w->cta->linear, w->id};
    memset(watch->shadow + address, SHADOW_MBARRIER | SHADOW_WRITTEN, 8);
}

/* Whether an mbarrier lives at a shared address, as far as that is known without its bytes. */
static inline int barrier_known(const Launch *launch, uint32_t address) {
    return !launch->watch || launch->watch->shadow[address] & SHADOW_MBARRIER;
}

#endif
