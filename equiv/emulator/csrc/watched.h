/* Instructions that a launch looks at beside executing them: those with registers of which it is not certain that something
 * was written to them, and those that it must be able to name afterwards. Each tracked register has one mask in the register
 * file, of the lanes in which it holds something (equiv/emulator/assignment.py). */
#ifndef EQUIV_WATCHED_H
#define EQUIV_WATCHED_H

#include "runtime.h"

/* In the order of equiv.emulator.assignment. */
typedef enum { HOLDS_ALL, HOLDS_ANY, HOLDS_SHUFFLED } Holding;

/* Of each instruction. run: its own handler. guard, flip: what Op has in other instructions, if it is in doubt itself; then Op
 * has the predicate that is always true, and its mask and number come first. at: mask and number of each register it reads, then the masks of those it writes,
 * then of the sources that decide what these hold. shuffle: a shuffle's arguments with value and result at `scratch`. */
typedef struct Watched {
    Handler *run;
    const uint64_t *shuffle;
    const uint32_t *at;
    uint32_t reads, writes, sources, mode, scratch, guarded, guard, flip;
} Watched;

static inline void holds(Warp *w, const Watched *x, const uint32_t *at, uint32_t m, uint32_t lanes) {
    for (uint32_t i = 0; i < x->writes; i++) {
        uint32_t *mask = (uint32_t *)(w->regs + at[i]);
        *mask = (*mask & ~m) | (lanes & m);
    }
}

/* The shuffle once more, with words that say which lanes hold something. */
static int run_shuffled(Warp *w, const Op *o, uint32_t m, const Watched *x, const uint32_t *at) {
    uint32_t before = w->active, source = *(const uint32_t *)(w->regs + at[x->writes]), lanes = 0;
    uint32_t *in = (uint32_t *)(w->regs + x->scratch), *out = in + 32;
    int result = x->run(w, o, m);
    if (result != NEXT) return result;
    Op again = *o;
    again.arg = x->shuffle;
    m |= w->active & ~before; /* lanes that had waited for these */
    LANES(l) in[l] = source >> l & 1;
    x->run(w, &again, m);
    LANES(l) lanes |= (out[l] & 1) << l;
    holds(w, x, at, m, lanes);
    return NEXT;
}

static int run_watched(Warp *w, const Op *o, uint32_t m) {
    uint32_t pc = (uint32_t)(o - w->launch->code), lanes = FULL;
    const Watched *x = &w->launch->watched[pc];
    const uint32_t *at = x->at;
    w->launch->seen[pc] = 1;
    uint32_t chosen = x->guarded ? m & (*(const uint32_t *)(w->regs + x->guard) ^ x->flip) : m;
    for (uint32_t i = 0; w->launch->watch && i < x->reads; i++, at += 2) {
        uint32_t nothing = m & ~*(const uint32_t *)(w->regs + at[0]);
        if (nothing) return fault(w, o, FAULT_REGISTER, (uint32_t)__builtin_ctz(nothing), 0, at[1], 0);
        m = chosen;
    }
    m = chosen;
    if (!m) return NEXT;
    if (!w->launch->watch) return x->run(w, o, m);
    if (x->mode == HOLDS_SHUFFLED && x->sources) return run_shuffled(w, o, m, x, at);
    if (x->mode == HOLDS_ANY && x->sources) lanes = 0;
    for (uint32_t i = 0; i < x->sources; i++) {
        uint32_t mask = *(const uint32_t *)(w->regs + at[x->writes + i]);
        lanes = x->mode == HOLDS_ANY ? lanes | mask : lanes & mask;
    }
    holds(w, x, at, m, lanes);
    return x->run(w, o, m);
}

#endif
