/* What every generated instruction handler sees: the warp, its registers, its lanes, and how control leaves a handler.
 *
 * A register is an array of 32 lanes: b8, b16, b32 and b64 take 32, 64, 128 and 256 bytes of the warp's register file; a
 * predicate is one 32-bit mask. `Op.arg` holds byte offsets into that file, or an immediate's bits. A handler executes one
 * instruction for the lanes of `m` (never empty) and returns an Outcome.
 *
 * Divergence: a warp is a set of fragments (lanes that share a pc). The fragment at the lowest pc runs; `Warp.next` is the
 * lowest pc at which another ready fragment stands, where the two merge. A fragment that must wait is parked with what it
 * waits for; the others go on. The scheduler (engine.c) knows when a wait is over. */
#ifndef EQUIV_RUNTIME_H
#define EQUIV_RUNTIME_H

#include <stdint.h>
#include <string.h>

#define FULL 0xffffffffu
#define NEVER 0xffffffffu

typedef struct Warp Warp;
typedef struct Op Op;
typedef struct Cta Cta;
typedef struct Launch Launch;
typedef int Handler(Warp *, const Op *, uint32_t);

typedef enum { NEXT = 0, JUMP, FAULT } Outcome; /* JUMP: the fragment list or pc changed, look again */
typedef enum { READY = 0, WAIT_BARRIER, WAIT_LANES, WAIT_WARP_SYNC, WAIT_CLUSTER, WAIT_MBARRIER, WAIT_TENSOR } Wait;
typedef enum {
    FAULT_NONE = 0, FAULT_OUT_OF_BOUNDS, FAULT_MISALIGNED, FAULT_READ_ONLY, FAULT_SHARED_BOUNDS, FAULT_LOCAL_BOUNDS,
    FAULT_PARAM_BOUNDS, FAULT_TRAP, FAULT_BARRIER, FAULT_BUDGET, FAULT_DEADLOCK, FAULT_VALUE, FAULT_MATRIX,
    FAULT_MBARRIER, FAULT_COPY, FAULT_UNWRITTEN, FAULT_PEER, FAULT_RACE,
    FAULT_REGISTER
} FaultKind;

struct Op {
    Handler *run;
    const uint64_t *arg;
    uint32_t guard; /* offset of the guard predicate; an unguarded instruction names one that is always true */
    uint32_t flip;  /* all ones for @!p */
};

typedef struct { uint64_t low, high; uint32_t writable, reserved; } Region;

typedef struct {
    uint32_t kind, pc, lane, size;
    uint64_t address;
    uint32_t cta, warp, mask, detail;
} Fault;

/* The earlier access of a race: where, by whom, whether it wrote. */
typedef struct { uint32_t pc, cta, warp, wrote; } Other;

/* One parked or ready group of lanes. id: barrier number, or shared address of an mbarrier; need: threads, lanes, phase or
 * parity; result: where in the register file a barrier's reduction goes, and which of its forms (bar.red). */
typedef struct { uint32_t pc, mask, wait, id, need, result, form; } Fragment;

/* One CTA barrier. arrived: lanes per warp; threads: how many it takes, 0 while nobody has arrived; trues, falses: lanes by
 * their predicate in bar.red. */
typedef struct { uint32_t threads, trues, falses; uint32_t *arrived; } Barrier;

#define BARRIERS 16

struct Warp {
    uint8_t *regs;
    uint32_t pc, active, next, live;
    Fragment fragment[33];
    uint32_t fragments;
    Cta *cta;
    Launch *launch;
    uint32_t id, carry;
    uint32_t cluster_phase[32]; /* per lane: cluster barrier phases it has arrived at */
    uint8_t *local;
    uint64_t clock;   /* instructions it has executed, what %clock and its like show */
    uint32_t expired; /* lanes whose wait for an mbarrier ends without it */
    struct Landing *landing; /* results of wgmma that have not landed, in a launch with `late` (warp_mma.h) */
    uint32_t landings, landing_room, wgmma_group; /* wgmma_group: groups committed */
    uint32_t copy_group[32], bulk_group[32]; /* per lane: groups of cp.async and of bulk copies it has committed */
};

struct Cta {
    uint32_t rank, index[3], linear, warps;
    Warp *warp;
    Barrier barrier[BARRIERS];
    struct Tensor *tensor; /* tensor memory, 0 until first used */
};

struct Launch {
    const Op *code;
    const Region *regions;
    uint64_t region_count;
    uint32_t *hint;   /* per instruction: the region it touched last */
    uint8_t *window;  /* shared memory of the cluster, one 16 MiB slice a CTA */
    const uint8_t *params;
    uint32_t param_size, shared_size, local_size, cluster_size;
    uint32_t block[3], grid[3], cluster[3];
    Cta *ctas; /* of the running cluster */
    uint32_t cluster_phase; /* completed phases of the cluster barrier */
    uint64_t instructions, lane_instructions, budget;
    const struct Matrix *matrix; /* the matrix unit, 0 if the kernel does not use it */
    Fault fault;
    uint32_t late;            /* asynchronous copies land when they are waited for, not at once */
    uint32_t reserved;
    uint64_t order_dependent; /* float additions to memory, whose order the hardware leaves open, by lanes */
    uint64_t events;          /* grows whenever something happens that a waiting warp may wait for */
    struct Queue *queue;      /* copies of the running cluster that have not landed (async.h) */
    struct Watch *watch;      /* what is known about its shared memory (checks.h); 0: nothing is checked */
    struct Note *notes;
    uint32_t note_count, reserved2;
    const struct Observer *observer; /* of a launch that looks for races (observer.h), else 0 */
    const struct Info *info;         /* of each instruction, for the observer */
    struct Race *race;               /* of the running cluster */
    Other other;                     /* the earlier access of a race */
    const struct Watched *watched;   /* of each instruction (watched.h) */
    uint8_t *seen;                   /* of each watched instruction: whether it was executed */
};

#define REG(type, k) ((type *)(w->regs + o->arg[k]))
#define PRED(k) (*(uint32_t *)(w->regs + o->arg[k]))
#define IMM(k) (o->arg[k])
#define HAS(l) (m >> (l) & 1u)
#define LANES(l) for (int l = 0; l < 32; l++)
#define COLD static __attribute__((noinline, cold))

/* Shared addresses as the hardware builds them: the CTA's rank in the cluster in the top byte, 1 KiB reserved in front. */
#define SHARED_RESERVED 0x400u
#define SHARED_SLICE 0x1000000u
/* Generic addresses of shared and local memory lie in windows that no host pointer reaches. */
#define GENERIC_SHARED 0x0100000000000000ull
#define GENERIC_LOCAL 0x0200000000000000ull

COLD int fault(Warp *w, const Op *o, uint32_t kind, uint32_t lane, uint64_t address, uint32_t size, uint32_t detail) {
    Fault f = {kind, (uint32_t)(o - w->launch->code), lane, size, address, w->cta->linear, w->id, w->active, detail};
    w->launch->fault = f;
    return FAULT;
}

static inline void add_fragment(Warp *w, uint32_t mask, uint32_t pc, uint32_t wait, uint32_t id, uint32_t need) {
    Fragment f = {pc, mask, wait, id, need, NEVER, 0};
    w->fragment[w->fragments++] = f;
    if (wait == READY && pc < w->next) w->next = pc;
}

/* Lanes of `m` go to `target`, the other active lanes to the next instruction. */
static inline int branch(Warp *w, const Op *o, uint32_t m, uint32_t target) {
    uint32_t rest = w->active & ~m;
    if (rest) add_fragment(w, rest, (uint32_t)(o - w->launch->code) + 1, READY, 0, 0);
    w->active = m;
    w->pc = target;
    return JUMP;
}

/* Lanes of `m` stop until `wait` is over and resume at `pc`; the other active lanes go on behind this instruction. */
static inline int park(Warp *w, const Op *o, uint32_t m, uint32_t pc, uint32_t wait, uint32_t id, uint32_t need) {
    uint32_t rest = w->active & ~m;
    add_fragment(w, m, pc, wait, id, need);
    w->active = rest;
    w->pc = (uint32_t)(o - w->launch->code) + 1;
    return JUMP;
}

static inline void remove_fragment(Warp *w, uint32_t i) { w->fragment[i] = w->fragment[--w->fragments]; }

/* All lanes that `need` names and that have not exited must execute this instruction together. Joins those already waiting
 * here; returns the lanes to execute, or 0 after parking them (the handler then returns JUMP). */
COLD uint32_t gather_lanes(Warp *w, const Op *o, uint32_t m, uint32_t need) {
    uint32_t pc = (uint32_t)(o - w->launch->code);
    for (uint32_t i = 0; i < w->fragments;) {
        Fragment *f = &w->fragment[i];
        if (f->wait == WAIT_LANES && f->pc == pc) {
            m |= f->mask;
            w->active |= f->mask;
            remove_fragment(w, i);
        } else i++;
    }
    if (!(need & w->live & ~m)) return m;
    park(w, o, m, pc, WAIT_LANES, 0, need);
    return 0;
}

#endif
