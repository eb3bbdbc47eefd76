#include "engine/base/check.h"

#include <string>

#include "engine/base/status_macros.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

TEST(CheckTest, PassesSilentlyAndSaysWhichInvariantBroke) {
  COMOE_CHECK(1 + 1 == 2, "sums");
  EXPECT_DEATH(COMOE_CHECK(1 + 1 == 3, "sums add up"),
               "check_test.cc:.*broken invariant: sums add up \\(1 \\+ 1 == 3\\)");
}

TEST(CheckTest, DcheckIsEvaluatedInDebugBuildsOnly) {
  int evaluated = 0;
  COMOE_DCHECK(++evaluated > 0, "counts");
#ifdef NDEBUG
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(COMOE_DCHECK(evaluated == 7, "seven"), "broken invariant: seven");
#endif
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) {
    return absl::InvalidArgumentError("odd");
  }
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  COMOE_ASSIGN_OR_RETURN(const int half, Half(value));
  COMOE_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

absl::Status BothHalves(int a, int b) {
  COMOE_RETURN_IF_ERROR(Half(a).status());
  COMOE_RETURN_IF_ERROR(Annotate(Half(b).status(), "b"));
  return absl::OkStatus();
}

TEST(StatusMacrosTest, PassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(BothHalves(2, 4), absl::OkStatus());
  EXPECT_EQ(BothHalves(3, 4), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(BothHalves(2, 5), absl::InvalidArgumentError("b: odd"));
}

}  // namespace
}  // namespace comoe::base
