/* Checked addresses for loads, stores and copies. Each prepares the host address of every active lane; an inactive lane gets
 * that of an active one, so that a load loop needs no branch. A failed check records the first offending lane. */
#ifndef EQUIV_MEMORY_H
#define EQUIV_MEMORY_H

#include "checks.h"

typedef struct { uint64_t at[32]; } Addresses;

static inline const Region *find_region(const Launch *launch, uint64_t address) {
    uint64_t low = 0, high = launch->region_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (launch->regions[middle].high <= address) low = middle + 1;
        else high = middle;
    }
    if (low == launch->region_count || launch->regions[low].low > address) return 0;
    return &launch->regions[low];
}

static inline int check_span(Warp *w, const Op *o, uint32_t lane, uint64_t address, uint64_t size, int write) {
    const Region *r = find_region(w->launch, address);
    if (!r || address + size > r->high) return fault(w, o, FAULT_OUT_OF_BOUNDS, lane, address, (uint32_t)size, (uint32_t)write);
    if (write && !r->writable) return fault(w, o, FAULT_READ_ONLY, lane, address, (uint32_t)size, 1);
    w->launch->hint[o - w->launch->code] = (uint32_t)(r - w->launch->regions);
    return NEXT;
}

COLD int global_slow(Warp *w, const Op *o, uint32_t m, const Addresses *a, uint32_t size, uint32_t align, int write) {
    LANES(l) {
        if (!HAS(l)) continue;
        if (a->at[l] & (align - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, a->at[l], align, (uint32_t)write);
        if (check_span(w, o, (uint32_t)l, a->at[l], size, write)) return FAULT;
    }
    return NEXT;
}

/* Global addresses in `a->at`: `size` bytes a lane, aligned to `align`. */
static inline int global_check(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t size, uint32_t align, int write) {
    const Region *r = &w->launch->regions[w->launch->hint[o - w->launch->code]];
    uint64_t first = a->at[__builtin_ctz(m)], wrong = 0, low = r->low, room = r->high - r->low;
    if (m != FULL) LANES(l) a->at[l] = HAS(l) ? a->at[l] : first;
    if (room < size || (write && !r->writable)) return global_slow(w, o, m, a, size, align, write);
    room -= size;
    LANES(l) wrong |= (uint64_t)(a->at[l] - low > room) | (a->at[l] & (align - 1));
    return wrong ? global_slow(w, o, m, a, size, align, write) : NEXT;
}

/* Shared addresses: 32 bits, the rank of a CTA of the cluster in the top byte. Becomes host addresses. */
static inline int shared_check(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t size, uint32_t align, int cluster) {
    uint64_t first = a->at[__builtin_ctz(m)], wrong = 0, own = w->cta->rank, limit = w->launch->shared_size;
    uint64_t base = (uint64_t)(uintptr_t)w->launch->window;
    if (m != FULL) LANES(l) a->at[l] = HAS(l) ? a->at[l] : first;
    LANES(l) {
        uint64_t x = a->at[l], rank = x >> 24, offset = (x & (SHARED_SLICE - 1)) - SHARED_RESERVED;
        wrong |= (uint64_t)(offset + size > limit) | (uint64_t)(offset > limit) | (x & (align - 1)) |
                 (cluster ? (uint64_t)(rank >= w->launch->cluster_size) : (uint64_t)(rank != own));
    }
    if (wrong) {
        LANES(l) {
            uint64_t x = a->at[l], rank = x >> 24, offset = (x & (SHARED_SLICE - 1)) - SHARED_RESERVED;
            if (!HAS(l)) continue;
            if (x & (align - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, x, align, 2);
            if (offset > limit || offset + size > limit || (cluster ? rank >= w->launch->cluster_size : rank != own))
                return fault(w, o, FAULT_SHARED_BOUNDS, (uint32_t)l, x, size, 0);
        }
    }
    if (cluster && w->launch->watch) {
        uint64_t peer = 0;
        LANES(l) peer |= a->at[l] >> 24 ^ own;
        if (peer && peers_check(w, o, m, a->at)) return FAULT;
    }
    LANES(l) a->at[l] += base;
    if (__builtin_expect(w->launch->observer != 0, 0)) return w->launch->observer->access(w, o, m, a->at, size);
    return NEXT;
}

/* Local addresses: an offset within the lane's own slice. Becomes host addresses. */
static inline int local_check(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t size, uint32_t align) {
    uint64_t limit = w->launch->local_size, first = a->at[__builtin_ctz(m)];
    LANES(l) {
        uint64_t x = HAS(l) ? a->at[l] : first;
        if (x & (align - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, x, align, 3);
        if (x > limit || x + size > limit) return fault(w, o, FAULT_LOCAL_BOUNDS, (uint32_t)l, x, size, 0);
        a->at[l] = (uint64_t)(uintptr_t)w->local + (uint64_t)l * limit + x;
    }
    return NEXT;
}

static inline int param_check(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t size, uint32_t align) {
    uint64_t limit = w->launch->param_size, first = a->at[__builtin_ctz(m)];
    LANES(l) {
        uint64_t x = HAS(l) ? a->at[l] : first;
        if (x & (align - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, x, align, 4);
        if (x > limit || x + size > limit) return fault(w, o, FAULT_PARAM_BOUNDS, (uint32_t)l, x, size, 0);
        a->at[l] = (uint64_t)(uintptr_t)w->launch->params + x;
    }
    return NEXT;
}

/* Generic addresses: by window, lane by lane; everything outside the windows is global. */
COLD int generic_check(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t size, uint32_t align, int write) {
    Addresses one;
    uint64_t host = 0;
    LANES(l) {
        if (!HAS(l)) continue;
        uint64_t x = a->at[l], window = x & ~0xffffffffull;
        memset(&one, 0, sizeof one);
        one.at[l] = window == GENERIC_SHARED || window == GENERIC_LOCAL ? x & 0xffffffffull : x;
        int r = window == GENERIC_SHARED  ? shared_check(w, o, 1u << l, &one, size, align, 1)
                : window == GENERIC_LOCAL ? local_check(w, o, 1u << l, &one, size, align)
                                          : global_check(w, o, 1u << l, &one, size, align, write);
        if (r) return r;
        a->at[l] = host = one.at[l];
    }
    LANES(l) if (!HAS(l)) a->at[l] = host;
    return NEXT;
}

#endif
