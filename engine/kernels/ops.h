// The operations of a forward pass: arguments, shapes and contracts, one struct and one checked function
// each.
//
// Letters: T rows of the step, D hidden, F intermediate, E experts, K experts a row uses, H query heads, G
// key and value heads, P head dim, V vocabulary. Activations are float32, row-major, in views with a row
// stride. Every function validates shapes and returns INVALID_ARGUMENT naming the op and the mismatch, then
// runs the table's entry on `stream`. None allocates, but for a
// CUDA stream's scratch that grows. Outputs never overlap inputs unless said.
#pragma once

#include "engine/kernels/add.h"              // IWYU pragma: export
#include "engine/kernels/clamp.h"            // IWYU pragma: export
#include "engine/kernels/embed.h"            // IWYU pragma: export
#include "engine/kernels/expert_ffn.h"       // IWYU pragma: export
#include "engine/kernels/heads.h"            // IWYU pragma: export
#include "engine/kernels/matmul.h"           // IWYU pragma: export
#include "engine/kernels/moe_combine.h"      // IWYU pragma: export
#include "engine/kernels/moe_gate.h"         // IWYU pragma: export
#include "engine/kernels/moe_resident.h"     // IWYU pragma: export
#include "engine/kernels/paged_attention.h"  // IWYU pragma: export
#include "engine/kernels/rms_norm.h"         // IWYU pragma: export
#include "engine/kernels/rope.h"             // IWYU pragma: export
#include "engine/kernels/top_logits.h"       // IWYU pragma: export
