// The feed-forward half of a decoder layer: routed experts (and a shared one), or one dense FFN.
//
// What the device does by itself is queued by QueueFfn, and nothing else, so that it may be captured. Where
// the host decides, there are two parts of it with ServeExperts between them and the next layer.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/step_context.h"
#include "engine/model/weights.h"

namespace comoe::model {

enum class FfnPart : std::uint8_t {
  kAll,  // residual += ffn(norm(residual)): of a dense layer, or of one that StepContext::full_layers has
         // begun
  kGate  // norm and router
};
// Either adds what RunAttention left in `projected` to the residual first.
absl::Status QueueFfn(const StepContext& context, std::int32_t layer, FfnPart part);

// After kGate: waits for it, and residual += experts. The router's choice goes to the director; experts are
// reached through leases, which are released when the layer's work is done.
absl::Status ServeExperts(const StepContext& context, std::int32_t layer);

// Of a layer that ran without the host: guesses for later ones. With nothing missing in the next MoE layer
// there is nothing to guess that could not wait.
void GiveOrders(const StepContext& context, std::int32_t layer);

// The director hears of the layers of this step that ran without the host, in order, each as soon as the
// device has done it, which is waited for.
enum class Tell : std::uint8_t {
  kAll,
  kAllButLast  // but those that end with the last of them
};
absl::Status TellRouting(const StepContext& context, Tell which);

}  // namespace comoe::model
