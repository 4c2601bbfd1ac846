/* mbarrier objects: 8 bytes of shared memory each, whose layout is this file's own business.
 *
 * Bits 0-19 arrivals still pending in this phase, 20-39 arrivals of the next one, 40-60 bytes that asynchronous copies still
 * owe plus 2^20, 61 parity of the phase, 62-63 the number 1, which neither zeros nor never-written memory shows. */
#ifndef EQUIV_MBARRIER_H
#define EQUIV_MBARRIER_H

#include "memory.h"

#define MBARRIER_COUNT_MAX 0xfffffu
#define MBARRIER_TX_MAX 0xfffff

typedef struct { uint32_t pending, count, parity; int64_t tx; } Mbarrier;

/* Returns 0 if the bytes are no mbarrier. */
static inline int mbarrier_read(uint64_t word, Mbarrier *b) {
    b->pending = word & MBARRIER_COUNT_MAX;
    b->count = word >> 20 & MBARRIER_COUNT_MAX;
    b->tx = (int64_t)(word >> 40 & 0x1fffff) - (1 << 20);
    b->parity = word >> 61 & 1;
    return word >> 62 == 1;
}

static inline uint64_t mbarrier_word(const Mbarrier *b) {
    return (uint64_t)b->pending | (uint64_t)b->count << 20 | (uint64_t)(b->tx + (1 << 20)) << 40 | (uint64_t)b->parity << 61 |
           1ull << 62;
}

/* What changes an mbarrier: arrivals (negative: more are needed), bytes expected (positive) or landed (negative), arrivals fewer in later phases. */
typedef struct { int32_t arrivals; uint32_t drop; int64_t tx; } Change;

/* Applies a change to the mbarrier at host address `at` and ends the phase if nothing is missing. `before`: its old bytes.
 * Faults name the mbarrier by its shared address. */
COLD int mbarrier_change(Warp *w, const Op *o, uint32_t lane, uint64_t at, Change change, uint64_t *before) {
    uint32_t address = (uint32_t)(at - (uint64_t)(uintptr_t)w->launch->window);
    uint64_t word;
    Mbarrier b;
    memcpy(&word, (const void *)at, 8);
    *before = word;
    if (!mbarrier_read(word, &b) || !barrier_known(w->launch, address)) return fault(w, o, FAULT_MBARRIER, lane, address, 0, 0);
    b.tx += change.tx;
    if (change.tx) {
        BarrierRecord *record = barrier_record(w->launch, address);
        if (record) *(change.tx > 0 ? &record->expect : &record->complete) = (uint32_t)(o - w->launch->code);
    }
    if (b.tx > MBARRIER_TX_MAX || b.tx < -MBARRIER_TX_MAX) return fault(w, o, FAULT_MBARRIER, lane, address, (uint32_t)b.tx, 3);
    if (change.arrivals > (int32_t)b.pending)
        return fault(w, o, FAULT_MBARRIER, lane, address, (uint32_t)change.arrivals << 16 | (b.pending & 0xffff), 2);
    if (change.drop > b.count) return fault(w, o, FAULT_MBARRIER, lane, address, change.drop, 5);
    b.pending -= (uint32_t)change.arrivals;
    b.count -= change.drop;
    /* Every arrival has come, so nobody can expect these bytes any more. */
    if (!b.pending && b.tx < 0 && w->launch->watch) return fault(w, o, FAULT_MBARRIER, lane, address, (uint32_t)-b.tx, 6);
    if (change.arrivals > 0) OBSERVE(w->launch, w, o, EVENT_ARRIVE, at);
    if (!b.pending && !b.tx) {
        b.parity ^= 1;
        b.pending = b.count;
        OBSERVE(w->launch, w, o, EVENT_PHASE, at);
    }
    word = mbarrier_word(&b);
    memcpy((void *)at, &word, 8);
    w->launch->events++;
    return NEXT;
}

/* `a` holds host addresses of checked accesses: are they in the cluster's shared memory? (generic addresses may not be) */
static inline int mbarrier_shared(Warp *w, const Op *o, uint32_t m, const Addresses *a) {
    uint64_t window = (uint64_t)(uintptr_t)w->launch->window, size = (uint64_t)w->launch->cluster_size * SHARED_SLICE;
    LANES(l) if (HAS(l) && a->at[l] - window >= size) return fault(w, o, FAULT_MBARRIER, (uint32_t)l, a->at[l], 0, 4);
    return NEXT;
}

COLD int mbarrier_init(Warp *w, const Op *o, uint32_t m, const Addresses *a, const uint32_t *count) {
    if (mbarrier_shared(w, o, m, a)) return FAULT;
    LANES(l) {
        uint32_t address = (uint32_t)(a->at[l] - (uint64_t)(uintptr_t)w->launch->window);
        uint64_t word;
        Mbarrier b;
        if (!HAS(l) || !w->launch->watch || !barrier_known(w->launch, address)) continue;
        memcpy(&word, (const void *)a->at[l], 8);
        if (mbarrier_read(word, &b))
            return fault(w, o, FAULT_MBARRIER, (uint32_t)l, address, barrier_record(w->launch, address)->init, 8);
    }
    LANES(l) {
        if (!HAS(l)) continue;
        uint32_t address = (uint32_t)(a->at[l] - (uint64_t)(uintptr_t)w->launch->window);
        if (count[l] - 1 >= MBARRIER_COUNT_MAX) return fault(w, o, FAULT_MBARRIER, (uint32_t)l, address, count[l], 1);
        Mbarrier b = {count[l], count[l], 0, 0};
        uint64_t word = mbarrier_word(&b);
        memcpy((void *)a->at[l], &word, 8);
        barrier_begin(w, o, address);
    }
    w->launch->events++;
    return NEXT;
}

/* The bytes may hold anything afterwards; here, what makes any use of the mbarrier a fault. */
COLD int mbarrier_inval(Warp *w, const Op *o, uint32_t m, const Addresses *a) {
    if (mbarrier_shared(w, o, m, a)) return FAULT;
    LANES(l) {
        uint64_t word;
        Mbarrier b;
        if (!HAS(l)) continue;
        memcpy(&word, (const void *)a->at[l], 8);
        if (!mbarrier_read(word, &b))
            return fault(w, o, FAULT_MBARRIER, (uint32_t)l, a->at[l] - (uint64_t)(uintptr_t)w->launch->window, 0, 0);
        memset((void *)a->at[l], 0xff, 8);
        mark(w->launch, a->at[l], 8, 1);
    }
    return NEXT;
}

/* Arrivals, `least` or more, and changes of the byte count, lane after lane; `state`: 0, or where the old bytes go. */
COLD int mbarrier_apply(Warp *w, const Op *o, uint32_t m, const Addresses *a, const Change *change, uint32_t least,
                        uint64_t *state) {
    if (mbarrier_shared(w, o, m, a)) return FAULT;
    LANES(l) {
        uint64_t before;
        if (!HAS(l)) continue;
        if ((uint32_t)change[l].arrivals - least > MBARRIER_COUNT_MAX - least)
            return fault(w, o, FAULT_MBARRIER, (uint32_t)l, a->at[l] - (uint64_t)(uintptr_t)w->launch->window,
                         (uint32_t)change[l].arrivals, 1);
        if (mbarrier_change(w, o, (uint32_t)l, a->at[l], change[l], &before)) return FAULT;
        if (state) state[l] = before;
    }
    return NEXT;
}

/* test_wait and try_wait: lanes whose phase is over get true and go on. The others are parked, which is a legal delay for
 * both, until the phase is over, or until nothing else can happen: then they get false. `parity[l]`: of the phase waited
 * for. Sets the predicate mask `done` for the lanes left in `*m`; returns JUMP if some were parked. */
COLD int mbarrier_wait(Warp *w, const Op *o, uint32_t *m, const Addresses *a, const uint32_t *parity, uint32_t *done) {
    uint32_t parked[32], waits = 0;
    if (mbarrier_shared(w, o, *m, a)) return FAULT;
    LANES(l) {
        uint64_t word;
        Mbarrier b;
        if (!(*m >> l & 1)) continue;
        memcpy(&word, (const void *)a->at[l], 8);
        parked[l] = (uint32_t)(a->at[l] - (uint64_t)(uintptr_t)w->launch->window);
        if (!mbarrier_read(word, &b) || !barrier_known(w->launch, parked[l]))
            return fault(w, o, FAULT_MBARRIER, (uint32_t)l, parked[l], 0, 0);
        if (b.parity != (parity[l] & 1)) {
            *done |= 1u << l;
            OBSERVE(w->launch, w, o, EVENT_WAIT, a->at[l]);
        }
        else if (!(w->expired >> l & 1)) waits |= 1u << l;
    }
    w->expired &= ~*m;
    *m &= ~waits;
    if (!waits) return NEXT;
    while (waits) {
        uint32_t first = (uint32_t)__builtin_ctz(waits), same = 0;
        LANES(l) same |= (uint32_t)(waits >> l & 1 && parked[l] == parked[first] && (parity[l] & 1) == (parity[first] & 1)) << l;
        park(w, o, same, (uint32_t)(o - w->launch->code), WAIT_MBARRIER, parked[first], parity[first] & 1);
        waits &= ~same;
    }
    return JUMP;
}

/* Whether a parked wait for an mbarrier is over. */
static inline int mbarrier_over(const Launch *launch, const Fragment *f) {
    uint64_t word;
    Mbarrier b;
    memcpy(&word, launch->window + f->id, 8);
    return !mbarrier_read(word, &b) || b.parity != f->need;
}

/* At the end of a cluster, bytes that an mbarrier still expects, or has too many of, were announced wrongly. */
COLD int mbarriers_finish(Launch *launch) {
    struct Watch *watch = launch->watch;
    for (uint32_t i = 0; watch && i < watch->count; i++) {
        const BarrierRecord *r = &watch->barrier[i];
        Mbarrier b;
        uint64_t word;
        memcpy(&word, launch->window + r->address, 8);
        if (!barrier_known(launch, r->address) || !mbarrier_read(word, &b) || !b.tx) continue;
        uint32_t at = b.tx < 0 || r->expect == NEVER ? r->complete : r->expect;
        return fault(launch->ctas[r->address >> 24].warp, launch->code + at, FAULT_MBARRIER, 0, r->address, (uint32_t)b.tx, 7);
    }
    return NEXT;
}

#endif
