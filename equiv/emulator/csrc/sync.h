/* Waiting and waking: CTA barriers, warp barriers, cluster barriers, exits. */
#ifndef EQUIV_SYNC_H
#define EQUIV_SYNC_H

#include "observer.h"

static inline void wake(Warp *w, Fragment *f) {
    f->wait = READY;
    if (f->pc < w->next) w->next = f->pc;
}

/* A warp whose live lanes have all arrived counts as 32 threads, also when the block ends inside it. */
static inline int barrier_complete(const Cta *c, const Barrier *b) {
    uint32_t count = 0, all = 1;
    for (uint32_t i = 0; i < c->warps; i++) {
        uint32_t arrived = b->arrived[i], live = c->warp[i].live;
        if (live & ~arrived) all = 0;
        count += arrived && !(live & ~arrived) ? 32u : (uint32_t)__builtin_popcount(arrived);
    }
    return b->threads == c->warps * 32 ? (int)all : count >= b->threads;
}

/* What a reduction over a barrier's threads gives: the forms of bar.red. */
typedef enum { BARRIER_POPC, BARRIER_AND, BARRIER_OR, BARRIER_PLAIN } BarrierForm;

/* Gives lanes of `m` the result of a barrier's reduction: a register of 32 bits, or a predicate. */
static inline void barrier_result(Warp *w, uint32_t m, uint32_t result, uint32_t form, const Barrier *b) {
    if (form == BARRIER_PLAIN || result == NEVER) return;
    uint32_t *at = (uint32_t *)(w->regs + result);
    if (form == BARRIER_POPC) {
        LANES(l) if (HAS(l)) at[l] = b->trues;
        return;
    }
    *at = (*at & ~m) | ((form == BARRIER_AND ? !b->falses : b->trues != 0) ? m : 0);
}

COLD void barrier_release(Cta *c, uint32_t id) {
    Barrier *b = &c->barrier[id];
    Barrier done = *b;
    b->threads = b->trues = b->falses = 0;
    c->warp->launch->events++;
    memset(b->arrived, 0, c->warps * sizeof *b->arrived);
    OBSERVE(c->warp->launch, c->warp, 0, EVENT_BARRIER_DONE, id);
    for (uint32_t i = 0; i < c->warps; i++)
        for (uint32_t k = 0; k < c->warp[i].fragments; k++) {
            Fragment *f = &c->warp[i].fragment[k];
            if (f->wait != WAIT_BARRIER || f->id != id) continue;
            barrier_result(&c->warp[i], f->mask, f->result, f->form, &done);
            wake(&c->warp[i], f);
            OBSERVE(c->warp->launch, &c->warp[i], 0, EVENT_BARRIER_PASS, id);
        }
}

/* threads: a multiple of 32, or 0 for the whole CTA. form, result, predicate: of bar.red, else BARRIER_PLAIN, NEVER, 0. */
COLD int barrier_reduce(Warp *w, const Op *o, uint32_t m, uint32_t id, uint32_t threads, int waits, uint32_t form,
                        uint32_t result, uint32_t predicate) {
    Cta *c = w->cta;
    if (!threads) threads = c->warps * 32;
    if (id >= BARRIERS) return fault(w, o, FAULT_BARRIER, 0, id, threads, 0);
    Barrier *b = &c->barrier[id];
    if (threads % 32 || threads > c->warps * 32) return fault(w, o, FAULT_BARRIER, 0, id, threads, 1);
    if (b->threads && b->threads != threads) return fault(w, o, FAULT_BARRIER, 0, id, threads, 2);
    b->threads = threads;
    b->arrived[w - c->warp] |= m;
    b->trues += (uint32_t)__builtin_popcount(m & predicate);
    b->falses += (uint32_t)__builtin_popcount(m & ~predicate);
    w->launch->events++;
    OBSERVE(w->launch, w, o, EVENT_BARRIER_ARRIVE, id);
    if (barrier_complete(c, b)) {
        barrier_result(w, m, result, form, b);
        barrier_release(c, id);
        if (waits) OBSERVE(w->launch, w, o, EVENT_BARRIER_PASS, id);
        return NEXT;
    }
    if (!waits) return NEXT;
    park(w, o, m, (uint32_t)(o - w->launch->code) + 1, WAIT_BARRIER, id, threads);
    w->fragment[w->fragments - 1].result = result;
    w->fragment[w->fragments - 1].form = form;
    return JUMP;
}

static inline int barrier_arrive(Warp *w, const Op *o, uint32_t m, uint32_t id, uint32_t threads, int waits) {
    return barrier_reduce(w, o, m, id, threads, waits, BARRIER_PLAIN, NEVER, 0);
}

/* bar.warp.sync: the lanes of `need` that have not exited, wherever in the program they wait for each other. */
static inline int warp_sync(Warp *w, const Op *o, uint32_t m, uint32_t need) {
    if (!(need & w->live & ~m)) return NEXT;
    uint32_t here = m;
    for (uint32_t i = 0; i < w->fragments; i++)
        if (w->fragment[i].wait == WAIT_WARP_SYNC && w->fragment[i].need == need) here |= w->fragment[i].mask;
    if (need & w->live & ~here) return park(w, o, m, (uint32_t)(o - w->launch->code) + 1, WAIT_WARP_SYNC, 0, need);
    for (uint32_t i = 0; i < w->fragments; i++)
        if (w->fragment[i].wait == WAIT_WARP_SYNC && w->fragment[i].need == need) wake(w, &w->fragment[i]);
    return NEXT;
}

/* The cluster barrier counts phases, because a warp may arrive, run on, and wait after the others have passed. */
static inline void cluster_check(Launch *launch) {
    uint32_t phase = launch->cluster_phase;
    for (uint32_t c = 0; c < launch->cluster_size; c++)
        for (uint32_t i = 0; i < launch->ctas[c].warps; i++) {
            const Warp *w = &launch->ctas[c].warp[i];
            uint32_t behind = 0;
            LANES(l) behind |= (uint32_t)(w->cluster_phase[l] <= phase) << l;
            if (behind & w->live) return;
        }
    launch->cluster_phase = phase + 1;
    OBSERVE(launch, 0, 0, EVENT_CLUSTER_DONE, 0);
    launch->events++;
}

COLD int cluster_arrive(Warp *w, const Op *o, uint32_t m) {
    LANES(l) {
        if (!HAS(l)) continue;
        if (w->cluster_phase[l] > w->launch->cluster_phase) return fault(w, o, FAULT_BARRIER, (uint32_t)l, 0, 0, 3);
        w->cluster_phase[l]++;
    }
    w->launch->events++;
    OBSERVE(w->launch, w, o, EVENT_CLUSTER_ARRIVE, 0);
    cluster_check(w->launch);
    return NEXT;
}

COLD int cluster_wait(Warp *w, const Op *o, uint32_t m) {
    uint32_t need = 0;
    LANES(l) if (HAS(l) && w->cluster_phase[l] > need) need = w->cluster_phase[l];
    if (w->launch->cluster_phase >= need) {
        OBSERVE(w->launch, w, o, EVENT_CLUSTER_PASS, 0);
        return NEXT;
    }
    return park(w, o, m, (uint32_t)(o - w->launch->code) + 1, WAIT_CLUSTER, 0, need);
}

/* Exited lanes are waited for by nobody: look at every wait that they may have held up. */
COLD int exit_lanes(Warp *w, const Op *o, uint32_t m) {
    Cta *c = w->cta;
    w->launch->events++;
    w->live &= ~m;
    w->active &= ~m;
    w->pc = (uint32_t)(o - w->launch->code) + 1;
    for (uint32_t i = 0; i < w->fragments; i++) {
        Fragment *f = &w->fragment[i];
        if (f->wait != WAIT_WARP_SYNC && f->wait != WAIT_LANES) continue;
        uint32_t here = 0;
        for (uint32_t k = 0; k < w->fragments; k++) {
            const Fragment *g = &w->fragment[k];
            if (g->wait == f->wait && g->need == f->need && (f->wait == WAIT_WARP_SYNC || g->pc == f->pc)) here |= g->mask;
        }
        if (f->need & w->live & ~here) continue;
        uint32_t wait = f->wait, need = f->need, pc = f->pc;
        for (uint32_t k = 0; k < w->fragments; k++) {
            Fragment *g = &w->fragment[k];
            if (g->wait == wait && g->need == need && (wait == WAIT_WARP_SYNC || g->pc == pc)) wake(w, g);
        }
    }
    for (uint32_t id = 0; id < BARRIERS; id++)
        if (c->barrier[id].threads && barrier_complete(c, &c->barrier[id])) barrier_release(c, id);
    cluster_check(w->launch);
    return JUMP;
}

#endif
