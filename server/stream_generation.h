// GenerateStream: the completions as they come.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "server/generation.h"

namespace comoe::server {

class StreamTransport : public Transport {
 public:
  // `message` stays as it is until Generation::WriteDone, which permits the next write.
  virtual void Write(const v1::GenerateStreamResponse& message) = 0;
  // No WriteDone follows; `message` stays as it is while the transport lives.
  virtual void WriteAndFinish(const v1::GenerateStreamResponse& message, const absl::Status& status) = 0;
};

class StreamGeneration final : public Generation {
 public:
  // Both outlive what the transport's Finish ends.
  StreamGeneration(const v1::GenerateStreamRequest& request, StreamTransport& transport, absl::Time deadline,
                   const GenerationServices& services);

 private:
  absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const override;
  const v1::GenerateRequest& request() const override { return request_.request(); }
  void Advance() override;
  void WatchReader();
  void WriteStarted();
  // False: no choice has something to send now.
  bool WriteDelta();
  // Of the next choice that is complete, if one is.
  void WriteFinished();
  bool IsDue(const Choice& choice);
  void Send();

  const v1::GenerateStreamRequest& request_;
  StreamTransport& transport_;
  std::optional<StreamBacklog::Account> backlog_;  // until the end
  bool started_sent_ = false;
  std::vector<bool> finished_sent_;     // by choice
  std::size_t next_choice_ = 0;         // whose turn it is
  absl::Duration timer_;                // when a wake is due, by the monotonic clock; 0: none is
  v1::GenerateStreamResponse message_;  // one for the whole stream; the transport reads it during a write
};

}  // namespace comoe::server
