#include "scheduler/routing/trace_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/byte_format.h"

namespace comoe::routing {
namespace {

constexpr absl::string_view kMagic = "COMOETRC";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kStepsChunk = 1;
constexpr std::uint32_t kEndChunk = 2;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;  // a writer's; a single step may be longer
constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxHeaderBytes = 1U << 20;
constexpr std::size_t kMaxNameBytes = 4096;

constexpr std::uint32_t kWeightsFlag = 1;
constexpr std::uint32_t kDomainsFlag = 2;
constexpr std::uint32_t kScoresFlag = 4;

std::string EncodeHeader(const TraceHeader& header) {
  std::string payload;
  PutValue<std::uint64_t>(&payload, header.model_hash);
  PutValue<std::uint64_t>(&payload, header.expert_bytes);
  PutValue<std::int32_t>(&payload, header.vocab_size);
  PutValue<std::int32_t>(&payload, header.num_layers);
  PutValue<std::int32_t>(&payload, header.num_moe_layers());
  PutValue<std::int32_t>(&payload, header.num_experts);
  PutValue<std::int32_t>(&payload, header.experts_per_token);
  PutValue<std::uint32_t>(&payload, (header.has_weights ? kWeightsFlag : 0U) |
                                        (header.has_domains ? kDomainsFlag : 0U) |
                                        (header.has_scores ? kScoresFlag : 0U));
  PutValue<std::int32_t>(&payload, header.lookahead);
  PutValue<std::int32_t>(&payload, header.lookahead_width);
  PutValues(&payload, header.moe_layers);
  PutValue<std::uint32_t>(&payload, static_cast<std::uint32_t>(header.model.size()));
  payload.append(header.model);

  std::string out(kMagic);
  PutValue<std::uint32_t>(&out, kVersion);
  PutValue<std::uint32_t>(&out, static_cast<std::uint32_t>(payload.size()));
  out.append(payload);
  PutValue<std::uint64_t>(&out, ByteChecksum(out.data(), out.size()));
  return out;
}

std::string EncodeChunk(std::uint32_t kind, const std::string& payload) {
  std::string out;
  PutValue<std::uint32_t>(&out, kind);
  PutValue<std::uint32_t>(&out, 0);
  PutValue<std::uint64_t>(&out, payload.size());
  out.append(payload);
  const std::uint64_t sum = ByteChecksum(out.data(), out.size());
  PutValue<std::uint64_t>(&out, sum);
  return out;
}

void EncodeStep(const TraceHeader& header, const TraceStepRecord& step, std::string* out) {
  PutValue<std::uint64_t>(out, step.step);
  PutValue<std::uint32_t>(out, static_cast<std::uint32_t>(step.rows.size()));
  for (const TraceRowId& row : step.rows) {
    PutValue<std::uint64_t>(out, row.sequence);
    PutValue<std::int32_t>(out, row.position);
    PutValue<std::int32_t>(out, row.token);
    if (header.has_domains) {
      PutValue<std::uint8_t>(out, row.domain);
    }
  }
  PutValues(out, step.experts);
  PutValues(out, step.weights);
  PutValues(out, step.ahead);
  PutValues(out, step.scores);
}

absl::Status Damaged(absl::string_view name, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(name, ": ", what, "; record it again"));
}

absl::StatusOr<TraceHeader> DecodeHeader(ByteCursor* file, absl::string_view name) {
  const char* start = file->chars();
  if (file->left() < kMagic.size() + 8 || absl::string_view(start, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is not a routing trace (of `comoe trace record`)"));
  }
  file->Skip(kMagic.size());
  const auto version = file->Take<std::uint32_t>();
  const auto payload_bytes = file->Take<std::uint32_t>();
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is a routing trace of version ", version,
                                                   "; this program reads version ", kVersion));
  }
  if (payload_bytes > kMaxHeaderBytes || payload_bytes + sizeof(std::uint64_t) > file->left()) {
    return Damaged(name, "the header is cut short");
  }
  ByteCursor in(file->data(), payload_bytes);
  file->Skip(payload_bytes);
  const auto sum_of = static_cast<std::size_t>(file->chars() - start);
  if (file->Take<std::uint64_t>() != ByteChecksum(start, sum_of)) {
    return Damaged(name, "the header's checksum does not match");
  }
  TraceHeader header;
  header.model_hash = in.Take<std::uint64_t>();
  header.expert_bytes = in.Take<std::uint64_t>();
  header.vocab_size = in.Take<std::int32_t>();
  header.num_layers = in.Take<std::int32_t>();
  const auto num_moe_layers = in.Take<std::int32_t>();
  header.num_experts = in.Take<std::int32_t>();
  header.experts_per_token = in.Take<std::int32_t>();
  const auto flags = in.Take<std::uint32_t>();
  header.lookahead = in.Take<std::int32_t>();
  header.lookahead_width = in.Take<std::int32_t>();
  if (flags > (kWeightsFlag | kDomainsFlag | kScoresFlag)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": unknown flags ", flags));
  }
  header.has_weights = (flags & kWeightsFlag) != 0;
  header.has_domains = (flags & kDomainsFlag) != 0;
  header.has_scores = (flags & kScoresFlag) != 0;
  if (num_moe_layers < 0 || num_moe_layers > kMaxTraceLayers) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", num_moe_layers, " MoE layers"));
  }
  in.TakeAll(&header.moe_layers, static_cast<std::size_t>(num_moe_layers));
  const auto name_bytes = in.Take<std::uint32_t>();
  if (!in.ok() || name_bytes != in.left()) {
    return Damaged(name, "the header's length is not that of its fields");
  }
  header.model.assign(in.chars(), name_bytes);
  COMOE_RETURN_IF_ERROR(base::Annotate(CheckTraceHeader(header), name));
  return header;
}

bool DecodeStep(const TraceHeader& header, ByteCursor* in, TraceStepRecord* step) {
  step->step = in->Take<std::uint64_t>();
  const auto num_rows = in->Take<std::uint32_t>();
  if (!in->ok() || num_rows < 1 || num_rows > static_cast<std::uint32_t>(kMaxTraceRows)) {
    return false;
  }
  step->rows.clear();
  for (std::uint32_t i = 0; i < num_rows && in->ok(); ++i) {
    TraceRowId& row = step->rows.emplace_back();
    row.sequence = in->Take<std::uint64_t>();
    row.position = in->Take<std::int32_t>();
    row.token = in->Take<std::int32_t>();
    row.domain = header.has_domains ? in->Take<std::uint8_t>() : std::uint8_t{0};
  }
  // At most 8 * 1024 * 65536 * 4096: no product overflows.
  const std::size_t cells = header.moe_layers.size() * num_rows;
  const std::size_t routed = cells * static_cast<std::size_t>(header.experts_per_token);
  const std::size_t named =
      cells * static_cast<std::size_t>(header.lookahead) * static_cast<std::size_t>(header.lookahead_width);
  in->TakeAll(&step->experts, routed);
  in->TakeAll(&step->weights, header.has_weights ? routed : 0);
  in->TakeAll(&step->ahead, named);
  in->TakeAll(&step->scores, header.has_scores ? named : 0);
  return in->ok();
}

absl::Status CheckRange(absl::string_view what, std::int64_t value, std::int64_t low, std::int64_t high) {
  return value >= low && value <= high
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("trace: ", what, " is ", value, ", not in [", low, ", ", high, "]"));
}

}  // namespace

absl::Status CheckTraceHeader(const TraceHeader& header) {
  COMOE_RETURN_IF_ERROR(CheckRange("number of layers", header.num_layers, 1, kMaxTraceLayers));
  COMOE_RETURN_IF_ERROR(CheckRange("number of MoE layers", header.num_moe_layers(), 1, header.num_layers));
  COMOE_RETURN_IF_ERROR(CheckRange("number of experts", header.num_experts, 1, kMaxTraceExperts));
  COMOE_RETURN_IF_ERROR(CheckRange("experts per token", header.experts_per_token, 1, header.num_experts));
  COMOE_RETURN_IF_ERROR(
      CheckRange("vocabulary", header.vocab_size, 1, std::numeric_limits<std::int32_t>::max()));
  COMOE_RETURN_IF_ERROR(CheckRange("look-ahead", header.lookahead, 0, kMaxTraceLookahead));
  COMOE_RETURN_IF_ERROR(CheckRange("experts of a look-ahead", header.lookahead_width,
                                   header.lookahead > 0 ? 1 : 0,
                                   header.lookahead > 0 ? header.num_experts : 0));
  COMOE_RETURN_IF_ERROR(CheckRange("bytes of the model's name",
                                   static_cast<std::int64_t>(header.model.size()), 0, kMaxNameBytes));
  if (header.has_scores && header.lookahead == 0) {
    return absl::InvalidArgumentError("trace: scores of a look-ahead without one");
  }
  std::int32_t before = -1;
  for (const std::int32_t layer : header.moe_layers) {
    if (layer <= before || layer >= header.num_layers) {
      return absl::InvalidArgumentError("trace: MoE layers are not ascending layer numbers");
    }
    before = layer;
  }
  return absl::OkStatus();
}

absl::Status CheckTraceStep(const TraceHeader& header, const TraceStepRecord& step) {
  COMOE_RETURN_IF_ERROR(
      CheckRange("rows of a step", static_cast<std::int64_t>(step.rows.size()), 1, kMaxTraceRows));
  const std::size_t cells = header.moe_layers.size() * step.rows.size();
  const std::size_t routed = cells * static_cast<std::size_t>(header.experts_per_token);
  const std::size_t named =
      cells * static_cast<std::size_t>(header.lookahead) * static_cast<std::size_t>(header.lookahead_width);
  if (step.experts.size() != routed || step.weights.size() != (header.has_weights ? routed : 0) ||
      step.ahead.size() != named || step.scores.size() != (header.has_scores ? named : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: step ", step.step, " has the wrong number of values for its rows"));
  }
  for (const TraceRowId& row : step.rows) {
    COMOE_RETURN_IF_ERROR(CheckRange("token", row.token, 0, header.vocab_size - 1));
    COMOE_RETURN_IF_ERROR(
        CheckRange("position", row.position, 0, std::numeric_limits<std::int32_t>::max() - 1));
  }
  for (const std::uint16_t expert : step.experts) {
    COMOE_RETURN_IF_ERROR(CheckRange("expert", expert, 0, header.num_experts - 1));
  }
  for (const std::uint16_t expert : step.ahead) {
    if (expert != kNoExpert) {
      COMOE_RETURN_IF_ERROR(CheckRange("expert of a look-ahead", expert, 0, header.num_experts - 1));
    }
  }
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!std::all_of(step.weights.begin(), step.weights.end(), finite) ||
      !std::all_of(step.scores.begin(), step.scores.end(), finite)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace: step ", step.step, " has a weight or score that is no finite number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TraceWriter>> TraceWriter::Create(const std::string& path,
                                                                 const TraceHeader& header) {
  COMOE_RETURN_IF_ERROR(CheckTraceHeader(header));
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<base::AtomicFileWriter> file, base::AtomicFileWriter::Create(path));
  COMOE_RETURN_IF_ERROR(file->Append(EncodeHeader(header)));
  return std::unique_ptr<TraceWriter>(new TraceWriter(header, std::move(file)));
}

TraceWriter::TraceWriter(TraceHeader header, std::unique_ptr<base::AtomicFileWriter> file)
    : header_(std::move(header)), file_(std::move(file)) {}

absl::Status TraceWriter::Append(const TraceStepRecord& step) {
  COMOE_RETURN_IF_ERROR(CheckTraceStep(header_, step));
  EncodeStep(header_, step, &chunk_);
  ++num_steps_;
  num_rows_ += step.rows.size();
  return chunk_.size() < kChunkBytes ? absl::OkStatus() : Flush();
}

absl::Status TraceWriter::Flush() {
  if (chunk_.empty()) {
    return absl::OkStatus();
  }
  if (chunk_.size() > kMaxChunkBytes) {
    return absl::InvalidArgumentError("trace: one step is longer than the format allows");
  }
  const absl::Status status = file_->Append(EncodeChunk(kStepsChunk, chunk_));
  chunk_.clear();
  return status;
}

absl::Status TraceWriter::Finish() {
  COMOE_RETURN_IF_ERROR(Flush());
  std::string payload;
  PutValue<std::uint64_t>(&payload, num_steps_);
  PutValue<std::uint64_t>(&payload, num_rows_);
  COMOE_RETURN_IF_ERROR(file_->Append(EncodeChunk(kEndChunk, payload)));
  return file_->Commit();
}

absl::StatusOr<TraceHeader> ParseTrace(absl::Span<const std::byte> bytes, absl::string_view name,
                                       const TraceStepSink& sink) {
  ByteCursor file(bytes.data(), bytes.size());
  COMOE_ASSIGN_OR_RETURN(TraceHeader header, DecodeHeader(&file, name));
  std::uint64_t num_steps = 0;
  std::uint64_t num_rows = 0;
  TraceStepRecord step;
  while (true) {
    const char* start = file.chars();
    const auto kind = file.Take<std::uint32_t>();
    const auto zero = file.Take<std::uint32_t>();
    const auto payload_bytes = file.Take<std::uint64_t>();
    if (!file.ok() || payload_bytes > kMaxChunkBytes || payload_bytes + sizeof(std::uint64_t) > file.left()) {
      return Damaged(name, absl::StrCat("it is cut short after ", num_steps, " steps"));
    }
    ByteCursor in(file.data(), static_cast<std::size_t>(payload_bytes));
    file.Skip(static_cast<std::size_t>(payload_bytes));
    const auto sum_of = static_cast<std::size_t>(file.chars() - start);
    if (file.Take<std::uint64_t>() != ByteChecksum(start, sum_of)) {
      return Damaged(name,
                     absl::StrCat("the checksum of a chunk does not match, after ", num_steps, " steps"));
    }
    if (kind == kEndChunk) {
      const auto steps = in.Take<std::uint64_t>();
      const auto rows = in.Take<std::uint64_t>();
      if (!in.ok() || in.left() != 0 || steps != num_steps || rows != num_rows || file.left() != 0) {
        return Damaged(name, "its end does not fit what comes before");
      }
      return header;
    }
    if (kind != kStepsChunk || zero != 0) {
      return Damaged(name, absl::StrCat("there is a chunk of unknown kind ", kind));
    }
    while (in.left() > 0) {
      if (!DecodeStep(header, &in, &step)) {
        return Damaged(name, absl::StrCat("step number ", num_steps, " is cut short"));
      }
      COMOE_RETURN_IF_ERROR(base::Annotate(CheckTraceStep(header, step), name));
      COMOE_RETURN_IF_ERROR(sink(header, step));
      ++num_steps;
      num_rows += step.rows.size();
    }
  }
}

absl::StatusOr<TraceHeader> ReadTraceSteps(const std::string& path, const TraceStepSink& sink) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<base::MappedFile> file, base::MappedFile::Open(path));
  return ParseTrace(file->bytes(), path, sink);
}

namespace {

// [L, T, n] from `first` on -> appends [L, n] of row `row`.
template <typename T>
void AppendRow(const std::vector<T>& values, std::size_t first, const TraceStepRecord& step, std::size_t row,
               std::size_t n, std::size_t num_layers, std::vector<T>* out) {
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const auto from =
        values.begin() + static_cast<std::ptrdiff_t>(first + (layer * step.rows.size() + row) * n);
    out->insert(out->end(), from, from + static_cast<std::ptrdiff_t>(n));
  }
}

void AppendTraceRow(const TraceHeader& header, const TraceStepRecord& step, std::size_t row,
                    TraceSequence* to) {
  const std::size_t num_layers = header.moe_layers.size();
  const auto k = static_cast<std::size_t>(header.experts_per_token);
  const auto lookahead = static_cast<std::size_t>(header.lookahead);
  const auto width = static_cast<std::size_t>(header.lookahead_width);
  to->tokens.push_back(step.rows[row].token);
  if (header.has_domains) {
    to->domains.push_back(step.rows[row].domain);
  }
  AppendRow(step.experts, 0, step, row, k, num_layers, &to->experts);
  if (header.has_weights) {
    AppendRow(step.weights, 0, step, row, k, num_layers, &to->weights);
  }
  to->ahead.resize(lookahead);
  to->scores.resize(header.has_scores ? lookahead : 0);
  for (std::size_t d = 0; d < lookahead; ++d) {
    const std::size_t first = d * num_layers * step.rows.size() * width;
    AppendRow(step.ahead, first, step, row, width, num_layers, &to->ahead[d]);
    if (header.has_scores) {
      AppendRow(step.scores, first, step, row, width, num_layers, &to->scores[d]);
    }
  }
}

// Appends [L, n] of row `token`, which is how a step of one row has it.
template <typename T>
void Scatter(const std::vector<T>& from, std::size_t token, std::size_t n, std::size_t num_layers,
             std::vector<T>* to) {
  to->insert(to->end(), from.begin() + static_cast<std::ptrdiff_t>(token * num_layers * n),
             from.begin() + static_cast<std::ptrdiff_t>((token + 1) * num_layers * n));
}

}  // namespace

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  Trace trace;
  absl::flat_hash_map<std::uint64_t, std::size_t> places;
  const auto add = [&](const TraceHeader& header, const TraceStepRecord& step) -> absl::Status {
    for (std::size_t i = 0; i < step.rows.size(); ++i) {
      const TraceRowId& row = step.rows[i];
      const auto [found, is_new] = places.try_emplace(row.sequence, trace.sequences.size());
      if (is_new) {
        TraceSequence& sequence = trace.sequences.emplace_back();
        sequence.id = row.sequence;
        sequence.first_position = row.position;
      }
      TraceSequence& sequence = trace.sequences[found->second];
      const std::int64_t expected = std::int64_t{sequence.first_position} + sequence.num_tokens();
      if (row.position != expected) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": sequence ", row.sequence,
                                                       " goes on at position ", row.position, " instead of ",
                                                       expected));
      }
      AppendTraceRow(header, step, i, &sequence);
    }
    return absl::OkStatus();
  };
  COMOE_ASSIGN_OR_RETURN(trace.header, ReadTraceSteps(path, add));
  if (trace.sequences.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no steps"));
  }
  return trace;
}

absl::Status WriteTrace(const std::string& path, const Trace& trace) {
  const TraceHeader& header = trace.header;
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<TraceWriter> writer, TraceWriter::Create(path, header));
  const std::size_t num_layers = header.moe_layers.size();
  const auto k = static_cast<std::size_t>(header.experts_per_token);
  const auto width = static_cast<std::size_t>(header.lookahead_width);
  for (const TraceSequence& sequence : trace.sequences) {
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
      TraceStepRecord step;
      step.step = writer->num_steps();
      step.rows.push_back({sequence.id, sequence.first_position + static_cast<std::int32_t>(t),
                           sequence.tokens[t],
                           sequence.domains.empty() ? std::uint8_t{0} : sequence.domains[t]});
      Scatter(sequence.experts, t, k, num_layers, &step.experts);
      if (header.has_weights) {
        Scatter(sequence.weights, t, k, num_layers, &step.weights);
      }
      for (const std::vector<std::uint16_t>& ahead : sequence.ahead) {
        Scatter(ahead, t, width, num_layers, &step.ahead);
      }
      for (const std::vector<float>& scores : sequence.scores) {
        Scatter(scores, t, width, num_layers, &step.scores);
      }
      COMOE_RETURN_IF_ERROR(writer->Append(step));
    }
  }
  return writer->Finish();
}

bool LooksLikeTrace(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<base::MappedFile>> file = base::MappedFile::Open(path);
  return file.ok() && (*file)->bytes().size() >= kMagic.size() &&
         std::memcmp((*file)->bytes().data(), kMagic.data(), kMagic.size()) == 0;
}

std::int64_t Trace::num_rows() const {
  std::int64_t rows = 0;
  for (const TraceSequence& sequence : sequences) {
    rows += sequence.num_tokens();
  }
  return rows;
}

std::size_t Trace::Cell(std::int32_t token, std::int32_t moe_layer) const {
  return static_cast<std::size_t>(token) * header.moe_layers.size() + static_cast<std::size_t>(moe_layer);
}

absl::Span<const std::uint16_t> Trace::Experts(std::size_t sequence, std::int32_t token,
                                               std::int32_t moe_layer) const {
  const auto k = static_cast<std::size_t>(header.experts_per_token);
  return absl::MakeConstSpan(sequences[sequence].experts).subspan(Cell(token, moe_layer) * k, k);
}

absl::Span<const std::uint16_t> Trace::Ahead(std::size_t sequence, std::int32_t token, std::int32_t moe_layer,
                                             std::int32_t distance) const {
  const auto width = static_cast<std::size_t>(header.lookahead_width);
  return absl::MakeConstSpan(sequences[sequence].ahead[static_cast<std::size_t>(distance - 1)])
      .subspan(Cell(token, moe_layer) * width, width);
}

absl::Span<const float> Trace::Scores(std::size_t sequence, std::int32_t token, std::int32_t moe_layer,
                                      std::int32_t distance) const {
  const auto width = static_cast<std::size_t>(header.lookahead_width);
  return absl::MakeConstSpan(sequences[sequence].scores[static_cast<std::size_t>(distance - 1)])
      .subspan(Cell(token, moe_layer) * width, width);
}

TierShape Trace::Shape(std::int32_t device_slots) const {
  TierShape shape;
  shape.num_layers = header.num_layers;
  shape.moe_layers = header.moe_layers;
  shape.num_experts = header.num_experts;
  shape.experts_per_token = header.experts_per_token;
  shape.device_slots = device_slots;
  shape.pinned_slots = shape.num_moe_experts();
  return shape;
}

}  // namespace comoe::routing
