/* The vector clocks of a search for races (race.h): agents, what each warp knows, where warps meet. */
#ifndef EQUIV_CLOCKS_H
#define EQUIV_CLOCKS_H

#include <stdlib.h>
#include <sys/mman.h>

#include "observer.h"

#define GROUPS_KEPT 64
#define BARRIER_AGENTS 256
typedef enum { OWN_WARP, OWN_COPY, OWN_BULK, OWN_WGMMA, OWN_TENSOR, OWN_BARRIER } Owner;
typedef enum { MODE_GENERIC, MODE_ATOMIC, MODE_COPY, MODE_REDUCE, MODE_ASYNC } Mode; /* ASYNC: of the asynchronous proxy */
#define UNORDERED(x, y) ((x) == (y) && ((x) == MODE_ATOMIC || (x) == MODE_REDUCE)) /* may meet in any order */

/* warp: number in the cluster of who issued it. */
typedef struct { uint32_t agent, clock, pc, warp, mode; } Access;
typedef struct { Access access; uint32_t next; } Reader;
/* A byte of shared memory: its last write (agent NEVER: none) and the reads since that no later read covers. */
typedef struct { uint32_t generation, reader; Access write; } Cell;
/* Something that orders. now, fenced_now: what has been brought to it; done, fenced_done: what its last completion gives. */
typedef struct { uint64_t key; uint32_t *now, *fenced_now, *done, *fenced_done; } Meeting;
typedef struct { uint32_t clock, pc, warp; } Remote;
/* Two writes in doubt: a race only if the second changes the byte. */
typedef struct { uint8_t *at; uint8_t old; uint32_t lane, why; Access before; } Doubt;
#define DOUBTS 1024

struct Race {
    uint32_t warps, agents, generation, meetings, room, readers, reader_room, spare;
    uint32_t *known, *fenced, *released; /* a vector for each warp */
    uint32_t *clock;                     /* latest clock of each agent */
    uint32_t (*mark)[3][GROUPS_KEPT];    /* of each warp, owner OWN_COPY + i: clock when group g was committed */
    uint32_t *committed;                 /* of each warp: wgmma groups */
    Meeting *meeting;
    Reader *reader;
    Cell *cell;
    Doubt doubt[DOUBTS];
    uint32_t doubts;
    Remote *remote;                      /* of each CTA and agent: the last access from another CTA */
};

#define VECTOR(r, which, warp) ((r)->which + (size_t)(warp) * (r)->agents)

static inline uint32_t warp_number(const Warp *w) { return (uint32_t)(w - w->launch->ctas[0].warp); }
static inline void join(uint32_t *to, const uint32_t *from, uint32_t n) { for (uint32_t i = 0; i < n; i++) to[i] = to[i] > from[i] ? to[i] : from[i]; }

static void *race_memory(size_t bytes) {
    void *at = mmap(0, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) abort();
    return at;
}

static struct Race *race_begin(const Launch *g, uint32_t warps) {
    struct Race *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->warps = warps;
    r->agents = OWN_BARRIER * warps + BARRIER_AGENTS;
    size_t vectors = (size_t)warps * r->agents * sizeof(uint32_t);
    r->known = race_memory(vectors);
    r->fenced = race_memory(vectors);
    r->released = race_memory(vectors);
    r->clock = race_memory(r->agents * sizeof(uint32_t));
    r->mark = race_memory(warps * sizeof *r->mark);
    r->committed = race_memory(warps * sizeof(uint32_t));
    r->cell = race_memory((size_t)g->cluster_size * g->shared_size * sizeof(Cell));
    r->remote = race_memory((size_t)g->cluster_size * r->agents * sizeof(Remote));
    return r;
}

static void race_end(const Launch *g, struct Race *r) {
    if (!r) return;
    size_t vectors = (size_t)r->warps * r->agents * sizeof(uint32_t);
    munmap(r->known, vectors), munmap(r->fenced, vectors), munmap(r->released, vectors);
    munmap(r->clock, r->agents * sizeof(uint32_t));
    munmap(r->mark, r->warps * sizeof *r->mark);
    munmap(r->committed, r->warps * sizeof(uint32_t));
    munmap(r->cell, (size_t)g->cluster_size * g->shared_size * sizeof(Cell) + !g->shared_size);
    munmap(r->remote, (size_t)g->cluster_size * r->agents * sizeof(Remote));
    for (uint32_t i = 0; i < r->meetings; i++) free(r->meeting[i].now);
    free(r->meeting);
    free(r->reader);
    free(r);
}

/* Another cluster starts in the same memory. */
static void race_reset(const Launch *g, struct Race *r) {
    size_t vectors = (size_t)r->warps * r->agents * sizeof(uint32_t);
    for (uint32_t i = 0; i < r->meetings; i++) free(r->meeting[i].now);
    r->meetings = r->readers = 0;
    r->spare = NEVER;
    r->generation++;
    memset(r->known, 0, vectors);
    memset(r->fenced, 0, vectors);
    memset(r->released, 0, vectors);
    memset(r->mark, 0, r->warps * sizeof *r->mark);
    memset(r->committed, 0, r->warps * sizeof(uint32_t));
    memset(r->remote, 0, (size_t)g->cluster_size * r->agents * sizeof(Remote));
    for (uint32_t i = 0; i < r->agents; i++) r->clock[i] = i < r->warps;
    for (uint32_t w = 0; w < r->warps; w++) VECTOR(r, known, w)[w] = 1;
}

static Meeting *meeting(struct Race *r, uint64_t key) {
    for (uint32_t i = 0; i < r->meetings; i++)
        if (r->meeting[i].key == key) return &r->meeting[i];
    if (r->meetings == r->room) {
        r->room = r->room ? r->room * 2 : 64;
        r->meeting = realloc(r->meeting, r->room * sizeof *r->meeting);
        if (!r->meeting) abort();
    }
    uint32_t *all = calloc((size_t)4 * r->agents, sizeof *all);
    if (!all) abort();
    r->meeting[r->meetings] = (Meeting){key, all, all + r->agents, all + 2 * r->agents, all + 3 * r->agents};
    return &r->meeting[r->meetings++];
}

#define KEY_BARRIER (1ull << 60)
#define KEY_CLUSTER (2ull << 60)
#define KEY_ATOMIC (3ull << 60)

/* The agent of the copies that tell an mbarrier. */
static uint32_t barrier_agent(struct Race *r, uint64_t host) {
    return OWN_BARRIER * r->warps + (uint32_t)(meeting(r, host) - r->meeting) % BARRIER_AGENTS;
}

static void tick(struct Race *r, uint32_t warp) { VECTOR(r, known, warp)[warp] = ++r->clock[warp]; }

static void bring(struct Race *r, uint32_t warp, Meeting *to, int relaxed) {
    join(to->now, relaxed ? VECTOR(r, released, warp) : VECTOR(r, known, warp), r->agents);
    join(to->fenced_now, VECTOR(r, fenced, warp), r->agents);
    tick(r, warp);
}
static void complete(struct Race *r, Meeting *m) {
    memcpy(m->done, m->now, r->agents * sizeof(uint32_t));
    memcpy(m->fenced_done, m->fenced_now, r->agents * sizeof(uint32_t));
}
static void take(struct Race *r, uint32_t warp, const Meeting *from) {
    join(VECTOR(r, known, warp), from->done, r->agents);
    join(VECTOR(r, fenced, warp), from->fenced_done, r->agents);
}

#endif
