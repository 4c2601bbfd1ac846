/* Races in shared memory: two accesses of which one writes and which nothing orders.
 *
 * Vector clocks. Time is counted per agent: a warp; its cp.async copies; its bulk copies that end in groups; its wgmma; its
 * tcgen05 operations; and for each mbarrier the copies that tell it. An access is an agent's clock, and is known to a warp if
 * the warp's vector has reached that clock. Barriers, mbarriers, atomics and waits for groups carry vectors. A second vector
 * holds what is known behind a proxy fence: what asynchronous operations may rely on of ordinary writes. Lanes of a warp
 * count as ordered. Where the rules leave a doubt, the accesses count as ordered. */
#ifndef EQUIV_RACE_H
#define EQUIV_RACE_H

#include "async.h"
#include "clocks.h"

static int race_fault(Warp *w, const Op *o, uint32_t lane, uint64_t host, uint32_t size, const Access *other, int wrote, int writes,
                      uint32_t why) {
    Launch *g = w->launch;
    const Warp *who = g->ctas[0].warp + other->warp;
    g->other = (Other){other->pc, who->cta->linear, who->id, (uint32_t)wrote};
    return fault(w, o, FAULT_RACE, lane, host - (uint64_t)(uintptr_t)g->window, size, (uint32_t)writes | why << 1);
}

/* Why an access must not follow an earlier one: 0 it may, 1 nothing orders them, 2 a proxy fence is missing. */
static inline uint32_t objection(const struct Race *r, const Access *before, const Access *a) {
    uint32_t mode = a->mode, same = before->agent == a->agent && before->clock == a->clock; /* lanes of one instruction */
    if (before->clock > VECTOR(r, known, a->warp)[before->agent]) return same || UNORDERED(mode, before->mode) ? 0 : 1;
    return mode == MODE_ASYNC && before->mode <= MODE_ATOMIC && before->clock > VECTOR(r, fenced, a->warp)[before->agent] ? 2 : 0;
}

static void drop_readers(struct Race *r, Cell *c) {
    while (c->reader != NEVER) {
        uint32_t next = r->reader[c->reader].next;
        r->reader[c->reader].next = r->spare;
        r->spare = c->reader;
        c->reader = next;
    }
}

static void add_reader(struct Race *r, Cell *c, const Access *a) {
    uint32_t *at = &c->reader;
    while (*at != NEVER) { /* earlier reads that this one follows need not be kept */
        Reader *one = &r->reader[*at];
        uint32_t here = *at;
        if (one->access.agent != a->agent && one->access.clock > VECTOR(r, known, a->warp)[one->access.agent]) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = r->spare;
        r->spare = here;
    }
    uint32_t fresh = r->spare;
    if (fresh != NEVER) r->spare = r->reader[fresh].next;
    else {
        if (r->readers == r->reader_room) {
            r->reader_room = r->reader_room ? r->reader_room * 2 : 4096;
            r->reader = realloc(r->reader, r->reader_room * sizeof *r->reader);
            if (!r->reader) abort();
        }
        fresh = r->readers++;
    }
    r->reader[fresh] = (Reader){*a, c->reader};
    c->reader = fresh;
}

/* One access to `size` bytes. */
static int race_span(Warp *w, const Op *o, uint32_t lane, uint64_t host, uint32_t size, int writes, Access a) {
    Launch *g = w->launch;
    struct Race *r = g->race;
    uint64_t address = host - (uint64_t)(uintptr_t)g->window, rank = address >> 24;
    if (!in_window(g, host)) return NEXT;
    Cell *cell = r->cell + rank * g->shared_size + (address & (SHARED_SLICE - 1)) - SHARED_RESERVED;
    if (rank != w->cta->rank) r->remote[rank * r->agents + a.agent] = (Remote){a.clock, a.pc, a.warp};
    for (uint32_t i = 0; i < size; i++) {
        Cell *c = &cell[i];
        if (c->generation != r->generation) *c = (Cell){r->generation, NEVER, {NEVER, 0, 0, 0, 0}};
        if (c->write.agent != NEVER) {
            uint32_t why = objection(r, &c->write, &a);
            if (why == 1 && writes && a.mode == MODE_GENERIC && c->write.mode == MODE_GENERIC && r->doubts < DOUBTS) {
                uint8_t *at = (uint8_t *)host + i;
                r->doubt[r->doubts++] = (Doubt){at, *at, lane, why, c->write};
            } else if (why) return race_fault(w, o, lane, host + i, size - i, &c->write, 1, writes, why);
        }
        if (!writes) {
            add_reader(r, c, &a);
            continue;
        }
        for (uint32_t k = c->reader; k != NEVER; k = r->reader[k].next) {
            const Access *read = &r->reader[k].access;
            if (read->clock > VECTOR(r, known, a.warp)[read->agent] && !UNORDERED(a.mode, read->mode))
                return race_fault(w, o, lane, host + i, size - i, read, 0, 1, 1);
        }
        drop_readers(r, c);
        c->write = a;
    }
    return NEXT;
}

static Access access_of(Warp *w, const Op *o, uint32_t agent, uint32_t mode) {
    return (Access){agent, w->launch->race->clock[agent], (uint32_t)(o - w->launch->code), warp_number(w), mode};
}

/* An mbarrier that is used must have been initialised before. */
static int race_barrier_use(Warp *w, const Op *o, uint32_t lane, uint64_t host) {
    struct Race *r = w->launch->race;
    uint64_t address = host - (uint64_t)(uintptr_t)w->launch->window, rank = address >> 24;
    const Cell *c = r->cell + rank * w->launch->shared_size + (address & (SHARED_SLICE - 1)) - SHARED_RESERVED;
    uint32_t warp = warp_number(w);
    if (rank != w->cta->rank) r->remote[rank * r->agents + warp] = (Remote){r->clock[warp], (uint32_t)(o - w->launch->code), warp};
    if (c->generation == r->generation && c->write.agent != NEVER && c->write.clock > VECTOR(r, known, warp)[c->write.agent])
        return race_fault(w, o, lane, host, 8, &c->write, 1, 0, 1);
    return NEXT;
}

static int race_access(Warp *w, const Op *o, uint32_t m, const uint64_t *host, uint32_t size) {
    struct Race *r = w->launch->race;
    const Info *info = &w->launch->info[o - w->launch->code];
    uint32_t warp = warp_number(w);
    if (info->action == ACTION_NONE || (info->action >= ACTION_WGMMA && info->action != ACTION_TENSOR_COMMIT)) return NEXT;
    if (info->action == ACTION_COPY) r->clock[OWN_COPY * r->warps + warp]++;
    LANES(l) {
        if (!HAS(l)) continue;
        int result = NEXT;
        switch (info->action) {
        case ACTION_READ: result = race_span(w, o, (uint32_t)l, host[l], size, 0, access_of(w, o, warp, MODE_GENERIC)); break;
        case ACTION_BARRIER_INIT:
        case ACTION_WRITE: result = race_span(w, o, (uint32_t)l, host[l], size, 1, access_of(w, o, warp, MODE_GENERIC)); break;
        case ACTION_COPY: {
            Access a = access_of(w, o, OWN_COPY * r->warps + warp, MODE_COPY);
            result = race_span(w, o, (uint32_t)l, host[l], size, 1, a);
            break;
        }
        case ACTION_ATOMIC: {
            result = race_span(w, o, (uint32_t)l, host[l], size, 1, access_of(w, o, warp, MODE_ATOMIC));
            Meeting *at = meeting(r, KEY_ATOMIC | host[l]);
            complete(r, at);
            take(r, warp, at);
            bring(r, warp, at, 0);
            break;
        }
        default: if (in_window(w->launch, host[l])) result = race_barrier_use(w, o, (uint32_t)l, host[l]);
        }
        if (result) return result;
    }
    return NEXT;
}

static int race_block(Warp *w, const Op *o, uint32_t lane, uint64_t host, uint32_t size) {
    struct Race *r = w->launch->race;
    uint32_t owner = w->launch->info[o - w->launch->code].action == ACTION_WGMMA ? OWN_WGMMA : OWN_TENSOR;
    uint32_t agent = owner * r->warps + warp_number(w);
    r->clock[agent]++;
    return race_span(w, o, lane, host, size, 0, access_of(w, o, agent, MODE_ASYNC));
}

static int race_issue(Copy *c) {
    Warp *w = c->warp;
    struct Race *r = w->launch->race;
    uint32_t warp = warp_number(w), proxy = c->size > 16 || c->from || c->tensor;
    if (c->arrivals) { /* cp.async.mbarrier.arrive: what the warp has copied so far */
        c->clock = r->clock[OWN_COPY * r->warps + warp];
        return NEXT;
    }
    if (c->end == END_COPY_GROUP) return NEXT; /* seen by race_access */
    uint32_t agent = c->end == END_MBARRIER ? barrier_agent(r, c->barrier) : OWN_BULK * r->warps + warp;
    c->clock = ++r->clock[agent];
    Access a = access_of(w, c->op, agent, c->operation != REDUCE_MOVE ? MODE_REDUCE : proxy ? MODE_ASYNC : MODE_COPY);
    uint32_t row = c->tensor ? c->tensor->extent[0] * c->tensor->bytes : 0;
    for (int writes = 0; writes < 2; writes++) {
        uint64_t at = writes ? c->to : c->from;
        if (!at || (c->tensor && (int)c->store == writes)) continue;
        if (!c->tensor && race_span(w, c->op, c->lane, at, c->size, writes, a)) return FAULT;
        for (uint32_t k = 0; c->tensor && k < c->size / row; k++)
            for (uint32_t i = 0; i < row; i += 16) {
                uint64_t chunk = map_swizzle(c->tensor->swizzle, at + (uint64_t)k * c->tensor->pitch + i);
                if (race_span(w, c->op, c->lane, chunk, 16, writes, a)) return FAULT;
            }
    }
    return NEXT;
}

static void race_land(const Copy *c) {
    struct Race *r = c->warp->launch->race;
    if (!c->barrier) return;
    Meeting *m = meeting(r, c->barrier);
    uint32_t agent = c->arrivals ? OWN_COPY * r->warps + warp_number(c->warp) : barrier_agent(r, c->barrier);
    if (m->now[agent] < c->clock) m->now[agent] = c->clock;
}

static void race_event(Launch *g, Warp *w, const Op *o, uint32_t event, uint64_t where) {
    struct Race *r = g->race;
    uint32_t warp = w ? warp_number(w) : 0, relaxed = o ? g->info[o - g->code].relaxed : 0;
    Meeting *m;
    switch ((Event)event) {
    case EVENT_ARRIVE:
        m = meeting(r, where);
        if (g->info[o - g->code].action == ACTION_TENSOR_COMMIT) {
            uint32_t agent = OWN_TENSOR * r->warps + warp;
            m->now[agent] = r->clock[agent];
        }
        bring(r, warp, m, (int)relaxed);
        return;
    case EVENT_PHASE: complete(r, meeting(r, where)); return;
    case EVENT_WAIT: take(r, warp, meeting(r, where)); return;
    case EVENT_BARRIER_ARRIVE: bring(r, warp, meeting(r, KEY_BARRIER | (uint64_t)w->cta->rank << 8 | where), 0); return;
    case EVENT_BARRIER_DONE:
    case EVENT_CLUSTER_DONE:
        m = meeting(r, event == EVENT_CLUSTER_DONE ? KEY_CLUSTER : KEY_BARRIER | (uint64_t)w->cta->rank << 8 | where);
        complete(r, m);
        memset(m->now, 0, r->agents * sizeof *m->now);
        memset(m->fenced_now, 0, r->agents * sizeof *m->now);
        return;
    case EVENT_BARRIER_PASS: take(r, warp, meeting(r, KEY_BARRIER | (uint64_t)w->cta->rank << 8 | where)); return;
    case EVENT_CLUSTER_ARRIVE: bring(r, warp, meeting(r, KEY_CLUSTER), (int)relaxed); return;
    case EVENT_CLUSTER_PASS: take(r, warp, meeting(r, KEY_CLUSTER)); return;
    }
}

/* The warp now knows what its groups did, all but the `left` latest of `count`. */
static void groups_done(struct Race *r, uint32_t warp, uint32_t owner, uint32_t count, uint32_t left) {
    if (count <= left) return;
    uint32_t *known = &VECTOR(r, known, warp)[owner * r->warps + warp], mark = r->mark[warp][owner - OWN_COPY][(count - left - 1) % GROUPS_KEPT];
    if (*known < mark) *known = mark; /* an earlier wait may have left fewer */
}
static uint32_t most(const uint32_t *groups, uint32_t m) {
    uint32_t n = 0;
    LANES(l) if (HAS(l) && groups[l] > n) n = groups[l];
    return n;
}

/* Stands in for the handlers of instructions that order, but have no address. */
static int race_observed(Warp *w, const Op *o, uint32_t m) {
    struct Race *r = w->launch->race;
    const Info *info = &w->launch->info[o - w->launch->code];
    uint32_t warp = warp_number(w), *known = VECTOR(r, known, warp);
    r->doubts = 0;
    int result = info->run(w, o, m);
    if (result == FAULT) return FAULT;
    for (uint32_t i = 0; i < r->doubts; i++) {
        const Doubt *d = &r->doubt[i];
        if (*d->at != d->old) return race_fault(w, o, d->lane, (uint64_t)(uintptr_t)d->at, 1, &d->before, 1, 1, d->why);
    }
    switch (info->action) {
    case ACTION_FENCE: memcpy(VECTOR(r, released, warp), known, r->agents * sizeof *known), tick(r, warp); break;
    case ACTION_FENCE_PROXY: memcpy(VECTOR(r, fenced, warp), known, r->agents * sizeof *known), tick(r, warp); break;
    case ACTION_COPY_COMMIT:
    case ACTION_BULK_COMMIT: {
        uint32_t owner = info->action == ACTION_COPY_COMMIT ? OWN_COPY : OWN_BULK;
        uint32_t count = most(owner == OWN_COPY ? w->copy_group : w->bulk_group, m);
        r->mark[warp][owner - OWN_COPY][(count - 1) % GROUPS_KEPT] = r->clock[owner * r->warps + warp];
        break;
    }
    case ACTION_COPY_WAIT: groups_done(r, warp, OWN_COPY, most(w->copy_group, m), info->value); break;
    case ACTION_COPY_WAIT_ALL: known[OWN_COPY * r->warps + warp] = r->clock[OWN_COPY * r->warps + warp]; break;
    case ACTION_BULK_WAIT: groups_done(r, warp, OWN_BULK, most(w->bulk_group, m), info->value); break;
    case ACTION_WGMMA_COMMIT:
        r->mark[warp][OWN_WGMMA - OWN_COPY][r->committed[warp]++ % GROUPS_KEPT] = r->clock[OWN_WGMMA * r->warps + warp];
        break;
    case ACTION_WGMMA_WAIT: groups_done(r, warp, OWN_WGMMA, r->committed[warp], info->value); break;
    default: break;
    }
    return result;
}

/* At the end of a cluster: accesses from other CTAs that the CTA's threads need not have waited for before they exited. */
static int race_finish(Launch *g) {
    struct Race *r = g->race;
    for (uint32_t rank = 0; rank < g->cluster_size; rank++)
        for (uint32_t agent = 0; agent < r->agents; agent++) {
            const Remote *last = &r->remote[rank * r->agents + agent];
            uint32_t known = 0, per = g->ctas[rank].warps;
            for (uint32_t i = 0; i < per; i++) {
                uint32_t one = VECTOR(r, known, rank * per + i)[agent];
                known = one > known ? one : known;
            }
            if (last->clock <= known) continue;
            Warp *who = g->ctas[0].warp + last->warp;
            return fault(who, g->code + last->pc, FAULT_RACE, 0, (uint64_t)rank << 24, 0, 3 << 1);
        }
    return NEXT;
}

static const Observer RACE = {race_access, race_block, race_issue, race_land, race_event};

#endif
