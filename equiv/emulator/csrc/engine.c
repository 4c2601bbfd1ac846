/* The scheduler: runs a grid, cluster after cluster, warp after warp, until every lane has exited, a fault, or a deadlock. */
#include <fenv.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "sync.h"

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
typedef struct { uint32_t cta, warp, pc, mask, wait, id, need, arrived; } Waiting;

typedef struct {
    Launch *launch;
    const Special *specials;
    uint32_t special_count, regs_size, dynamic_shared, shuffled;
    uint64_t seed;
    Waiting *waiting;
    uint32_t waiting_capacity, waiting_count;
} Request;

static uint64_t random_next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Makes the ready fragment at the lowest pc the running one, merged with all others there. Returns 0 if none is ready. */
static int select_fragment(Warp *w) {
    if (w->active) add_fragment(w, w->active, w->pc, READY, 0, 0);
    uint32_t pc = NEVER, next = NEVER, mask = 0;
    for (uint32_t i = 0; i < w->fragments; i++)
        if (w->fragment[i].wait == READY && w->fragment[i].pc < pc) pc = w->fragment[i].pc;
    for (uint32_t i = 0; i < w->fragments;) {
        Fragment *f = &w->fragment[i];
        if (f->wait == READY && f->pc == pc) {
            mask |= f->mask;
            remove_fragment(w, i);
            continue;
        }
        if (f->wait == READY && f->pc < next) next = f->pc;
        i++;
    }
    w->pc = pc;
    w->next = next;
    w->active = mask;
    return mask != 0;
}

/* Wakes fragments whose wait is a condition on state rather than an event. Returns whether the warp can run. */
static int can_run(Warp *w) {
    int ready = w->active != 0;
    for (uint32_t i = 0; i < w->fragments; i++) {
        Fragment *f = &w->fragment[i];
        if (f->wait == WAIT_CLUSTER && w->launch->cluster_phase >= f->need) wake(w, f);
        ready |= f->wait == READY;
    }
    return ready;
}

/* Runs a warp until it waits, is done, or has used its quantum. */
static int run_warp(Warp *w, uint64_t quantum) {
    Launch *launch = w->launch;
    const Op *code = launch->code;
    uint8_t *regs = w->regs;
    uint64_t count = 0, lanes = 0;
    int result = NEXT;
    if (!select_fragment(w)) return NEXT;
    uint32_t pc = w->pc;
    for (;;) {
        const Op *o = code + pc;
        uint32_t m = w->active & (*(uint32_t *)(regs + o->guard) ^ o->flip);
        count++;
        if (__builtin_expect(m != 0, 1)) {
            lanes += (uint64_t)__builtin_popcount(m);
            result = o->run(w, o, m);
        } else result = NEXT;
        if (__builtin_expect(result == NEXT, 1)) {
            pc++;
            if (__builtin_expect(pc < w->next, 1)) continue;
            w->pc = pc;
        } else if (result == FAULT) break;
        if ((!w->active || w->pc >= w->next) && !select_fragment(w)) break;
        pc = w->pc;
        if (count >= quantum) break;
    }
    launch->instructions += count;
    launch->lane_instructions += lanes;
    if (result != FAULT && launch->instructions > launch->budget) {
        uint32_t at = w->active ? w->pc : (w->fragments ? w->fragment[0].pc : 0);
        return fault(w, code + at, FAULT_BUDGET, 0, launch->budget, 0, 0);
    }
    return result == FAULT ? FAULT : NEXT;
}

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
    memset(w->cluster_phase, 0, sizeof w->cluster_phase);
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

static void report_waiting(Request *r, Warp *const *warps, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const Warp *w = warps[i];
        for (uint32_t k = 0; k < w->fragments; k++) {
            const Fragment *f = &w->fragment[k];
            uint32_t arrived = 0;
            if (f->wait == WAIT_BARRIER)
                for (uint32_t j = 0; j < w->cta->warps; j++)
                    arrived += (uint32_t)__builtin_popcount(w->cta->barrier[f->id].arrived[j]);
            Waiting one = {w->cta->linear, w->id, f->pc, f->mask, f->wait, f->id, f->need, arrived};
            if (r->waiting_count < r->waiting_capacity) r->waiting[r->waiting_count] = one;
            r->waiting_count++;
        }
    }
}

static int run_cluster(Request *r, Warp **warps, uint32_t count, uint64_t *state) {
    Launch *launch = r->launch;
    for (;;) {
        int alive = 0, progress = 0;
        if (r->shuffled)
            for (uint32_t i = count - 1; i > 0; i--) {
                uint32_t j = (uint32_t)(random_next(state) % (i + 1));
                Warp *t = warps[i];
                warps[i] = warps[j];
                warps[j] = t;
            }
        for (uint32_t i = 0; i < count; i++) {
            Warp *w = warps[i];
            if (!w->live) continue;
            alive = 1;
            if (!can_run(w)) continue;
            progress = 1;
            if (run_warp(w, r->shuffled ? 1 + random_next(state) % 1000 : 100000) == FAULT) return FAULT;
        }
        if (!alive) return NEXT;
        if (!progress) {
            launch->fault.kind = FAULT_DEADLOCK;
            report_waiting(r, warps, count);
            return FAULT;
        }
    }
}

static int run_grid(Request *r, Cta *ctas, Warp *all, Warp **warps) {
    Launch *g = r->launch;
    uint32_t n = g->cluster_size, per = ctas[0].warps;
    uint64_t state = r->seed;
    for (uint32_t z = 0; z < g->grid[2]; z += g->cluster[2])
        for (uint32_t y = 0; y < g->grid[1]; y += g->cluster[1])
            for (uint32_t x = 0; x < g->grid[0]; x += g->cluster[0]) {
                g->cluster_phase = 0;
                for (uint32_t i = 0; i < n; i++) {
                    Cta *c = &ctas[i];
                    c->index[0] = x + i % g->cluster[0];
                    c->index[1] = y + i / g->cluster[0] % g->cluster[1];
                    c->index[2] = z + i / g->cluster[0] / g->cluster[1];
                    c->linear = (c->index[2] * g->grid[1] + c->index[1]) * g->grid[0] + c->index[0];
                    memset(g->window + (size_t)i * SHARED_SLICE + SHARED_RESERVED, 0xff, g->shared_size);
                    for (uint32_t b = 0; b < BARRIERS; b++) {
                        c->barrier[b].threads = 0;
                        memset(c->barrier[b].arrived, 0, per * sizeof(uint32_t));
                    }
                    for (uint32_t k = 0; k < per; k++) start_warp(&c->warp[k], r);
                }
                for (uint32_t i = 0; i < n * per; i++) warps[i] = &all[i];
                if (run_cluster(r, warps, n * per, &state) == FAULT) return FAULT;
            }
    return NEXT;
}

/* The handler of instructions without effect on values. */
int equiv_nothing(Warp *w, const Op *o, uint32_t m) {
    (void)w, (void)o, (void)m;
    return NEXT;
}

/* Runs the launch that `r` describes. Returns 0, 1 after a fault (described in r->launch->fault), or -1 without memory. */
int equiv_launch(Request *r) {
    Launch *g = r->launch;
    uint32_t n = g->cluster_size, threads = g->block[0] * g->block[1] * g->block[2], per = (threads + 31) / 32;
    size_t regs = ((size_t)r->regs_size + 63) / 64 * 64 + 64, local = (size_t)g->local_size * 32, window = (size_t)n * SHARED_SLICE;
    int result = -1;
    fenv_t environment;
    Cta *ctas = calloc(n, sizeof *ctas);
    Warp *all = calloc((size_t)n * per, sizeof *all), **warps = calloc((size_t)n * per, sizeof *warps);
    uint32_t *arrived = calloc((size_t)n * per * BARRIERS, sizeof *arrived);
    uint8_t *files = aligned_alloc(64, regs * n * per), *locals = calloc(local * n * per + 1, 1);
    g->window = mmap(0, window, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (g->window == MAP_FAILED) g->window = 0;
    if (!ctas || !all || !warps || !arrived || !files || !locals || !g->window) goto done;
    memset(files, 0xff, regs * n * per);
    for (uint32_t i = 0; i < n; i++) {
        ctas[i].rank = i;
        ctas[i].warps = per;
        ctas[i].warp = all + (size_t)i * per;
        for (uint32_t b = 0; b < BARRIERS; b++) ctas[i].barrier[b].arrived = arrived + ((size_t)i * BARRIERS + b) * per;
        for (uint32_t k = 0; k < per; k++) {
            Warp *w = &ctas[i].warp[k];
            w->cta = &ctas[i];
            w->launch = g;
            w->id = k;
            w->regs = files + regs * (i * per + k);
            w->local = locals + local * (i * per + k);
        }
    }
    g->ctas = ctas;
    fegetenv(&environment); /* the caller may have set rounding or flushing modes; the handlers need the default ones */
    fesetenv(FE_DFL_ENV);
    result = run_grid(r, ctas, all, warps);
    fesetenv(&environment);
    result = result == FAULT;
done:
    if (g->window) munmap(g->window, window);
    free(locals);
    free(files);
    free(arrived);
    free(warps);
    free(all);
    free(ctas);
    return result;
}
