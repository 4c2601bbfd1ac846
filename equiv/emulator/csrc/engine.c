/* The scheduler: runs a grid, cluster after cluster, warp after warp, until every lane has exited, a fault, or a deadlock.
 *
 * When nobody of a cluster can go on, in this order: copies that somebody waits for land (late launches), polled mbarriers
 * give false, and after EXPIRIES times of that it is a deadlock. When warps only spin, the same, and then more clusters are
 * started and run in turns, because a grid may communicate through global memory. */
#include <fenv.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "race.h"
#include "sync.h"
#include "request.h"
#include "tensor_state.h"
#include "watched.h"

#define QUANTUM 100000      /* instructions a warp runs before it is another's turn */
#define SPIN_QUANTUM 2000   /* the same while warps spin */
#define EXPIRIES 8          /* times that every wait for an mbarrier gives false without anything else happening */

/* A cluster on its way, with the memory it needs. */
typedef struct Running {
    struct Running *next;
    Cta *ctas;
    Warp *all, **warps;
    uint32_t *arrived;
    uint8_t *files, *locals, *window;
    uint32_t phase, expiries, spinning;
    uint64_t events;
    struct Queue queue;
    struct Watch watch;
    struct Race *race;
} Running;

typedef enum { DONE = 10, MOVING, SPINNING, STUCK } Round;

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
        if (f->wait == WAIT_CLUSTER && w->launch->cluster_phase >= f->need) {
            wake(w, f);
            OBSERVE(w->launch, w, 0, EVENT_CLUSTER_PASS, 0);
        }
        if (f->wait == WAIT_MBARRIER && mbarrier_over(w->launch, f)) wake(w, f);
        if (f->wait == WAIT_TENSOR && tensor_room(w->cta->tensor, f->id) < TENSOR_UNITS) wake(w, f);
        ready |= f->wait == READY;
    }
    return ready;
}

/* Runs a warp until it waits, is done, or has used its quantum; sets `*used` in the last case. */
static int run_warp(Warp *w, uint64_t quantum, int *used) {
    Launch *launch = w->launch;
    const Op *code = launch->code;
    uint8_t *regs = w->regs;
    uint64_t began = w->clock, lanes = 0;
    int result = NEXT;
    if (!select_fragment(w)) return NEXT;
    uint32_t pc = w->pc;
    for (;;) {
        const Op *o = code + pc;
        uint32_t m = w->active & (*(uint32_t *)(regs + o->guard) ^ o->flip);
        w->clock++;
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
        if (w->clock - began >= quantum) break;
    }
    uint64_t count = w->clock - began;
    *used = count >= quantum;
    launch->instructions += count;
    launch->lane_instructions += lanes;
    if (result != FAULT && launch->instructions > launch->budget) {
        uint32_t at = w->active ? w->pc : (w->fragments ? w->fragment[0].pc : 0);
        return fault(w, code + at, FAULT_BUDGET, 0, launch->budget, 0, 0);
    }
    return result == FAULT ? FAULT : NEXT;
}

static void report_waiting(Request *r, Warp *const *warps, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const Warp *w = warps[i];
        for (uint32_t k = 0; k < w->fragments; k++) {
            const Fragment *f = &w->fragment[k];
            Waiting one = {w->cta->linear, w->id, f->pc, f->mask, f->wait, f->id, f->need, 0, 0, 0, 0, NEVER, NEVER};
            if (f->wait == WAIT_BARRIER)
                for (uint32_t j = 0; j < w->cta->warps; j++)
                    one.arrived += (uint32_t)__builtin_popcount(w->cta->barrier[f->id].arrived[j]);
            if (f->wait == WAIT_MBARRIER) {
                uint64_t word;
                Mbarrier b;
                memcpy(&word, w->launch->window + f->id, 8);
                mbarrier_read(word, &b);
                one.missing = b.pending;
                one.expected = b.count;
                one.bytes = (int32_t)b.tx;
                const BarrierRecord *record = barrier_record(w->launch, f->id);
                if (record) one.expect = record->expect, one.complete = record->complete;
            }
            if (r->waiting_count < r->waiting_capacity) r->waiting[r->waiting_count] = one;
            r->waiting_count++;
        }
    }
}

static void shuffle(Warp **warps, uint32_t count, uint64_t *state) {
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(random_next(state) % (i + 1));
        Warp *t = warps[i];
        warps[i] = warps[j];
        warps[j] = t;
    }
}

/* Every wait for an mbarrier ends without it. Returns whether there was one. */
static int expire(Running *c, uint32_t count) {
    int any = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < c->warps[i]->fragments; k++) {
            Fragment *f = &c->warps[i]->fragment[k];
            if (f->wait != WAIT_MBARRIER) continue;
            c->warps[i]->expired |= f->mask;
            wake(c->warps[i], f);
            any = 1;
        }
    return any;
}

/* Lets every warp of a cluster run once. */
static int run_round(Request *r, Running *c, uint32_t count, uint64_t *state) {
    Launch *g = r->launch;
    int alive = 0, ran = 0, spin = 1, landed = 0;
    uint64_t quantum = c->spinning ? SPIN_QUANTUM : QUANTUM, before = g->events;
    if (r->shuffled) shuffle(c->warps, count, state);
    for (uint32_t i = 0; i < count; i++) {
        Warp *w = c->warps[i];
        int used = 0;
        if (!w->live) continue;
        alive = 1;
        if (!can_run(w)) continue;
        ran = 1;
        if (run_warp(w, r->shuffled ? 1 + random_next(state) % 1000 : quantum, &used) == FAULT) return FAULT;
        spin &= used;
    }
    if (!alive) {
        if (queue_finish(g) == FAULT || mbarriers_finish(g) == FAULT || (g->race && race_finish(g) == FAULT)) return FAULT;
        for (uint32_t i = 0; i < g->cluster_size; i++) {
            uint32_t columns = tensor_used(c->ctas[i].tensor);
            if (columns) return fault(c->ctas[i].warp, g->code + r->code_length - 1, FAULT_MATRIX, 0, columns, 0, TENSOR_LEAK);
        }
        return DONE;
    }
    if (g->events != before) {
        c->expiries = c->spinning = 0;
        return MOVING;
    }
    if (ran && !spin) return MOVING;
    if (queue_force(g, &landed) == FAULT) return FAULT;
    if (landed) return MOVING;
    c->spinning = (uint32_t)ran;
    if ((ran || c->expiries < EXPIRIES) && expire(c, count)) {
        c->expiries++;
        return ran ? SPINNING : MOVING;
    }
    return ran ? SPINNING : STUCK;
}

/* Makes a cluster the one that handlers see, and keeps what they changed. */
static void enter(Launch *g, Running *c) {
    g->window = c->window;
    g->ctas = c->ctas;
    g->cluster_phase = c->phase;
    g->queue = &c->queue;
    g->watch = c->watch.shadow ? &c->watch : 0;
    g->race = c->race;
}

static void release(Request *r, Running *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->queue.count; i++)
        if (!c->queue.copy[i].landed) {
            free(c->queue.copy[i].staged);
            free(c->queue.copy[i].tensor);
        }
    if (c->window) munmap(c->window, (size_t)r->launch->cluster_size * SHARED_SLICE);
    if (c->watch.shadow) munmap(c->watch.shadow, (size_t)r->launch->cluster_size * SHARED_SLICE);
    free(c->watch.barrier);
    race_end(r->launch, c->race);
    free(c->queue.copy);
    free(c->locals);
    free(c->files);
    free(c->arrived);
    free(c->warps);
    for (uint32_t i = 0; c->all && c->ctas && i < r->launch->cluster_size * c->ctas[0].warps; i++) free(c->all[i].landing);
    free(c->all);
    for (uint32_t i = 0; c->ctas && i < r->launch->cluster_size; i++) free(c->ctas[i].tensor);
    free(c->ctas);
    free(c);
}

static uint8_t *reserve_window(uint32_t ctas) {
    void *at = mmap(0, (size_t)ctas * SHARED_SLICE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? 0 : at;
}

/* Memory for a cluster, or 0. */
static Running *reserve(Request *r) {
    Launch *g = r->launch;
    uint32_t n = g->cluster_size, per = (g->block[0] * g->block[1] * g->block[2] + 31) / 32;
    size_t regs = ((size_t)r->regs_size + 63) / 64 * 64 + 64, local = (size_t)g->local_size * 32;
    Running *c = calloc(1, sizeof *c);
    if (!c) return 0;
    c->ctas = calloc(n, sizeof *c->ctas);
    c->all = calloc((size_t)n * per, sizeof *c->all);
    c->warps = calloc((size_t)n * per, sizeof *c->warps);
    c->arrived = calloc((size_t)n * per * BARRIERS, sizeof *c->arrived);
    c->files = aligned_alloc(64, regs * n * per);
    c->locals = calloc(local * n * per + 1, 1);
    c->window = reserve_window(n);
    if (r->checks) c->watch.shadow = reserve_window(n);
    c->watch.unit = r->checks;
    c->watch.low = r->checks == 1 ? 0x0101010101010101ull : 0x0001000100010001ull;
    c->watch.high = r->checks == 1 ? 0x8080808080808080ull : 0x8000800080008000ull;
    if (!c->ctas || !c->all || !c->warps || !c->arrived || !c->files || !c->locals || !c->window ||
        (r->checks && !c->watch.shadow)) {
        release(r, c);
        return 0;
    }
    memset(c->files, 0xff, regs * n * per);
    if (g->observer) c->race = race_begin(g, n * per);
    for (uint32_t i = 0; i < n; i++) {
        c->ctas[i].rank = i;
        c->ctas[i].warps = per;
        c->ctas[i].warp = c->all + (size_t)i * per;
        for (uint32_t b = 0; b < BARRIERS; b++) c->ctas[i].barrier[b].arrived = c->arrived + ((size_t)i * BARRIERS + b) * per;
        for (uint32_t k = 0; k < per; k++) {
            Warp *w = &c->ctas[i].warp[k];
            w->cta = &c->ctas[i];
            w->launch = g;
            w->id = k;
            w->regs = c->files + regs * (i * per + k);
            w->local = c->locals + local * (i * per + k);
        }
    }
    return c;
}

/* Starts the cluster of that number in the grid. */
static void start(Request *r, Running *c, uint64_t number) {
    Launch *g = r->launch;
    uint32_t n = g->cluster_size, across = g->grid[0] / g->cluster[0], down = g->grid[1] / g->cluster[1];
    c->phase = c->expiries = c->spinning = c->watch.count = 0;
    if (c->race) race_reset(g, c->race);
    for (uint32_t i = 0; i < n; i++) {
        Cta *a = &c->ctas[i];
        a->index[0] = (uint32_t)(number % across) * g->cluster[0] + i % g->cluster[0];
        a->index[1] = (uint32_t)(number / across % down) * g->cluster[1] + i / g->cluster[0] % g->cluster[1];
        a->index[2] = (uint32_t)(number / across / down) * g->cluster[2] + i / g->cluster[0] / g->cluster[1];
        a->linear = (a->index[2] * g->grid[1] + a->index[1]) * g->grid[0] + a->index[0];
        if (a->tensor) a->tensor->relinquished = 0;
        memset(c->window + (size_t)i * SHARED_SLICE + SHARED_RESERVED, 0xff, g->shared_size);
        if (r->checks) memset(c->watch.shadow + (size_t)i * SHARED_SLICE + SHARED_RESERVED, 0, g->shared_size);
        for (uint32_t b = 0; b < BARRIERS; b++) {
            a->barrier[b].threads = a->barrier[b].trues = a->barrier[b].falses = 0;
            memset(a->barrier[b].arrived, 0, a->warps * sizeof(uint32_t));
        }
        for (uint32_t k = 0; k < a->warps; k++) {
            start_warp(&a->warp[k], r);
            c->warps[i * a->warps + k] = &a->warp[k];
        }
    }
}

/* Runs all clusters: one at a time, or, once warps spin, more and more of them in turns. Returns FAULT, -1 or NEXT. */
static int run_grid(Request *r) {
    Launch *g = r->launch;
    uint64_t total = (uint64_t)(g->grid[0] / g->cluster[0]) * (g->grid[1] / g->cluster[1]) * (g->grid[2] / g->cluster[2]);
    uint64_t next = 0, resident = 0, wanted = 1, state = r->seed;
    uint32_t count = g->cluster_size * ((g->block[0] * g->block[1] * g->block[2] + 31) / 32);
    Running *active = 0, **last = &active, *idle = 0;
    int result = NEXT;
    while (result == NEXT && (next < total || active)) {
        for (; resident < wanted && next < total; resident++) {
            Running *c = idle ? idle : reserve(r);
            if (!c) {
                result = -1;
                goto done;
            }
            if (idle) idle = idle->next;
            start(r, c, next++);
            c->next = 0;
            *last = c;
            last = &c->next;
        }
        uint64_t spinning = 0;
        for (Running **at = &active; *at;) {
            Running *c = *at;
            enter(g, c);
            int round = run_round(r, c, count, &state);
            c->phase = g->cluster_phase;
            if (round == FAULT) {
                result = FAULT;
                goto done;
            }
            if (round == STUCK) {
                g->fault.kind = FAULT_DEADLOCK;
                report_waiting(r, c->warps, count);
                result = FAULT;
                goto done;
            }
            spinning += round == SPINNING;
            if (round == DONE) {
                *at = c->next;
                c->next = idle;
                idle = c;
                resident--;
            } else at = &c->next;
        }
        for (last = &active; *last;) last = &(*last)->next;
        if (spinning && spinning == resident && r->may_spin) wanted = resident * 2;
    }
done:
    while (active || idle) {
        Running *c = active ? active : idle;
        *(active ? &active : &idle) = c->next;
        release(r, c);
    }
    return result;
}

/* The handler of instructions without effect on values. */
int equiv_nothing(Warp *w, const Op *o, uint32_t m) {
    (void)w, (void)o, (void)m;
    return NEXT;
}

/* The handler of instructions that a launch looks at beside executing them. */
int equiv_watched(Warp *w, const Op *o, uint32_t m) { return run_watched(w, o, m); }

/* The handler of instructions that order accesses, in a launch that looks for races. */
int equiv_observed(Warp *w, const Op *o, uint32_t m) { return race_observed(w, o, m); }

/* Runs the launch that `r` describes. Returns 0, 1 after a fault (described in r->launch->fault), or -1 without memory. */
int equiv_launch(Request *r) {
    fenv_t environment;
    fegetenv(&environment); /* the caller may have set rounding or flushing modes; the handlers need the default ones */
    fesetenv(FE_DFL_ENV);
    r->launch->observer = r->launch->info ? &RACE : 0;
    int result = run_grid(r);
    fesetenv(&environment);
    return result == FAULT ? 1 : result;
}
