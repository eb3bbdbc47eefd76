// Writes a checkpoint folder: config.json, safetensors shards and their index.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/tensor_source.h"

namespace comoe::checkpoint {

struct WriteOptions {
  std::uint64_t shard_bytes = std::uint64_t{2} << 30;  // a shard is closed before it would grow past this
  // tokenizer.json, tokenizer_config.json and generation_config.json are copied from here where they exist.
  std::string copy_from;
};

// Writes every tensor of `source` in name order, one tensor in memory at a time. `directory` may exist if it
// holds nothing but files of an earlier call (FAILED_PRECONDITION names one that is not). Everything is first
// written under temporary names, which are removed on failure; config.json appears last. `progress` gets
// bytes written and bytes in all.
absl::Status WriteCheckpoint(const TensorSource& source, const std::string& directory,
                             absl::string_view config_json, const WriteOptions& options,
                             absl::FunctionRef<void(std::uint64_t done, std::uint64_t total)> progress);

}  // namespace comoe::checkpoint
