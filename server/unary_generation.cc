#include "server/unary_generation.h"

#include "server/messages.h"

namespace comoe::server {

UnaryGeneration::UnaryGeneration(const v1::GenerateRequest& request, UnaryTransport& transport,
                                 absl::Time deadline, const GenerationServices& services)
    : Generation(Method::kGenerate, deadline, transport, services),
      request_(request),
      transport_(transport) {}

absl::StatusOr<GenerationSpec> UnaryGeneration::Parse(const RequestBounds& bounds) const {
  return ParseGenerateRequest(request_, bounds);
}

void UnaryGeneration::Advance() {
  if (const std::optional<absl::Status> failure = Failure(); failure.has_value()) {
    End(*failure);
    return;
  }
  if (!all_complete()) {
    EndIfTooLarge();
    return;
  }
  absl::Status status = StatusOfChoices();
  if (status.ok()) {
    FillResponse(&transport_.response());
    if (const auto failure = TooLarge("the answer", transport_.response().ByteSizeLong());
        failure.has_value()) {
      transport_.response().Clear();
      status = *failure;
    }
  }
  End(status);
}

// What is too large already is not generated to its end: with alternatives to every token it would take a lot
// of memory.
void UnaryGeneration::EndIfTooLarge() {
  std::size_t bytes = 0;
  for (const std::unique_ptr<Choice>& choice : choices()) {
    bytes += choice->num_waiting_bytes();
  }
  if (const auto failure = TooLarge("the answer so far", bytes); failure.has_value()) {
    Cancel();
    End(*failure);
  }
}

void UnaryGeneration::FillResponse(v1::GenerateResponse* response) {
  response->set_request_id(spec().request.id);
  response->set_model(model_name());
  for (const std::unique_ptr<Choice>& choice : choices()) {
    v1::GenerateResponse::Choice* message = response->add_choices();
    choice->Take(message);
    message->set_index(static_cast<std::uint32_t>(choice->index()));
    choice->FillEnd(message);
  }
  ToMessage(usage(), response->mutable_usage());
  response->set_seed(spec().request.sampling.seed);
  ToMessage(timing(), response->mutable_timing());
  if (spec().request.prompt_logprobs >= 0) {
    ToMessage(spec().request.prompt, choices().front()->prompt_scores(), response->mutable_prompt_logprobs());
  }
}

}  // namespace comoe::server
