/* The matrix unit: one library with everything that multiplies matrices, entered through the table that equiv_matrix returns.
 * MODELS and TENSOR_MODEL come from equiv.emulator.matrix_unit, which writes them in front of this file. */
#include "tensor_mma.h"
#include "warp_mma.h"

const Matrix *equiv_matrix(void) {
    static const Matrix unit = {warp_mma, warp_wgmma, wgmma_land, tensor_alloc, tensor_dealloc, tensor_relinquish, tensor_load, tensor_store,
                                tensor_copy, tensor_mma};
    return &unit;
}
