// How the files of this folder put numbers into bytes and take them out again, trusting nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/rng.h"

namespace comoe::routing {

// Words of eight bytes, the last one filled up with zeros, each mixed into what came before.
inline std::uint64_t ByteChecksum(const char* data, std::size_t size) {
  std::uint64_t sum = size;
  for (std::size_t i = 0; i < size; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i, std::min<std::size_t>(8, size - i));
    sum = base::MixBits(sum + word + 0x9e3779b97f4a7c15ULL);
  }
  return sum;
}

// The format is little-endian, as every machine is that this runs on.
template <typename T>
void PutValue(std::string* out, T value) {
  const std::size_t at = out->size();
  out->resize(at + sizeof(T));
  std::memcpy(out->data() + at, &value, sizeof(T));
}
template <typename T>
void PutValues(std::string* out, const std::vector<T>& values) {
  const std::size_t at = out->size();
  out->resize(at + values.size() * sizeof(T));
  if (!values.empty()) {
    std::memcpy(out->data() + at, values.data(), values.size() * sizeof(T));
  }
}

// Takes values from the front; once something is missing all that follows is zero and ok() is false.
class ByteCursor {
 public:
  ByteCursor(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  template <typename T>
  T Take() {
    T value{};
    TakeInto(&value, 1);
    return value;
  }
  template <typename T>
  void TakeAll(std::vector<T>* values, std::size_t count) {
    if (count > size_ / sizeof(T)) {  // checked before anything is allocated
      ok_ = false;
      size_ = 0;
      values->clear();
      return;
    }
    values->resize(count);
    TakeInto(values->data(), count);
  }
  bool Skip(std::size_t bytes) {
    if (bytes > size_) {
      ok_ = false;
      size_ = 0;
      return false;
    }
    data_ += bytes;
    size_ -= bytes;
    return true;
  }
  bool ok() const { return ok_; }
  std::size_t left() const { return size_; }
  const char* chars() const { return reinterpret_cast<const char*>(data_); }
  const std::byte* data() const { return data_; }

 private:
  template <typename T>
  void TakeInto(T* values, std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes > size_) {
      ok_ = false;
      size_ = 0;
      return;
    }
    if (bytes > 0) {
      std::memcpy(values, data_, bytes);
    }
    data_ += bytes;
    size_ -= bytes;
  }

  const std::byte* data_;
  std::size_t size_;
  bool ok_ = true;
};

}  // namespace comoe::routing
