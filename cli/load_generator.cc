#include "cli/load_generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "comoe/v1/inference.grpc.pb.h"
#include "engine/base/rng.h"
#include "engine/base/sync.h"
#include "grpcpp/grpcpp.h"
#include "server/status_conversion.h"

namespace comoe::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kLook = absl::Milliseconds(100);

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Draws of one kind, so that a length does not depend on how many other things were drawn.
enum class Draw : std::uint64_t { kPromptLength, kOutputLength, kPiece, kArrival, kToken };
double Unit(std::uint64_t seed, Draw kind, std::uint64_t index) {
  return base::RandomUnit(seed * 8 + static_cast<std::uint64_t>(kind), index);
}

class Load;

// One request. Owned by gRPC from Start until OnDone.
class Call final : public grpc::ClientReadReactor<v1::GenerateStreamResponse> {
 public:
  Call(std::shared_ptr<Load> load, v1::GenerateStreamRequest request)
      : load_(std::move(load)), request_(std::move(request)) {}
  void Start(v1::InferenceService::Stub& stub, absl::Duration timeout) {
    if (timeout != absl::InfiniteDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    }
    begin_ = Clock::now();
    stub.async()->GenerateStream(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  const std::shared_ptr<Load> load_;
  const v1::GenerateStreamRequest request_;
  grpc::ClientContext context_;
  v1::GenerateStreamResponse response_;
  Clock::time_point begin_;
  double last_token_ = -1;  // seconds since begin_
  double first_token_ = -1;
  std::vector<double> inter_token_;
  std::int64_t num_tokens_ = 0;
};

// The run. Calls report to it on gRPC's threads.
class Load : public std::enable_shared_from_this<Load> {
 public:
  Load(const LoadOptions& options, v1::InferenceService::Stub& stub) : options_(options), stub_(stub) {}

  void Run(const std::function<void(const LoadProgress&)>& progress) {
    begin_ = Clock::now();
    if (options_.requests_per_second > 0) {
      for (std::int64_t i = 0; i < options_.requests; ++i) {
        SleepUntilArrival(i, progress);
        StartNext();
      }
    } else {
      for (std::int64_t i = 0; i < std::min(options_.clients, options_.requests); ++i) {
        StartNext();
      }
    }
    base::MutexLock lock(&mutex_);
    while (state_.ended < options_.requests) {
      changed_.WaitWithTimeout(&mutex_, kLook);
      progress(state_);
    }
    result_.seconds = last_end_;
    result_.requests = options_.requests;
  }
  LoadResult TakeResult() {
    base::MutexLock lock(&mutex_);
    return std::move(result_);
  }

  void AddTokens(std::int64_t tokens) {
    base::MutexLock lock(&mutex_);
    state_.output_tokens += tokens;
    result_.output_tokens += tokens;
  }
  void End(const grpc::Status& status, const v1::GenerateStreamRequest& request, double seconds,
           double first_token, const std::vector<double>& inter_token) {
    {
      base::MutexLock lock(&mutex_);
      if (first_token >= 0) {
        result_.first_token.push_back(first_token);
      }
      result_.inter_token.insert(result_.inter_token.end(), inter_token.begin(), inter_token.end());
      if (status.ok()) {
        result_.end_to_end.push_back(seconds);
        result_.prompt_tokens += request.request().tokens().ids_size();
      } else {
        if (result_.first_error.empty()) {
          result_.first_error = status.error_message();
        }
        ++result_.errors[std::string(server::CodeName(server::FromGrpcStatus(status).code()))];
      }
      last_end_ = Since(begin_);
      --state_.in_flight;
    }
    if (options_.requests_per_second <= 0) {
      StartNext();
    }
    base::MutexLock lock(&mutex_);
    ++state_.ended;
    changed_.Signal();
  }

 private:
  void SleepUntilArrival(std::int64_t i, const std::function<void(const LoadProgress&)>& progress) {
    next_arrival_ += -std::log1p(-Unit(options_.seed, Draw::kArrival, static_cast<std::uint64_t>(i))) /
                     options_.requests_per_second;
    for (double left = next_arrival_ - Since(begin_); left > 0; left = next_arrival_ - Since(begin_)) {
      absl::SleepFor(std::min(absl::Seconds(left), kLook));
      base::MutexLock lock(&mutex_);
      progress(state_);
    }
  }

  void StartNext() {
    std::int64_t index = 0;
    {
      base::MutexLock lock(&mutex_);
      if (started_ == options_.requests) {
        return;
      }
      index = started_++;
      result_.most_in_flight = std::max(result_.most_in_flight, ++state_.in_flight);
    }
    (new Call(shared_from_this(), MakeRequest(static_cast<std::uint64_t>(index))))
        ->Start(stub_, options_.timeout);
  }

  v1::GenerateStreamRequest MakeRequest(std::uint64_t index) const {
    const auto draw = [this, index](Draw kind) { return Unit(options_.seed, kind, index); };
    v1::GenerateStreamRequest message;
    v1::GenerateRequest& request = *message.mutable_request();
    const std::int64_t length = options_.prompt_tokens.Draw(draw(Draw::kPromptLength));
    const auto available = static_cast<std::int64_t>(options_.text_tokens.size());
    const auto start = static_cast<std::int64_t>(
        draw(Draw::kPiece) * static_cast<double>(std::max<std::int64_t>(1, available - length)));
    for (std::int64_t i = 0; i < length; ++i) {
      const std::uint64_t at = (index << 20) + static_cast<std::uint64_t>(i);
      request.mutable_tokens()->add_ids(static_cast<std::uint32_t>(
          available > 0 ? options_.text_tokens[static_cast<std::size_t>((start + i) % available)]
                        : static_cast<std::int64_t>(Unit(options_.seed, Draw::kToken, at) *
                                                    static_cast<double>(options_.vocab_size))));
    }
    request.mutable_stopping()->set_max_tokens(
        static_cast<std::uint32_t>(options_.output_tokens.Draw(draw(Draw::kOutputLength))));
    request.mutable_stopping()->set_ignore_eos(options_.ignore_eos);
    request.mutable_sampling()->set_temperature(static_cast<float>(options_.temperature));
    request.mutable_sampling()->set_seed(options_.seed + index);
    return message;
  }

  const LoadOptions& options_;
  v1::InferenceService::Stub& stub_;
  Clock::time_point begin_;
  double next_arrival_ = 0;  // seconds since begin_
  base::Mutex mutex_;
  base::CondVar changed_;
  LoadProgress state_ ABSL_GUARDED_BY(mutex_);
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
  std::int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  double last_end_ ABSL_GUARDED_BY(mutex_) = 0;
};

void Call::OnReadDone(bool ok) {
  if (!ok) {
    return;
  }
  if (const int tokens = response_.delta().token_ids_size(); tokens > 0) {
    const double now = Since(begin_);
    if (last_token_ >= 0) {
      inter_token_.insert(inter_token_.end(), static_cast<std::size_t>(tokens), (now - last_token_) / tokens);
    } else {
      first_token_ = now;
    }
    last_token_ = now;
    num_tokens_ += tokens;
    load_->AddTokens(tokens);
  }
  StartRead(&response_);
}

void Call::OnDone(const grpc::Status& status) {
  load_->End(status, request_, Since(begin_), first_token_, inter_token_);
  delete this;
}

}  // namespace

std::int64_t LengthDistribution::Draw(double unit) const {
  switch (kind) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      return low + static_cast<std::int64_t>(unit * static_cast<double>(high - low + 1));
    case Kind::kExponential:
      return std::max<std::int64_t>(1, std::llround(-std::log1p(-unit) * static_cast<double>(low)));
  }
  return low;
}

absl::StatusOr<LengthDistribution> ParseLengths(absl::string_view flag, absl::string_view text) {
  LengthDistribution lengths;
  const std::pair<absl::string_view, absl::string_view> range = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(text, absl::MaxSplits(':', 1));
  bool ok = false;
  if (named.first == "exp") {
    lengths.kind = LengthDistribution::Kind::kExponential;
    ok = absl::SimpleAtoi(named.second, &lengths.low);
  } else if (!range.second.empty()) {
    lengths.kind = LengthDistribution::Kind::kUniform;
    ok = absl::SimpleAtoi(range.first, &lengths.low) && absl::SimpleAtoi(range.second, &lengths.high) &&
         lengths.low <= lengths.high;
  } else {
    ok = absl::SimpleAtoi(text, &lengths.low);
  }
  if (!ok || lengths.low < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is '", text, "': a number of tokens as 128, a range as 16-512, or exp:MEAN"));
  }
  return lengths;
}

absl::StatusOr<LoadResult> GenerateLoad(const LoadOptions& options,
                                        const std::function<void(const LoadProgress&)>& progress) {
  const std::shared_ptr<grpc::Channel> channel =
      grpc::CreateChannel(options.server, grpc::InsecureChannelCredentials());
  if (!channel->WaitForConnected(absl::ToChronoTime(absl::Now() + kConnectTimeout))) {
    return absl::UnavailableError(absl::StrCat(options.server, ": no server answers there within ",
                                               absl::FormatDuration(kConnectTimeout)));
  }
  const std::unique_ptr<v1::InferenceService::Stub> stub = v1::InferenceService::NewStub(channel);
  const auto load = std::make_shared<Load>(options, *stub);
  load->Run(progress);
  // gRPC's threads may still be on their way out of the last calls, and the channel is not to end under them.
  while (load.use_count() > 1) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return load->TakeResult();
}

}  // namespace comoe::cli
