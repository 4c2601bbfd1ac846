/* What a launch is asked to do, and how a warp starts: its lanes, and the special values in its registers. */
#ifndef EQUIV_REQUEST_H
#define EQUIV_REQUEST_H

#include "runtime.h"

/* In the order of equiv.emulator.decode.SPECIALS. */
typedef enum {
    TID_X, TID_Y, TID_Z, NTID_X, NTID_Y, NTID_Z, CTAID_X, CTAID_Y, CTAID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, LANEID, WARPID,
    NWARPID, LANEMASK_EQ, LANEMASK_LT, LANEMASK_LE, LANEMASK_GT, LANEMASK_GE, CLUSTERID_X, CLUSTERID_Y, CLUSTERID_Z,
    NCLUSTERID_X, NCLUSTERID_Y, NCLUSTERID_Z, CLUSTER_CTAID_X, CLUSTER_CTAID_Y, CLUSTER_CTAID_Z, CLUSTER_NCTAID_X,
    CLUSTER_NCTAID_Y, CLUSTER_NCTAID_Z, CLUSTER_CTARANK, CLUSTER_NCTARANK, SMID, NSMID, GRIDID, DYNAMIC_SMEM_SIZE,
    TOTAL_SMEM_SIZE, ZERO, SHARED_ADDRESS, ALWAYS
} SpecialKind;

typedef struct { uint32_t kind, offset, bytes, value; } Special;

/* What waits, for the deadlock report. */
typedef struct { uint32_t cta, warp, pc, mask, wait, id, need, arrived, missing, expected; int32_t bytes; uint32_t expect, complete; } Waiting;

typedef struct {
    Launch *launch;
    const Special *specials;
    uint32_t special_count, regs_size, dynamic_shared, shuffled, code_length, reserved;
    uint64_t seed;
    Waiting *waiting;
    uint32_t waiting_capacity, waiting_count;
    uint32_t checks;   /* whether shared memory is watched: 0, or by units of so many bytes */
    uint32_t may_spin; /* whether the kernel may wait for other CTAs through global memory */
} Request;

static uint32_t special_value(const Warp *w, const Request *r, const Special *s, uint32_t lane) {
    const Launch *g = w->launch;
    const Cta *c = w->cta;
    uint32_t t = w->id * 32 + lane, rank = c->rank;
    switch ((SpecialKind)s->kind) {
    case TID_X: return t % g->block[0];
    case TID_Y: return t / g->block[0] % g->block[1];
    case TID_Z: return t / g->block[0] / g->block[1];
    case NTID_X: case NTID_Y: case NTID_Z: return g->block[s->kind - NTID_X];
    case CTAID_X: case CTAID_Y: case CTAID_Z: return c->index[s->kind - CTAID_X];
    case NCTAID_X: case NCTAID_Y: case NCTAID_Z: return g->grid[s->kind - NCTAID_X];
    case LANEID: return lane;
    case WARPID: return w->id;
    case NWARPID: return c->warps;
    case LANEMASK_EQ: return 1u << lane;
    case LANEMASK_LT: return (1u << lane) - 1;
    case LANEMASK_LE: return (2u << lane) - 1;
    case LANEMASK_GT: return ~((2u << lane) - 1);
    case LANEMASK_GE: return ~((1u << lane) - 1);
    case CLUSTERID_X: case CLUSTERID_Y: case CLUSTERID_Z:
        return c->index[s->kind - CLUSTERID_X] / g->cluster[s->kind - CLUSTERID_X];
    case NCLUSTERID_X: case NCLUSTERID_Y: case NCLUSTERID_Z:
        return g->grid[s->kind - NCLUSTERID_X] / g->cluster[s->kind - NCLUSTERID_X];
    case CLUSTER_CTAID_X: return rank % g->cluster[0];
    case CLUSTER_CTAID_Y: return rank / g->cluster[0] % g->cluster[1];
    case CLUSTER_CTAID_Z: return rank / g->cluster[0] / g->cluster[1];
    case CLUSTER_NCTAID_X: case CLUSTER_NCTAID_Y: case CLUSTER_NCTAID_Z: return g->cluster[s->kind - CLUSTER_NCTAID_X];
    case CLUSTER_CTARANK: return rank;
    case CLUSTER_NCTARANK: return g->cluster_size;
    case SMID: return c->linear % 132;
    case NSMID: return 132;
    case DYNAMIC_SMEM_SIZE: return r->dynamic_shared;
    case TOTAL_SMEM_SIZE: return g->shared_size;
    case SHARED_ADDRESS: return (rank << 24) + SHARED_RESERVED + s->value;
    case GRIDID: case ZERO: return 0;
    case ALWAYS: return FULL;
    }
    return 0;
}

static void start_warp(Warp *w, const Request *r) {
    uint32_t threads = w->launch->block[0] * w->launch->block[1] * w->launch->block[2], left = threads - w->id * 32;
    w->live = w->active = left >= 32 ? FULL : (1u << left) - 1;
    w->pc = 0;
    w->next = NEVER;
    w->fragments = 0;
    w->carry = 0;
    w->expired = 0;
    w->clock = 0;
    w->landings = w->wgmma_group = 0;
    memset(w->cluster_phase, 0, sizeof w->cluster_phase);
    memset(w->copy_group, 0, sizeof w->copy_group);
    memset(w->bulk_group, 0, sizeof w->bulk_group);
    for (uint32_t i = 0; i < r->special_count; i++) {
        const Special *s = &r->specials[i];
        uint8_t *at = w->regs + s->offset;
        if (s->kind == ALWAYS) memcpy(at, &(uint32_t){FULL}, 4);
        else LANES(l) {
            uint64_t value = special_value(w, r, s, (uint32_t)l);
            memcpy(at + (uint32_t)l * s->bytes, &value, s->bytes);
        }
    }
}

#endif
