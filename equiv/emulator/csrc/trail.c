/* Records what instructions read and wrote: before each one the registers that it reads are copied, after it those that it
 * writes, and an event says who executed it. Wraps the handlers of a launch; a launch without it knows nothing of this. */
#include "runtime.h"

/* Bytes of the register file: of one register or predicate, all lanes. */
typedef struct { uint32_t offset, bytes; } Part;

/* Of each instruction. run: its own handler; guard, flip: as in Op, if it has none: always true. */
typedef struct Kept {
    Handler *run;
    const Part *part;
    uint32_t reads, writes, size, guard, flip, reserved;
} Kept;

typedef struct Event {
    uint32_t pc, mask, cta, warp;
    uint64_t at; /* of its first byte in `trail_data` */
} Event;

const Kept *trail_kept;
Event *trail_event;
uint8_t *trail_data;
uint64_t trail_events, trail_most_events, trail_bytes, trail_most_bytes;
uint32_t trail_first, trail_last, trail_full; /* CTAs of which something is kept; whether there was more than room for */

static void copy(const Warp *w, const Part *part, uint32_t count, uint8_t **to) {
    for (uint32_t i = 0; i < count; i++) {
        memcpy(*to, w->regs + part[i].offset, part[i].bytes);
        *to += part[i].bytes;
    }
}

int trail(Warp *w, const Op *o, uint32_t m) {
    const uint32_t pc = (uint32_t)(o - w->launch->code), before = w->active;
    const Kept *k = &trail_kept[pc];
    if (w->cta->linear < trail_first || w->cta->linear > trail_last) return k->run(w, o, m);
    if (trail_events == trail_most_events || trail_bytes + k->size > trail_most_bytes) {
        trail_full = 1;
        return k->run(w, o, m);
    }
    uint32_t done = m & (*(const uint32_t *)(w->regs + k->guard) ^ k->flip);
    uint8_t *to = trail_data + trail_bytes;
    copy(w, k->part, k->reads, &to);
    const uint32_t fragments = w->fragments;
    const int result = k->run(w, o, m);
    if (result == FAULT) return result;
    /* Lanes that wait here come again with those that they waited for. */
    if (result == JUMP && w->fragments > fragments && w->fragment[w->fragments - 1].wait == WAIT_LANES &&
        w->fragment[w->fragments - 1].pc == pc) return result;
    if (result == NEXT) done |= w->active & ~before;
    copy(w, k->part + k->reads, k->writes, &to);
    trail_event[trail_events++] = (Event){pc, done, w->cta->linear, w->id, trail_bytes};
    trail_bytes += k->size;
    return result;
}
