// What the checks and benchmarks on a GPU share: device arrays, comparisons with the reference kernels, a
// count of failures. Programs for a machine with a GPU: no test framework, so that they run where they are
// carried.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/ops.h"
#include "tests/engine/kernels/test_util.h"

namespace comoe::kernels {

// Ends the program when `error`, what a launch or the runtime returned, is not 0.
inline void MustRun(int error, const char* what) {
  if (error != 0) {
    std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
    std::exit(1);
  }
}

// Device memory of `size` elements, filled with bytes of 0xff (NaN) when it is not filled otherwise.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    MustRun(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(bytes(), 16)), "cudaMalloc");
    Poison();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { Upload(values.data()); }
  DeviceArray(const T* values, std::size_t size) : DeviceArray(size) { Upload(values); }
  DeviceArray(DeviceArray&& other) noexcept
      : size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  // Both are complete on return: the streams that kernels run on do not wait for the default stream.
  void Poison() {
    MustRun(cudaMemset(data_, 0xff, bytes()), "cudaMemset");
    MustRun(cudaDeviceSynchronize(), "cudaMemset");
  }
  void Upload(const T* values) {
    MustRun(cudaMemcpy(data_, values, bytes(), cudaMemcpyHostToDevice), "upload");
    MustRun(cudaDeviceSynchronize(), "upload");
  }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    MustRun(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

// A host matrix on the device and back, with its stride and canaries.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(Matrix& host)
      : stride_(host.view().row_stride),
        rows_(host.rows()),
        array_(host.view().f32(), static_cast<std::size_t>(host.rows() * stride_)) {}
  float* get() const { return array_.get(); }
  std::int64_t stride() const { return stride_; }
  void Download(Matrix& host) const {
    const std::vector<float> values = array_.Download();
    std::copy(values.begin(), values.end(), host.view().f32());
  }

 private:
  std::int64_t stride_;
  std::int64_t rows_;
  DeviceArray<float> array_;
};

// Counts what was checked and prints what failed.
class Checker {
 public:
  explicit Checker(void* stream) : stream_(stream) {}
  void* stream() const { return stream_; }

  void Launched(int error, const std::string& what) {
    MustRun(error, what.c_str());
    MustRun(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)), what.c_str());
  }
  void True(bool holds, const std::string& what) {
    ++checked_;
    if (!holds) {
      ++failed_;
      std::printf("FAILED: %s\n", what.c_str());
    }
  }
  // ||out - ref|| / ||ref|| over all elements; NaN never passes.
  void Near(const Matrix& ref, const Matrix& out, double tolerance, const std::string& what) {
    double difference = 0;
    double norm = 0;
    for (std::int64_t r = 0; r < ref.rows(); ++r) {
      for (std::int64_t c = 0; c < ref.cols(); ++c) {
        const double d = static_cast<double>(out.at(r, c)) - static_cast<double>(ref.at(r, c));
        difference += d * d;
        norm += static_cast<double>(ref.at(r, c)) * static_cast<double>(ref.at(r, c));
      }
    }
    const double error = norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
    char text[64];
    std::snprintf(text, sizeof(text), ": error %.3g, allowed %.3g", error, tolerance);
    True(error <= tolerance && out.CanariesLive(),
         what + text + (out.CanariesLive() ? "" : ", wrote between rows"));
    worst_ = std::max(worst_, error / tolerance);
  }
  // Ends one operation's checks: a line.
  void Summary(const char* operation) {
    std::printf("%-20s %4d checks, %d failed, worst %.3f of its tolerance\n", operation, checked_ - before_,
                failed_ - failed_before_, worst_);
    std::fflush(stdout);
    before_ = checked_;
    failed_before_ = failed_;
    worst_ = 0;
  }
  int failed() const { return failed_; }
  int checked() const { return checked_; }

 private:
  void* stream_;
  int checked_ = 0;
  int failed_ = 0;
  int before_ = 0;
  int failed_before_ = 0;
  double worst_ = 0;
};

// A float32 product's error; that of long sums on tensor cores, which cut off where float32 rounds; and that
// of products whose inputs are rounded to BF16 on the way.
inline constexpr double kFloatTolerance = 2e-6;
inline constexpr double kTensorTolerance = 6e-6;
inline constexpr double kRoundedTolerance = 6e-3;

inline float RoundBf16(float x) { return tensor::Bf16ToFloat(tensor::FloatToBf16(x)); }

// The parts of the check program. `quick`: few and small shapes, for compute-sanitizer.
void CheckRows(Checker& checker, bool quick);
void CheckMatMul(Checker& checker, bool quick);
void CheckAttention(Checker& checker, bool quick);
void CheckMoe(Checker& checker, bool quick);
void CheckExpertFfn(Checker& checker, bool quick);

}  // namespace comoe::kernels
