#include "scheduler/routing/trace_stats.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "scheduler/routing/predictor.h"

namespace comoe::routing {
namespace {

constexpr std::int32_t kHottestPart = 10;  // a tenth
constexpr std::int32_t kHotSetPart = 4;    // a quarter

std::size_t AtLeastOne(std::int32_t count, std::int32_t part) {
  return static_cast<std::size_t>(std::max(count / part, 1));
}

// The `n` most used, ascending.
std::vector<std::int32_t> Hottest(const std::vector<std::int64_t>& counts, std::size_t n) {
  std::vector<std::int32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    [&counts](std::int32_t a, std::int32_t b) {
                      const auto ca = counts[static_cast<std::size_t>(a)];
                      const auto cb = counts[static_cast<std::size_t>(b)];
                      return ca > cb || (ca == cb && a < b);
                    });
  order.resize(n);
  std::sort(order.begin(), order.end());
  return order;
}

double Overlap(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  std::vector<std::int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return static_cast<double>(both.size()) / static_cast<double>(a.size());
}

void Count(const Trace& trace, std::size_t sequence, std::int32_t first, std::int32_t last,
           std::int32_t layer, std::vector<std::int64_t>* counts) {
  for (std::int32_t t = first; t < last; ++t) {
    for (const std::uint16_t expert : trace.Experts(sequence, t, layer)) {
      ++(*counts)[expert];
    }
  }
}

void DescribeLayers(const Trace& trace, RoutingShape* shape) {
  const std::size_t hottest = AtLeastOne(trace.header.num_experts, kHottestPart);
  for (std::int32_t layer = 0; layer < trace.header.num_moe_layers(); ++layer) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(trace.header.num_experts), 0);
    for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
      Count(trace, s, 0, trace.sequences[s].num_tokens(), layer, &counts);
    }
    const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    RoutingShape::Layer& described = shape->layers.emplace_back();
    for (const std::int32_t expert : Hottest(counts, hottest)) {
      described.hottest_share += static_cast<double>(counts[static_cast<std::size_t>(expert)]) / total;
    }
    for (const std::int64_t count : counts) {
      const double p = static_cast<double>(count) / total;
      described.entropy_bits -= count > 0 ? p * std::log2(p) : 0.0;
    }
    shape->hottest_share += described.hottest_share / trace.header.num_moe_layers();
    shape->entropy_bits += described.entropy_bits / trace.header.num_moe_layers();
  }
  shape->uniform_bits = std::log2(trace.header.num_experts);
}

void DescribeDrift(const Trace& trace, std::int32_t window, RoutingShape* shape) {
  const std::size_t hot = AtLeastOne(trace.header.num_experts, kHotSetPart);
  double next_sum = 0.0;
  double other_sum = 0.0;
  std::int64_t num_next = 0;
  std::int64_t num_other = 0;
  for (std::int32_t layer = 0; layer < trace.header.num_moe_layers(); ++layer) {
    std::vector<std::int32_t> other;  // the first window of the text before
    for (std::size_t s = 0; s < trace.sequences.size(); ++s) {
      std::vector<std::int32_t> before;
      for (std::int32_t t = 0; t + window <= trace.sequences[s].num_tokens(); t += window) {
        std::vector<std::int64_t> counts(static_cast<std::size_t>(trace.header.num_experts), 0);
        Count(trace, s, t, t + window, layer, &counts);
        std::vector<std::int32_t> now = Hottest(counts, hot);
        if (!before.empty()) {
          next_sum += Overlap(before, now);
          ++num_next;
        } else {
          if (!other.empty()) {
            other_sum += Overlap(other, now);
            ++num_other;
          }
          other = now;
        }
        before = std::move(now);
      }
    }
  }
  if (num_next > 0 && num_other > 0) {
    shape->drift.push_back(
        {window, next_sum / static_cast<double>(num_next), other_sum / static_cast<double>(num_other)});
  }
}

void DescribeDistinct(const Trace& trace, std::int32_t batch, RoutingShape* shape) {
  std::vector<std::int32_t> all(trace.sequences.size());
  std::iota(all.begin(), all.end(), 0);
  constexpr std::int64_t kEverything = std::int64_t{1} << 40;
  const std::vector<std::vector<ReplayRow>> steps = LockstepRows(trace, all, batch, kEverything);
  if (steps.empty()) {
    return;
  }
  std::vector<std::int64_t> seen(static_cast<std::size_t>(trace.header.num_experts), -1);
  std::int64_t distinct = 0;
  std::int64_t turn = 0;
  for (const std::vector<ReplayRow>& rows : steps) {
    for (std::int32_t layer = 0; layer < trace.header.num_moe_layers(); ++layer, ++turn) {
      for (const ReplayRow& row : rows) {
        for (const std::uint16_t expert : trace.Experts(row.sequence, row.token, layer)) {
          distinct += seen[expert] != turn ? 1 : 0;
          seen[expert] = turn;
        }
      }
    }
  }
  const double experts = trace.header.num_experts;
  const double missed = 1.0 - trace.header.experts_per_token / experts;
  shape->distinct.push_back({batch, static_cast<double>(distinct) / static_cast<double>(turn),
                             experts * (1.0 - std::pow(missed, batch))});
}

}  // namespace

RoutingShape DescribeRouting(const Trace& trace, absl::Span<const std::int32_t> window_tokens,
                             absl::Span<const std::int32_t> batches) {
  RoutingShape shape;
  DescribeLayers(trace, &shape);
  for (const std::int32_t window : window_tokens) {
    DescribeDrift(trace, window, &shape);
  }
  shape.chance_overlap = static_cast<double>(AtLeastOne(trace.header.num_experts, kHotSetPart)) /
                         static_cast<double>(trace.header.num_experts);
  for (const std::int32_t batch : batches) {
    DescribeDistinct(trace, batch, &shape);
  }
  return shape;
}

QualityMeter::QualityMeter(std::string name, std::int32_t distance, std::vector<std::int32_t> widths)
    : found_(widths.size(), 0), named_(widths.size(), 0) {
  quality_.name = std::move(name);
  quality_.distance = distance;
  quality_.widths = std::move(widths);
}

void QualityMeter::Add(absl::Span<const std::uint16_t> named, absl::Span<const std::uint16_t> routed) {
  routed_ += static_cast<std::int64_t>(routed.size());
  ++quality_.rows;
  for (std::size_t w = 0; w < found_.size(); ++w) {
    const absl::Span<const std::uint16_t> set =
        named.first(std::min(named.size(), static_cast<std::size_t>(quality_.widths[w])));
    named_[w] += static_cast<std::int64_t>(set.size());
    for (const std::uint16_t expert : routed) {
      found_[w] += std::find(set.begin(), set.end(), expert) != set.end() ? 1 : 0;
    }
  }
}

ForecastQuality QualityMeter::Result() const {
  ForecastQuality result = quality_;
  const auto share = [](std::int64_t a, std::int64_t b) {
    return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
  };
  for (std::size_t w = 0; w < found_.size(); ++w) {
    result.recall.push_back(share(found_[w], routed_));
    result.precision.push_back(share(found_[w], named_[w]));
  }
  return result;
}

namespace {

// Shows steps to a predictor, and judges what it says where there are meters.
class Judge {
 public:
  Judge(const Trace& trace, const JudgeOptions& options, RowPredictor* predictor)
      : trace_(trace),
        options_(options),
        predictor_(*predictor),
        num_experts_(static_cast<std::size_t>(trace.header.num_experts)) {}

  void Run(const std::vector<std::vector<ReplayRow>>& steps, std::vector<QualityMeter>* meters) {
    for (const std::vector<ReplayRow>& rows : steps) {
      const TraceStep step = MakeTraceStep(trace_, rows, 0);
      tokens_.clear();
      for (const api::PlanSpan& span : step.plan.spans) {
        tokens_.push_back(span.tokens.front());
      }
      predictor_.BeginStep(tokens_);
      const std::size_t layer_size = rows.size() * static_cast<std::size_t>(trace_.header.experts_per_token);
      for (std::int32_t layer = 0; layer < trace_.header.num_moe_layers(); ++layer) {
        predictor_.Observe(Id(layer), absl::MakeConstSpan(step.experts)
                                          .subspan(static_cast<std::size_t>(layer) * layer_size, layer_size));
        ShowLookahead(rows, layer);
        if (meters != nullptr) {
          Ask(rows, layer, meters);
        }
      }
    }
  }

 private:
  std::int32_t Id(std::int32_t layer) const {
    return trace_.header.moe_layers[static_cast<std::size_t>(layer)];
  }

  void ShowLookahead(const std::vector<ReplayRow>& rows, std::int32_t layer) {
    values_.resize(rows.size() * num_experts_);
    for (std::int32_t d = 1;
         options_.lookahead && d <= trace_.header.lookahead && layer + d < trace_.header.num_moe_layers();
         ++d) {
      if (options_.lookahead(rows, layer + d, d, absl::MakeSpan(values_))) {
        predictor_.ObserveLookahead(Id(layer), Id(layer + d), values_);
      }
    }
  }

  void Ask(const std::vector<ReplayRow>& rows, std::int32_t layer, std::vector<QualityMeter>* meters) {
    const std::int32_t widest = *std::max_element(options_.widths.begin(), options_.widths.end());
    for (std::size_t d = 0; d < meters->size(); ++d) {
      const std::int32_t target = layer + 1 + static_cast<std::int32_t>(d);
      if (target >= trace_.header.num_moe_layers()) {
        return;
      }
      values_.assign(rows.size() * num_experts_, 0.0F);
      predictor_.Forecast(Id(target), absl::MakeSpan(values_));
      for (std::size_t t = 0; t < rows.size(); ++t) {
        MostLikely(absl::MakeConstSpan(values_).subspan(t * num_experts_, num_experts_), widest, &likely_);
        named_.assign(likely_.begin(), likely_.end());
        (*meters)[d].Add(named_, trace_.Experts(rows[t].sequence, rows[t].token, target));
      }
    }
  }

  const Trace& trace_;
  const JudgeOptions& options_;
  RowPredictor& predictor_;
  const std::size_t num_experts_;
  std::vector<base::TokenId> tokens_;
  std::vector<float> values_;
  std::vector<std::int32_t> likely_;
  std::vector<std::uint16_t> named_;
};

}  // namespace

std::vector<ForecastQuality> JudgePredictor(const Trace& trace,
                                            const std::vector<std::vector<ReplayRow>>& history,
                                            const std::vector<std::vector<ReplayRow>>& judged,
                                            const JudgeOptions& options, RowPredictor* predictor) {
  Judge judge(trace, options, predictor);
  judge.Run(history, nullptr);
  std::vector<QualityMeter> meters;
  for (std::int32_t d = 1; d <= std::min(options.max_distance, trace.header.num_moe_layers() - 1); ++d) {
    meters.emplace_back(std::string(predictor->name()), d, options.widths);
  }
  judge.Run(judged, &meters);
  std::vector<ForecastQuality> results;
  for (const QualityMeter& meter : meters) {
    results.push_back(meter.Result());
  }
  return results;
}

std::vector<ForecastQuality> JudgeRecordedLookahead(const Trace& trace,
                                                    const std::vector<std::vector<ReplayRow>>& steps,
                                                    absl::Span<const std::int32_t> widths) {
  std::vector<std::int32_t> known;
  for (const std::int32_t width : widths) {
    if (width <= trace.header.lookahead_width) {
      known.push_back(width);
    }
  }
  std::vector<ForecastQuality> results;
  for (std::int32_t distance = 1; distance <= trace.header.lookahead; ++distance) {
    QualityMeter meter("gate look-ahead", distance, known);
    for (const std::vector<ReplayRow>& rows : steps) {
      for (std::int32_t layer = distance; layer < trace.header.num_moe_layers(); ++layer) {
        for (const ReplayRow& row : rows) {
          absl::Span<const std::uint16_t> named = trace.Ahead(row.sequence, row.token, layer, distance);
          named = named.first(
              static_cast<std::size_t>(std::find(named.begin(), named.end(), kNoExpert) - named.begin()));
          meter.Add(named, trace.Experts(row.sequence, row.token, layer));
        }
      }
    }
    results.push_back(meter.Result());
  }
  return results;
}

}  // namespace comoe::routing
