// Routing traces as files: which experts each row of each step used, as docs/TRACES.md lays the bytes out.
//
// Written step by step with bounded memory; read either step by step or whole, by sequence. Files are
// hostile: every length, id and checksum is checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/file_writer.h"
#include "engine/base/ids.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Stands for no expert in look-ahead lists.
inline constexpr std::uint16_t kNoExpert = 0xFFFF;

// Limits of the format; a file beyond them is refused.
inline constexpr std::int32_t kMaxTraceLookahead = 8;
inline constexpr std::int32_t kMaxTraceExperts = 4096;
inline constexpr std::int32_t kMaxTraceLayers = 1024;
inline constexpr std::int32_t kMaxTraceRows = 65536;

// What a trace is of. E experts, k of them for each row, L MoE layers.
struct TraceHeader {
  std::string model;               // its name; for people
  std::uint64_t model_hash = 0;    // 0: not known
  std::uint64_t expert_bytes = 0;  // of one blob; 0: not known
  std::int32_t vocab_size = 0;
  std::int32_t num_layers = 0;           // all decoder layers
  std::vector<std::int32_t> moe_layers;  // ascending
  std::int32_t num_experts = 0;
  std::int32_t experts_per_token = 0;
  bool has_weights = false;
  bool has_domains = false;
  std::int32_t lookahead = 0;        // W: distances recorded
  std::int32_t lookahead_width = 0;  // M: experts of each, 0 if there is none
  bool has_scores = false;           // of look-ahead; otherwise only the order is known

  std::int32_t num_moe_layers() const { return static_cast<std::int32_t>(moe_layers.size()); }
};

// A row of a step.
struct TraceRowId {
  std::uint64_t sequence = 0;
  std::int32_t position = 0;
  base::TokenId token = 0;
  std::uint8_t domain = 0;  // a class of texts; 0 where there are none
};

// One step: [L, T, ...], rows in the order of the plan.
struct TraceStepRecord {
  std::uint64_t step = 0;
  std::vector<TraceRowId> rows;        // T, at least 1
  std::vector<std::uint16_t> experts;  // [L, T, k], best first
  std::vector<float> weights;          // [L, T, k], or empty
  std::vector<std::uint16_t> ahead;    // [W, L, T, M]: for target layer l, what was named d + 1 layers before
  std::vector<float> scores;           // [W, L, T, M], or empty; 0 where there is no expert
};

// INVALID_ARGUMENT says what is out of range.
absl::Status CheckTraceHeader(const TraceHeader& header);
absl::Status CheckTraceStep(const TraceHeader& header, const TraceStepRecord& step);

// Not thread-safe. The file appears under its name with Finish, and never otherwise.
class TraceWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TraceWriter>> Create(const std::string& path,
                                                             const TraceHeader& header);
  // INVALID_ARGUMENT for a step that does not fit the header. Writes when a chunk is full.
  absl::Status Append(const TraceStepRecord& step);
  absl::Status Finish();
  std::uint64_t num_steps() const { return num_steps_; }
  std::uint64_t num_rows() const { return num_rows_; }

 private:
  TraceWriter(TraceHeader header, std::unique_ptr<base::AtomicFileWriter> file);
  absl::Status Flush();

  const TraceHeader header_;
  const std::unique_ptr<base::AtomicFileWriter> file_;
  std::string chunk_;
  std::uint64_t num_steps_ = 0;
  std::uint64_t num_rows_ = 0;
};

// A text and its routing.
struct TraceSequence {
  std::uint64_t id = 0;
  std::int32_t first_position = 0;
  std::vector<base::TokenId> tokens;              // T
  std::vector<std::uint8_t> domains;              // T, or empty
  std::vector<std::uint16_t> experts;             // [T, L, k], best first
  std::vector<float> weights;                     // [T, L, k], or empty
  std::vector<std::vector<std::uint16_t>> ahead;  // [W] of [T, L, M]
  std::vector<std::vector<float>> scores;         // [W] of [T, L, M], or empty

  std::int32_t num_tokens() const { return static_cast<std::int32_t>(tokens.size()); }
};

struct Trace {
  TraceHeader header;
  std::vector<TraceSequence> sequences;  // in order of appearance

  std::int64_t num_rows() const;
  // [k] of a row, best first.
  absl::Span<const std::uint16_t> Experts(std::size_t sequence, std::int32_t token,
                                          std::int32_t moe_layer) const;
  // [M]: what was named for `moe_layer` `distance` >= 1 layers before.
  absl::Span<const std::uint16_t> Ahead(std::size_t sequence, std::int32_t token, std::int32_t moe_layer,
                                        std::int32_t distance) const;
  absl::Span<const float> Scores(std::size_t sequence, std::int32_t token, std::int32_t moe_layer,
                                 std::int32_t distance) const;
  // With `device_slots` slots and everything in page-locked memory.
  TierShape Shape(std::int32_t device_slots) const;

 private:
  std::size_t Cell(std::int32_t token, std::int32_t moe_layer) const;
};

using TraceStepSink = std::function<absl::Status(const TraceHeader& header, const TraceStepRecord& step)>;

// Parses a whole file in memory; `name` is what messages call it. INVALID_ARGUMENT: not a trace, or of a
// version that is not read here; DATA_LOSS: damaged or cut short. Steps before the damage were handed over.
absl::StatusOr<TraceHeader> ParseTrace(absl::Span<const std::byte> bytes, absl::string_view name,
                                       const TraceStepSink& sink);
// The same for a file on disk, which is mapped.
absl::StatusOr<TraceHeader> ReadTraceSteps(const std::string& path, const TraceStepSink& sink);
// Whole, by sequence. INVALID_ARGUMENT when a sequence's positions do not follow each other.
absl::StatusOr<Trace> ReadTrace(const std::string& path);
// The other way round: one row a step, sequence after sequence.
absl::Status WriteTrace(const std::string& path, const Trace& trace);
// Does the file begin like a trace? False also when it cannot be read.
bool LooksLikeTrace(const std::string& path);

}  // namespace comoe::routing
