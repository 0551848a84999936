// conv2d_act_pool_blocks.cuh - what the blocks of the kernels do, forward and backward

#pragma once

#include "conv2d_act_pool_input.cuh"
#include "conv2d_act_pool_weight.cuh"

#ifndef BACKWARD_SHARED
#error "compile with -DBACKWARD_SHARED=<floats of dynamic shared memory of a backward block>; the host counts them"
#endif
static_assert(BACKWARD_SHARED >= at_least(at_least(Pull::SHARED, Push::SHARED), Weights::SHARED), "the tiles fit");
static_assert(THREADS >= at_least(Pull::ITEMS, Weights::ITEMS), "sums stay in registers: one pass over the items");
