/* Issuing asynchronous copies: addresses and sizes are checked here, lane after lane, then a `Copy` starts. */
#ifndef EQUIV_BULK_H
#define EQUIV_BULK_H

#include "async.h"

/* One lane's shared address as a host address. */
static inline int lane_shared(Warp *w, const Op *o, int l, uint64_t address, uint32_t size, uint32_t align, int cluster, uint64_t *host) {
    Addresses one = {{0}};
    one.at[l] = address;
    if (shared_check(w, o, 1u << l, &one, size, align, cluster)) return FAULT;
    *host = one.at[l];
    return NEXT;
}

static inline int lane_global(Warp *w, const Op *o, int l, uint64_t address, uint32_t size, uint32_t align, int write) {
    if (address & (align - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, address, align, (uint32_t)write);
    return size ? check_span(w, o, (uint32_t)l, address, size, write) : NEXT;
}

/* cp.async: `size` bytes a lane from global to shared memory, the first count[l] of them read, the rest zero. */
static inline int copy_async(Warp *w, const Op *o, uint32_t m, Addresses *to, const Addresses *from, uint64_t size,
                             const uint64_t *count) {
    if (size != 4 && size != 8 && size != 16) return fault(w, o, FAULT_VALUE, 0, size, 0, 0);
    if (shared_check(w, o, m, to, (uint32_t)size, (uint32_t)size, 0)) return FAULT;
    LANES(l) {
        if (!HAS(l)) continue;
        uint64_t n = count[l] < size ? count[l] : size, address = from->at[l];
        uint8_t bytes[16] = {0};
        if (n) {
            if (address & (size - 1)) return fault(w, o, FAULT_MISALIGNED, (uint32_t)l, address, (uint32_t)size, 0);
            const Region *r = &w->launch->regions[w->launch->hint[o - w->launch->code]];
            if ((address < r->low || address + n > r->high) && check_span(w, o, (uint32_t)l, address, n, 0)) return FAULT;
        }
        if (w->launch->late) {
            Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = END_COPY_GROUP, .size = (uint32_t)size, .count = (uint32_t)n,
                      .to = to->at[l], .from = n ? address : 0};
            copy_issue(&c);
            continue;
        }
        if (n) memcpy(bytes, (const void *)address, n);
        memcpy((void *)to->at[l], bytes, size);
        mark(w->launch, to->at[l], (uint32_t)size, 0);
    }
    return NEXT;
}

/* cp.async.mbarrier.arrive: an arrival when the lane's earlier cp.async copies have landed; without noinc, one that is
 * first added to those the mbarrier waits for. `a` holds host addresses. */
COLD int copy_arrive(Warp *w, const Op *o, uint32_t m, const Addresses *a, int noinc) {
    if (mbarrier_shared(w, o, m, a)) return FAULT;
    LANES(l) {
        uint64_t before;
        if (!HAS(l)) continue;
        Change more = {noinc ? 0 : -1, 0, 0};
        if (mbarrier_change(w, o, (uint32_t)l, a->at[l], more, &before)) return FAULT;
        Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = END_MBARRIER, .barrier = a->at[l], .arrivals = 1};
        if (copy_issue(&c)) return FAULT;
    }
    return NEXT;
}

/* The CTA whose mbarrier hears of a copy into CTA `rank`: the same, or with cta_group::2 that of the pair which has the
 * parity of the mbarrier's own address. */
static inline uint64_t signalled(uint64_t barrier, uint32_t rank, int pair) {
    uint32_t at = pair ? (rank & ~1u) | (barrier >> 24 & 1) : rank;
    return (barrier & (SHARED_SLICE - 1)) | (uint64_t)at << 24;
}

/* Issues a copy into shared memory of one CTA, or with `multicast` of each of `ranks`, that tells an mbarrier. The copy
 * lacks only `to` and `barrier`, given as shared addresses. */
COLD int issue_shared(Copy *c, uint64_t to, uint32_t align, uint64_t barrier, int multicast, uint32_t ranks, int pair) {
    Warp *w = c->warp;
    int l = (int)c->lane;
    if (multicast && ranks >> w->launch->cluster_size) return fault(w, c->op, FAULT_COPY, c->lane, 0, ranks, 7);
    if (!multicast) ranks = 1;
    for (; ranks; ranks &= ranks - 1) {
        uint32_t rank = (uint32_t)__builtin_ctz(ranks);
        uint64_t target = multicast ? (to & (SHARED_SLICE - 1)) | (uint64_t)rank << 24 : to;
        uint64_t signal = multicast ? signalled(barrier, rank, pair) : barrier;
        Copy one = *c;
        if (lane_shared(w, c->op, l, target, c->size, align, 1, &one.to)) return FAULT;
        if (lane_shared(w, c->op, l, signal, 8, 8, 1, &one.barrier)) return FAULT;
        if (copy_issue(&one)) return FAULT;
    }
    return NEXT;
}

/* cp.async.bulk and cp.reduce.async.bulk into shared memory; from shared memory of the CTA, or from global memory. */
COLD int bulk_load(Warp *w, const Op *o, uint32_t m, const Addresses *to, const Addresses *from, const uint32_t *size,
                   const Addresses *barrier, int shared, const uint16_t *ranks, uint32_t operation, uint32_t type) {
    LANES(l) {
        if (!HAS(l)) continue;
        if (size[l] % 16) return fault(w, o, FAULT_COPY, (uint32_t)l, 0, size[l], 0);
        Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = END_MBARRIER, .size = size[l], .count = size[l],
                  .from = from->at[l], .bytes = size[l], .operation = operation, .type = type};
        if (shared ? lane_shared(w, o, l, from->at[l], size[l], 16, 0, &c.from) : lane_global(w, o, l, from->at[l], size[l], 16, 0))
            return FAULT;
        if (issue_shared(&c, to->at[l], 16, barrier->at[l], ranks != 0, ranks ? ranks[l] : 0, 0)) return FAULT;
    }
    return NEXT;
}

/* cp.async.bulk and cp.reduce.async.bulk from shared to global memory. */
COLD int bulk_store(Warp *w, const Op *o, uint32_t m, const Addresses *to, const Addresses *from, const uint32_t *size,
                    uint32_t operation, uint32_t type) {
    LANES(l) {
        if (!HAS(l)) continue;
        if (size[l] % 16) return fault(w, o, FAULT_COPY, (uint32_t)l, 0, size[l], 0);
        Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = END_BULK_GROUP, .size = size[l], .count = size[l],
                  .to = to->at[l], .operation = operation, .type = type};
        if (lane_shared(w, o, l, from->at[l], size[l], 16, 0, &c.from)) return FAULT;
        if (lane_global(w, o, l, to->at[l], size[l], 16, 1)) return FAULT;
        if (copy_issue(&c)) return FAULT;
    }
    return NEXT;
}

/* st.async and red.async: `size` bytes of value[l] to shared memory of the cluster. */
COLD int store_async(Warp *w, const Op *o, uint32_t m, const Addresses *to, const Addresses *barrier, const uint8_t (*value)[16],
                     uint32_t size, uint32_t operation, uint32_t type) {
    LANES(l) {
        if (!HAS(l)) continue;
        Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = END_MBARRIER, .size = size, .count = size, .bytes = size,
                  .operation = operation, .type = type};
        memcpy(c.value, value[l], 16);
        if (issue_shared(&c, to->at[l], size, barrier->at[l], 0, 0, 0)) return FAULT;
    }
    return NEXT;
}

/* Which reductions the elements of a tensor have. */
static inline int box_reduces(uint32_t operation, uint32_t type) {
    if (operation == REDUCE_MOVE) return 1;
    if (type == ELEMENT_F16 || type == ELEMENT_BF16) return operation <= REDUCE_MAX;
    if (type == ELEMENT_F32 || type == ELEMENT_F32_FTZ || type == ELEMENT_F64) return operation == REDUCE_ADD;
    return type >= ELEMENT_U32 && type <= ELEMENT_S64;
}

/* Tensor copies, with the limits that an H200 meets with an illegal instruction. map: host addresses of tensor maps; at: coordinates; shared: the box in shared memory; barrier: of a load,
 * or 0 for a store; ranks: of a multicast, or 0. */
COLD int box_issue(Warp *w, const Op *o, uint32_t m, const Addresses *map, uint32_t rank, const int32_t (*at)[32],
                      const Addresses *shared, const Addresses *barrier, const uint16_t *ranks, int pair, uint32_t operation) {
    LANES(l) {
        if (!HAS(l)) continue;
        TensorMap t;
        uint32_t problem = map_decode((const uint8_t *)map->at[l], rank, &t);
        if (!problem && !box_reduces(operation, t.type)) problem = 8;
        if (problem) return fault(w, o, FAULT_COPY, (uint32_t)l, map->at[l], problem == 5 ? t.rank : t.bytes, problem);
        uint32_t size = map_shared_bytes(&t);
        Copy c = {.warp = w, .op = o, .lane = (uint32_t)l, .end = barrier ? END_MBARRIER : END_BULK_GROUP, .size = size, .count = size,
                  .operation = operation, .type = t.type, .tensor = &t, .store = !barrier};
        for (uint32_t d = 0; d < rank; d++) c.at[d] = at[d][l];
        int64_t first = (int64_t)c.at[0] * t.bytes;
        if (first % 16) return fault(w, o, FAULT_COPY, (uint32_t)l, 0, (uint32_t)c.at[0], 13);
        for (uint32_t d = 0; d < rank && !barrier; d++)
            if (c.at[d] < 0) return fault(w, o, FAULT_COPY, (uint32_t)l, 0, (uint32_t)c.at[d], 14);
        if (box_pass(&c, CHECK)) return FAULT;
        if (barrier) {
            c.bytes = map_box_bytes(&t);
            if (issue_shared(&c, shared->at[l], 128, barrier->at[l], ranks != 0, ranks ? ranks[l] : 0, pair)) return FAULT;
            continue;
        }
        if (lane_shared(w, o, l, shared->at[l], size, 128, 0, &c.from)) return FAULT;
        if (copy_issue(&c)) return FAULT;
    }
    return NEXT;
}

#endif
