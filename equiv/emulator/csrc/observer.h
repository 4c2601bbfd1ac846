/* What a launch that looks for races is told by the handlers. The one implementation is race.h, in the scheduler's library;
 * handlers, which live in others, reach it through `Launch.observer`, which is 0 in all other launches. */
#ifndef EQUIV_OBSERVER_H
#define EQUIV_OBSERVER_H

#include "runtime.h"

/* What an instruction does, in the order of equiv.emulator.races.ACTIONS. The first line has addresses in shared memory. */
typedef enum {
    ACTION_NONE, ACTION_READ, ACTION_WRITE, ACTION_ATOMIC, ACTION_COPY, ACTION_BARRIER_INIT, ACTION_BARRIER_USE, ACTION_WGMMA,
    ACTION_TENSOR, ACTION_TENSOR_COMMIT,
    ACTION_FENCE, ACTION_FENCE_PROXY, ACTION_COPY_COMMIT, ACTION_COPY_WAIT, ACTION_COPY_WAIT_ALL, ACTION_BULK_COMMIT,
    ACTION_BULK_WAIT, ACTION_WGMMA_COMMIT, ACTION_WGMMA_WAIT
} Action;

/* Of each instruction. run: its own handler; relaxed: whether it orders nothing by itself; value: groups that may be left. */
typedef struct Info { Handler *run; uint32_t action, relaxed, value, reserved; } Info;

/* `where`: host address of an mbarrier, number of a CTA's barrier, or clock of a copy that has landed. */
typedef enum {
    EVENT_ARRIVE, EVENT_PHASE, EVENT_WAIT, EVENT_BARRIER_ARRIVE, EVENT_BARRIER_DONE, EVENT_BARRIER_PASS, EVENT_CLUSTER_ARRIVE,
    EVENT_CLUSTER_DONE, EVENT_CLUSTER_PASS
} Event;

struct Copy;
typedef struct Observer {
    int (*access)(Warp *, const Op *, uint32_t m, const uint64_t *host, uint32_t size); /* through shared memory's addresses */
    int (*block)(Warp *, const Op *, uint32_t lane, uint64_t host, uint32_t size);      /* a read by the matrix unit */
    int (*issue)(struct Copy *);
    void (*land)(const struct Copy *);
    void (*event)(Launch *, Warp *, const Op *, uint32_t event, uint64_t where);
} Observer;

#define OBSERVE(launch, w, o, what, where) \
    do { if (__builtin_expect((launch)->observer != 0, 0)) (launch)->observer->event(launch, w, o, what, where); } while (0)

#endif
