// Dense products: row-major weights against the reference's panels.
#include "tests/engine/kernels/cuda/gpu_check.h"

namespace comoe::kernels {
namespace {

struct Shape {
  std::int64_t rows, n, k;
  std::int64_t padding = 4;
};

void CheckShape(Checker& checker, const Shape& shape, tensor::DType dtype, CudaPrecision precision,
                void* blas, const TestStream& cpu) {
  Random random(static_cast<std::uint64_t>(1000 + shape.rows * 7 + shape.n * 3 + shape.k));
  Matrix x(shape.rows, shape.k, random, shape.padding);
  if (precision == CudaPrecision::kBf16 && dtype == tensor::DType::kBf16) {
    // Inputs that are BF16 already: then the product has to be as good as float32.
    for (std::int64_t t = 0; t < shape.rows; ++t) {
      for (std::int64_t k = 0; k < shape.k; ++k) {
        x.at(t, k) = RoundBf16(x.at(t, k));
      }
    }
  }
  const std::vector<std::byte> rows = Encode(dtype, RandomValues(shape.n * shape.k, random));
  const tensor::MatrixLayout layout = {dtype, shape.n, shape.k};
  const AlignedBytes panels = AllocateAligned(layout.bytes());
  tensor::PackPanels(layout, rows.data(), panels.get(), 0, 1);
  const std::vector<float> bias = RandomValues(shape.n, random);
  Matrix y(shape.rows, shape.n);
  Matrix ref(shape.rows, shape.n);
  const DeviceMatrix dx(x);
  const DeviceMatrix dy(y);
  const DeviceArray<std::byte> dw(rows);
  const DeviceArray<float> db(bias);
  const DeviceArray<std::byte> workspace(CudaMatMulWorkspaceBytes(shape.rows, shape.k, precision));
  CudaMatMulArgs args;
  args.x = dx.get();
  args.x_stride = dx.stride();
  args.w = dw.get();
  args.dtype = static_cast<CudaDType>(dtype);
  args.bias = shape.n % 2 == 0 ? db.get() : nullptr;
  args.y = dy.get();
  args.y_stride = dy.stride();
  args.rows = shape.rows;
  args.n = shape.n;
  args.k = shape.k;
  args.precision = precision;
  args.workspace = workspace.get();
  args.workspace_bytes = workspace.bytes();
  args.blas = blas;
  const std::string what =
      absl::StrCat("matmul T=", shape.rows, " N=", shape.n, " K=", shape.k, " ", tensor::DTypeName(dtype),
                   precision == CudaPrecision::kExact ? " exact" : " bf16", blas != nullptr ? " cuBLAS" : "");
  checker.Launched(CudaLaunches().matmul(args, checker.stream()), what);
  dy.Download(y);
  MatMulArgs ref_args = {x.view(), {panels.get(), layout}, {}, ref.view()};
  if (shape.n % 2 == 0) {
    ref_args.bias = bias;
  }
  MustRun(RefKernels().matmul(ref_args, *cpu).ok() ? 0 : 1, "ref matmul");
  checker.Near(ref, y, dtype == tensor::DType::kBf16 ? kTensorTolerance : kFloatTolerance, what);
}

}  // namespace

void CheckMatMul(Checker& checker, bool quick) {
  const TestStream cpu(1);
  void* blas = nullptr;
  if (CudaLaunches().blas_create(&blas) != 0) {
    std::printf("no cuBLAS: its products are not checked\n");
  }
  std::vector<Shape> shapes = {{1, 1, 1},     {0, 16, 16},    {1, 17, 8},    {3, 33, 40, 3},
                               {2, 48, 37},   {8, 64, 256},   {9, 50, 264},  {17, 16, 96},
                               {32, 130, 72}, {33, 100, 200}, {65, 257, 136}};
  if (!quick) {
    shapes.insert(shapes.end(), {{1, 4096, 2048},
                                 {4, 128, 2048},
                                 {31, 512, 1024},
                                 {64, 384, 512},
                                 {129, 300, 1032},
                                 {200, 512, 768},
                                 {5, 1000, 4097}});
  }
  for (const Shape& shape : shapes) {
    for (const CudaPrecision precision : {CudaPrecision::kExact, CudaPrecision::kBf16}) {
      CheckShape(checker, shape, tensor::DType::kBf16, precision, nullptr, cpu);
      if (blas != nullptr && shape.rows > kCudaFewRows) {
        CheckShape(checker, shape, tensor::DType::kBf16, precision, blas, cpu);
      }
    }
    if (shape.rows * shape.n * shape.k < 20000000) {
      CheckShape(checker, shape, tensor::DType::kF16, CudaPrecision::kBf16, nullptr, cpu);
      CheckShape(checker, shape, tensor::DType::kF32, CudaPrecision::kExact, nullptr, cpu);
    }
  }
  if (blas != nullptr) {
    CudaLaunches().blas_destroy(blas);
  }
  checker.Summary("matmul");
}

}  // namespace comoe::kernels
