/* Asynchronous copies: cp.async, bulk copies and reductions, tensor copies, st.async.
 *
 * A copy is described once (`Copy`) and lands either when it is issued, or, in a launch with `late`, as late as PTX allows:
 * when the issuing thread waits for its group, or when everybody waits and somebody waits for its mbarrier. Until then its
 * destination holds 0xff bytes. Both are legal; a correct kernel gives the same bits. */
#ifndef EQUIV_ASYNC_H
#define EQUIV_ASYNC_H

#include <stdlib.h>

#include "half.h"
#include "mbarrier.h"
#include "tensormap.h"

/* What ends a copy: a group of cp.async or of bulk copies of one thread, or bytes or an arrival counted by an mbarrier. */
typedef enum { END_COPY_GROUP, END_BULK_GROUP, END_MBARRIER } End;

typedef struct Copy {
    Warp *warp;
    const Op *op;
    uint32_t lane, end, group;
    uint32_t size, count;   /* bytes written; bytes read, the rest is zero */
    uint64_t to, from;      /* host addresses; from 0: the bytes are in `value` */
    uint32_t operation;     /* of a reduction, else MOVE */
    uint32_t type;          /* of a reduction's elements */
    uint32_t bytes;         /* that the mbarrier counts */
    uint64_t barrier;       /* host address of the mbarrier, or 0 */
    int32_t arrivals;       /* at it, when all earlier copies of the thread have landed (cp.async.mbarrier.arrive) */
    uint32_t landed, clock; /* clock: for race.h */
    uint8_t *staged;        /* the source, read before the copy lands */
    TensorMap *tensor;         /* of a tensor copy; `to` or `from` is then its shared side */
    int32_t at[5];
    uint32_t store;         /* a tensor copy from shared to global memory */
    uint8_t value[16];
} Copy;

struct Queue {
    Copy *copy;
    uint32_t count, capacity, left; /* left: copies that have not landed */
};

static inline uint64_t reduce_integer(uint32_t operation, uint64_t x, uint64_t y, uint32_t bits, int is_signed) {
    uint64_t sign = is_signed ? 1ull << (bits - 1) : 0;
    switch (operation) {
    case REDUCE_ADD: return x + y;
    case REDUCE_MIN: return (y ^ sign) < (x ^ sign) ? y : x;
    case REDUCE_MAX: return (y ^ sign) > (x ^ sign) ? y : x;
    case REDUCE_INC: return x >= y ? 0 : x + 1;
    case REDUCE_DEC: return x == 0 || x > y ? y : x - 1;
    case REDUCE_AND: return x & y;
    case REDUCE_OR: return x | y;
    default: return x ^ y;
    }
}

/* x: what memory holds; y: what is added to it. */
static inline uint64_t reduce_element(uint32_t operation, uint32_t type, uint64_t x, uint64_t y) {
    switch (type) {
    case ELEMENT_F16:
        return operation == REDUCE_ADD   ? f16_add((uint32_t)x, (uint32_t)y)
               : operation == REDUCE_MIN ? f16_min((uint32_t)x, (uint32_t)y)
                                         : f16_max((uint32_t)x, (uint32_t)y);
    case ELEMENT_BF16:
        return operation == REDUCE_ADD   ? bf16_add((uint32_t)x, (uint32_t)y)
               : operation == REDUCE_MIN ? bf16_min((uint32_t)x, (uint32_t)y)
                                         : bf16_max((uint32_t)x, (uint32_t)y);
    case ELEMENT_F32: return eq_add_rn((uint32_t)x, (uint32_t)y);
    case ELEMENT_F32_FTZ: return eq_add_rn_ftz((uint32_t)x, (uint32_t)y);
    case ELEMENT_F64: return eq64_add_rn(x, y);
    case ELEMENT_S32: return reduce_integer(operation, x, y, 32, 1);
    case ELEMENT_S64: return reduce_integer(operation, x, y, 64, 1);
    case ELEMENT_U64: return reduce_integer(operation, x, y, 64, 0);
    default: return reduce_integer(operation, x, y, 32, 0);
    }
}

static inline void reduce_bytes(Launch *launch, uint32_t operation, uint32_t type, uint8_t *to, const uint8_t *from, uint32_t size) {
    uint32_t each = element_bytes(type);
    for (uint32_t i = 0; i + each <= size; i += each) {
        uint64_t x = 0, y = 0;
        memcpy(&x, to + i, each);
        memcpy(&y, from + i, each);
        x = reduce_element(operation, type, x, y);
        memcpy(to + i, &x, each);
        if (operation == REDUCE_ADD && type >= ELEMENT_F16) launch->order_dependent++;
    }
}

/* One row of a tensor copy to global memory. */
static inline void box_store_row(Launch *launch, const Copy *c, uint8_t *to, const uint8_t *from, uint32_t size) {
    if (c->operation == REDUCE_MOVE) memcpy(to, from, size);
    else reduce_bytes(launch, c->operation, c->type, to, from, size);
}

/* Marks a row of a box in shared memory as `mark` does. */
static inline void mark_row(const Launch *launch, const TensorMap *t, const uint8_t *box, uint32_t row, int poison) {
    for (uint32_t i = 0; i < t->extent[0] * t->bytes; i += 16)
        mark(launch, map_swizzle(t->swizzle, (uint64_t)(uintptr_t)box + (uint64_t)row * t->pitch + i), 16, poison);
}

/* How many bytes of the source of a copy in shared memory nobody has written. */
COLD uint32_t source_unwritten(const Launch *launch, const Copy *c) {
    const TensorMap *t = c->tensor;
    uint32_t count = 0, row = t ? t->extent[0] * t->bytes : 0;
    if (!t) return unwritten(launch, c->from, c->count);
    for (uint32_t r = 0; r < c->size / row; r++)
        for (uint32_t i = 0; i < row; i += 16)
            count += unwritten(launch, map_swizzle(t->swizzle, c->from + (uint64_t)r * t->pitch + i), 16);
    return count;
}

typedef enum { CHECK, POISON, STAGE, LAND } Pass;

/* Visits the rows of a tensor copy's box. CHECK: faults on global addresses out of bounds. STAGE: reads shared memory. */
COLD int box_pass(Copy *c, Pass pass) {
    const TensorMap *t = c->tensor;
    Warp *w = c->warp;
    uint32_t row_bytes = t->extent[0] * t->bytes, row = 0, count[5] = {0};
    uint8_t bytes[MAX_ROW];
    uint8_t *shared = (uint8_t *)(c->store ? c->from : c->to);
    for (;; row++) {
        uint64_t address = t->base;
        int inside = 1;
        for (uint32_t d = 1; d < t->rank; d++) {
            int64_t index = (int64_t)c->at[d] + (int64_t)count[d] * t->step[d];
            if (index < 0 || index >= (int64_t)t->dim[d]) inside = 0;
            else address += (uint64_t)index * t->stride[d];
        }
        int64_t low = c->at[0] < 0 ? -(int64_t)c->at[0] : 0, high = (int64_t)t->dim[0] - c->at[0];
        if (high > (int64_t)t->extent[0]) high = t->extent[0];
        if (!inside || low >= high) low = high = 0;
        address += (uint64_t)((c->at[0] + low) * (int64_t)t->bytes);
        uint32_t part = (uint32_t)((high - low) * t->bytes), skip = (uint32_t)low * t->bytes;
        if (pass == CHECK) {
            if (part && check_span(w, c->op, c->lane, address, part, (int)c->store)) return FAULT;
        } else if (pass == POISON) {
            memset(bytes, 0xff, row_bytes);
            if (!c->store) {
                map_row(t, shared, row, bytes, 1);
                mark_row(w->launch, t, shared, row, 1);
            }
            else if (c->operation == REDUCE_MOVE) memcpy((void *)address, bytes, part);
        } else if (pass == STAGE) {
            map_row(t, shared, row, c->staged + (size_t)row * row_bytes, 0);
        } else if (c->store) {
            if (c->staged) memcpy(bytes, c->staged + (size_t)row * row_bytes, row_bytes);
            else map_row(t, shared, row, bytes, 0);
            if (part) box_store_row(w->launch, c, (uint8_t *)address, bytes + skip, part);
        } else {
            map_fill(t, bytes, row_bytes);
            if (part) memcpy(bytes + skip, (const void *)address, part);
            map_row(t, shared, row, bytes, 1);
            mark_row(w->launch, t, shared, row, 0);
        }
        uint32_t d = 1;
        while (d < t->rank && ++count[d] == t->extent[d]) count[d++] = 0;
        if (d >= t->rank) return NEXT;
    }
}

static inline void copy_bytes(Copy *c) {
    uint8_t *to = (uint8_t *)c->to;
    const uint8_t *from = c->staged ? c->staged : c->from ? (const uint8_t *)c->from : c->value;
    if (c->operation != REDUCE_MOVE) {
        reduce_bytes(c->warp->launch, c->operation, c->type, to, from, c->size);
        mark(c->warp->launch, c->to, c->size, 0);
        return;
    }
    memmove(to, from, c->count);
    memset(to + c->count, 0, c->size - c->count);
    mark(c->warp->launch, c->to, c->size, 0);
}

/* Reads the source of a copy now; what its thread then stores there no longer matters. */
COLD int copy_stage(Copy *c) {
    if (c->staged || !c->from) return NEXT;
    c->staged = malloc(c->tensor ? map_box_bytes(c->tensor) : c->size);
    if (!c->staged) abort();
    if (c->tensor) return box_pass(c, STAGE);
    memcpy(c->staged, (const void *)c->from, c->count);
    return NEXT;
}

/* Lets a copy happen and tells its mbarrier. */
COLD int copy_land(Copy *c) {
    uint64_t before;
    Change change = {c->arrivals, 0, -(int64_t)c->bytes};
    if (c->tensor) box_pass(c, LAND);
    else if (c->size) copy_bytes(c);
    c->warp->launch->events++;
    if (c->warp->launch->observer) c->warp->launch->observer->land(c);
    if (!c->barrier) return NEXT;
    return mbarrier_change(c->warp, c->op, c->lane, c->barrier, change, &before);
}

/* Starts a copy whose addresses have been checked. */
COLD int copy_issue(Copy *c) {
    Launch *launch = c->warp->launch;
    if (c->from && launch->watch && in_window(launch, c->from) &&
        read_block(c->warp, c->op, c->lane, c->from, source_unwritten(launch, c), c->tensor ? c->size : c->count))
        return FAULT;
    if (launch->observer && launch->observer->issue(c)) return FAULT;
    if (!launch->late) return copy_land(c);
    struct Queue *q = launch->queue;
    c->group = c->end == END_COPY_GROUP ? c->warp->copy_group[c->lane] : c->warp->bulk_group[c->lane];
    if (c->tensor) {
        TensorMap *own = malloc(sizeof *own);
        if (!own) abort();
        *own = *c->tensor;
        c->tensor = own;
        box_pass(c, POISON);
    } else if (c->operation == REDUCE_MOVE && c->size) {
        memset((void *)c->to, 0xff, c->size);
        mark(launch, c->to, c->size, 1);
    }
    if (q->left == 0) q->count = 0;
    if (q->count == q->capacity) {
        q->capacity = q->capacity ? q->capacity * 2 : 64;
        q->copy = realloc(q->copy, q->capacity * sizeof *q->copy);
        if (!q->copy) abort();
    }
    q->copy[q->count++] = *c;
    q->left++;
    return NEXT;
}

static inline int queue_land(struct Queue *q, Copy *c) {
    int result = copy_land(c);
    q->left--;
    c->landed = 1;
    free(c->staged);
    free(c->tensor);
    c->staged = 0;
    c->tensor = 0;
    return result;
}

/* Lanes of `m` wait until at most `pending[l]` of their latest groups are under way. `reading`: only sources are read. */
COLD int copy_wait(Warp *w, uint32_t m, uint32_t end, uint32_t pending, int reading, int all) {
    struct Queue *q = w->launch->queue;
    const uint32_t *group = end == END_COPY_GROUP ? w->copy_group : w->bulk_group;
    if (!w->launch->late) return NEXT;
    for (uint32_t i = 0; i < q->count; i++) {
        Copy *c = &q->copy[i];
        if (c->landed || c->warp != w || !HAS(c->lane) || c->end != end) continue;
        if (!all && (uint64_t)c->group + pending >= group[c->lane]) continue;
        if (reading ? copy_stage(c) : queue_land(q, c)) return FAULT;
    }
    return NEXT;
}

/* The arrival of cp.async.mbarrier.arrive counts once the thread's earlier cp.async copies have landed. */
static inline int queue_land_before(struct Queue *q, uint32_t last) {
    Copy *arrive = &q->copy[last];
    for (uint32_t i = 0; arrive->arrivals && i < last; i++) {
        Copy *c = &q->copy[i];
        if (!c->landed && c->end == END_COPY_GROUP && c->warp == arrive->warp && c->lane == arrive->lane && queue_land(q, c))
            return FAULT;
    }
    return queue_land(q, arrive);
}

/* Nobody can go on: lands the copies whose mbarrier somebody waits for, or, if there are none, all that tell an mbarrier.
 * Sets `*landed` if there were any. */
COLD int queue_force(Launch *launch, int *landed) {
    struct Queue *q = launch->queue;
    *landed = 0;
    for (int any = 0; any < 2 && !*landed; any++)
        for (uint32_t i = 0; i < q->count; i++) {
            Copy *c = &q->copy[i];
            if (c->landed || c->end != END_MBARRIER) continue;
            uint32_t address = (uint32_t)(c->barrier - (uint64_t)(uintptr_t)launch->window), wanted = (uint32_t)any;
            for (uint32_t r = 0; r < launch->cluster_size && !wanted; r++)
                for (uint32_t k = 0; k < launch->ctas[r].warps; k++)
                    for (uint32_t f = 0; f < launch->ctas[r].warp[k].fragments; f++) {
                        const Fragment *one = &launch->ctas[r].warp[k].fragment[f];
                        wanted |= one->wait == WAIT_MBARRIER && one->id == address;
                    }
            if (!wanted) continue;
            *landed = 1;
            if (queue_land_before(q, i)) return FAULT;
        }
    return NEXT;
}

/* Whether a bulk copy, a tensor copy or a st.async still needs shared memory. */
static inline int needs_shared(const Launch *launch, const Copy *c) {
    if (c->end == END_BULK_GROUP) return !c->staged && in_window(launch, c->from);
    return c->end == END_MBARRIER && !c->arrivals && in_window(launch, c->to);
}

/* At the end of a cluster: what nobody waited for lands, too, but by then there may be no shared memory to read or write. */
COLD int queue_finish(Launch *launch) {
    struct Queue *q = launch->queue;
    for (uint32_t i = 0; i < q->count; i++) {
        Copy *c = &q->copy[i];
        if (c->landed) continue;
        if (launch->watch && needs_shared(launch, c)) return fault(c->warp, c->op, FAULT_COPY, c->lane, 0, c->size, 15);
        if (queue_land(q, c)) return FAULT;
    }
    q->count = 0;
    return NEXT;
}

#endif
