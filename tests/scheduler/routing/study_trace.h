// The recorded routing of the trained model moe-64x2, for tests that compare with the trace study. It is not
// part of the repository.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/routing/trace_file.h"

namespace comoe::routing {

// numpy.random.default_rng(0).permutation(96): the study's order of sequences.
inline constexpr std::array<std::int32_t, 96> kStudyOrder = {
    36, 87, 5,  13, 52, 20, 93, 34, 50, 27, 16, 94, 11, 10, 66, 8,  82, 9,  90, 19, 89, 75, 65, 67,
    39, 4,  25, 55, 71, 62, 23, 44, 42, 53, 80, 68, 60, 15, 30, 2,  35, 43, 17, 70, 28, 83, 18, 72,
    3,  1,  57, 24, 64, 21, 47, 0,  6,  86, 45, 22, 26, 51, 37, 81, 49, 74, 88, 91, 40, 61, 12, 32,
    92, 46, 58, 14, 73, 38, 84, 31, 85, 48, 77, 76, 7,  63, 69, 78, 59, 54, 29, 41, 56, 33, 79, 95};

// With the experts that gates name 1 to 3 layers ahead, in order, without scores. None: the file is absent.
std::optional<Trace> LoadStudyTrace();

}  // namespace comoe::routing
