// A first-in first-out queue that keeps its memory, so that steady use allocates nothing.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace comoe::device {

// Not thread-safe. T can be made without arguments and moved; what is popped is destroyed.
template <typename T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return slots_[head_]; }

  void PushBack(T value) {
    if (size_ == slots_.size()) {
      Grow();
    }
    slots_[(head_ + size_) % slots_.size()] = std::move(value);
    ++size_;
  }
  T PopFront() {
    T value = std::exchange(slots_[head_], T());
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return value;
  }
  void Clear() {
    while (!empty()) {
      PopFront();
    }
  }

 private:
  void Grow() {
    std::vector<T> larger(slots_.empty() ? 16 : slots_.size() * 2);
    for (std::size_t i = 0; i < size_; ++i) {
      larger[i] = std::move(slots_[(head_ + i) % slots_.size()]);
    }
    slots_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> slots_;
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace comoe::device
