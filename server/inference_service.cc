#include "server/inference_service.h"

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "grpcpp/support/server_callback.h"
#include "server/engine_thread.h"
#include "server/error_details.h"
#include "server/immediate_call.h"
#include "server/messages.h"
#include "server/request_fields.h"
#include "server/status_conversion.h"
#include "server/stream_generation.h"
#include "server/unary_generation.h"

namespace comoe::server {
namespace {

constexpr int kMaxAbortIds = 1024;
constexpr int kMaxDetokenizeIds = 1 << 20;

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

// gRPC's side of a stream. Deletes itself in OnDone, after which the generation, which others may still hold,
// no longer touches it: TransportDone has told it.
class StreamReactor final : public grpc::ServerWriteReactor<v1::GenerateStreamResponse>,
                            public StreamTransport {
 public:
  StreamReactor(grpc::CallbackServerContext& context, const v1::GenerateStreamRequest& request,
                const GenerationServices& services)
      : context_(context),
        state_(services.state),
        generation_(std::make_shared<StreamGeneration>(request, *this, DeadlineOf(context), services)) {
    state_.OpenGeneration();
  }
  void Begin() { generation_->Start(); }

  void OnCancel() override { generation_->Cancel(); }
  void OnWriteDone(bool ok) override { generation_->WriteDone(ok); }
  void OnDone() override {
    generation_->TransportDone();
    state_.CloseGeneration();
    delete this;
  }

  void Write(const v1::GenerateStreamResponse& message) override {
    EngineThread::CheckNotCurrent();
    StartWrite(&message);
  }
  void WriteAndFinish(const v1::GenerateStreamResponse& message, const absl::Status& status) override {
    EngineThread::CheckNotCurrent();
    AddTrailers(status, &context_);
    StartWriteAndFinish(&message, grpc::WriteOptions(), ToGrpcStatus(status));
  }
  void Finish(const absl::Status& status) override {
    EngineThread::CheckNotCurrent();
    AddTrailers(status, &context_);
    grpc::ServerWriteReactor<v1::GenerateStreamResponse>::Finish(ToGrpcStatus(status));
  }
  void Abandon() override {
    EngineThread::CheckNotCurrent();
    context_.TryCancel();  // may run OnDone, and with it the end of this
  }
  std::string peer() const override { return context_.peer(); }

 private:
  grpc::CallbackServerContext& context_;
  ServingState& state_;
  const std::shared_ptr<StreamGeneration> generation_;
};

class UnaryReactor final : public grpc::ServerUnaryReactor, public UnaryTransport {
 public:
  UnaryReactor(grpc::CallbackServerContext& context, const v1::GenerateRequest& request,
               v1::GenerateResponse& response, const GenerationServices& services)
      : context_(context),
        response_(response),
        state_(services.state),
        generation_(std::make_shared<UnaryGeneration>(request, *this, DeadlineOf(context), services)) {
    state_.OpenGeneration();
  }
  void Begin() { generation_->Start(); }

  void OnCancel() override { generation_->Cancel(); }
  void OnDone() override {
    generation_->TransportDone();
    state_.CloseGeneration();
    delete this;
  }

  v1::GenerateResponse& response() override { return response_; }
  void Finish(const absl::Status& status) override {
    EngineThread::CheckNotCurrent();
    AddTrailers(status, &context_);
    grpc::ServerUnaryReactor::Finish(ToGrpcStatus(status));
  }
  void Abandon() override {
    EngineThread::CheckNotCurrent();
    context_.TryCancel();  // may run OnDone, and with it the end of this
  }
  std::string peer() const override { return context_.peer(); }

 private:
  grpc::CallbackServerContext& context_;
  v1::GenerateResponse& response_;
  ServingState& state_;
  const std::shared_ptr<UnaryGeneration> generation_;
};

// gRPC would refuse to send it, with words of its own and behind our back.
template <typename Response>
absl::Status CheckAnswer(const Limits& limits, Response* response) {
  const std::size_t bytes = response->ByteSizeLong();
  if (bytes <= static_cast<std::size_t>(limits.max_answer_bytes)) {
    return absl::OkStatus();
  }
  response->Clear();
  return AnswerTooLarge("the answer", bytes, limits.max_answer_bytes);
}

absl::StatusOr<const tokenizer::Tokenizer*> TokenizerOf(const ServingState& state, absl::string_view model,
                                                        const Backend** backend) {
  COMOE_ASSIGN_OR_RETURN(*backend, state.Accept());
  COMOE_RETURN_IF_ERROR(CheckModel(model, (*backend)->model));
  if ((*backend)->tokenizer == nullptr) {
    return absl::FailedPreconditionError("the model has no tokenizer");
  }
  return (*backend)->tokenizer;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* context,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  auto* reactor = new UnaryReactor(*context, *request, *response, services_);
  reactor->Begin();
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* context, const v1::GenerateStreamRequest* request) {
  auto* reactor = new StreamReactor(*context, *request, services_);
  reactor->Begin();  // may finish it before this returns; gRPC keeps it alive until it is bound
  return reactor;
}

template <typename Work>
grpc::ServerUnaryReactor* InferenceService::OnWorker(grpc::CallbackServerContext* context, Method method,
                                                     std::size_t request_bytes, Work work) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Duration arrival = MonotonicNow();
  services_.metrics.RecordStart(method);
  const auto finish = [this, context, reactor, method, arrival](const absl::Status& status) {
    Terminal terminal;
    terminal.method = method;
    terminal.code = status.code();
    terminal.elapsed = MonotonicNow() - arrival;
    services_.metrics.RecordTerminal(terminal);
    AddTrailers(status, context);
    EngineThread::CheckNotCurrent();
    reactor->Finish(ToGrpcStatus(status));  // last: request and response are gone after it
  };
  // Nobody waits for the answer of who has left.
  const auto run = [context, finish, work] {
    finish(context->IsCancelled() ? absl::CancelledError("the client left before its turn came") : work());
  };
  if (!services_.workers.Post(WorkerPool::Urgency::kQuestion, request_bytes, run)) {
    finish(absl::ResourceExhaustedError("too many requests wait to be tokenised: try again later"));
  }
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return OnWorker(context, Method::kTokenize, request->ByteSizeLong(), [this, request, response] {
    const absl::Status status = RunTokenize(*request, response);
    return status.ok() ? CheckAnswer(services_.limits, response) : status;
  });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return OnWorker(context, Method::kDetokenize, request->ByteSizeLong(), [this, request, response] {
    const absl::Status status = RunDetokenize(*request, response);
    return status.ok() ? CheckAnswer(services_.limits, response) : status;
  });
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  // A few look-ups and notes: it does not wait behind texts that are tokenised.
  return AnswerNow(context, Method::kAbort, services_.metrics, [&] { return RunAbort(*request, response); });
}

absl::Status InferenceService::RunTokenize(const v1::TokenizeRequest& request,
                                           v1::TokenizeResponse* response) const {
  const Backend* backend = nullptr;
  COMOE_ASSIGN_OR_RETURN(const tokenizer::Tokenizer* tokenizer,
                         TokenizerOf(services_.state, request.model(), &backend));
  COMOE_RETURN_IF_ERROR(CheckTextBytes("text", request.text(), services_.limits));
  const bool add_special = request.has_add_special_tokens() ? request.add_special_tokens() : true;
  if (request.return_offsets()) {
    COMOE_ASSIGN_OR_RETURN(const std::vector<tokenizer::TokenSpan> spans,
                           tokenizer->EncodeWithOffsets(request.text(), add_special));
    for (const tokenizer::TokenSpan& span : spans) {
      response->add_token_ids(ToUint32(span.id));
      v1::TokenOffset* offset = response->add_offsets();
      offset->set_begin(static_cast<std::uint32_t>(span.begin_bytes));
      offset->set_end(static_cast<std::uint32_t>(span.end_bytes));
    }
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<base::TokenId> ids,
                         tokenizer->Encode(request.text(), add_special));
  response->mutable_token_ids()->Reserve(static_cast<int>(ids.size()));
  for (const base::TokenId id : ids) {
    response->add_token_ids(ToUint32(id));
  }
  return absl::OkStatus();
}

absl::Status InferenceService::RunDetokenize(const v1::DetokenizeRequest& request,
                                             v1::DetokenizeResponse* response) const {
  const Backend* backend = nullptr;
  COMOE_ASSIGN_OR_RETURN(const tokenizer::Tokenizer* tokenizer,
                         TokenizerOf(services_.state, request.model(), &backend));
  if (request.token_ids_size() > kMaxDetokenizeIds) {
    return InvalidField(
        "token_ids", absl::StrCat("has ", request.token_ids_size(), " ids: ", kMaxDetokenizeIds, " at most"));
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<base::TokenId> ids,
                         ToTokenIds("token_ids", request.token_ids(), backend->model.vocab_size));
  const bool skip_special = request.has_skip_special_tokens() ? request.skip_special_tokens() : true;
  const auto max_bytes = static_cast<std::size_t>(services_.limits.max_answer_bytes);
  for (const base::TokenId id : ids) {
    if (!skip_special || !tokenizer->IsSpecial(id)) {
      response->mutable_raw()->append(tokenizer->TokenBytes(id));
    }
    if (response->raw().size() > max_bytes) {  // before as much again is decoded
      return AnswerTooLarge("DetokenizeResponse.raw", response->raw().size(),
                            services_.limits.max_answer_bytes);
    }
  }
  absl::StatusOr<std::string> text = tokenizer->Decode(ids, skip_special);
  if (!text.ok()) {
    return WithField(base::Annotate(text.status(), "token_ids"), "token_ids");
  }
  response->set_text(*std::move(text));
  return absl::OkStatus();
}

absl::Status InferenceService::RunAbort(const v1::AbortRequest& request, v1::AbortResponse* response) const {
  COMOE_RETURN_IF_ERROR(services_.state.Loaded().status());
  if (request.request_ids().empty() || request.request_ids_size() > kMaxAbortIds) {
    return InvalidField("request_ids",
                        absl::StrCat("has ", request.request_ids_size(), " ids: 1 to ", kMaxAbortIds));
  }
  for (int i = 0; i < request.request_ids_size(); ++i) {
    COMOE_RETURN_IF_ERROR(CheckRequestId(absl::StrCat("request_ids[", i, "]"), request.request_ids(i)));
  }
  std::uint32_t aborted = 0;
  // An id that is named twice is one request.
  for (const std::string& id :
       std::set<std::string>(request.request_ids().begin(), request.request_ids().end())) {
    const std::shared_ptr<Generation> generation = services_.registry.Find(id);
    aborted += generation != nullptr && generation->Abort() ? 1 : 0;
  }
  response->set_aborted(aborted);
  return absl::OkStatus();
}

}  // namespace comoe::server
