// Checks that tokens do not depend on where experts lie, and measures how far they depend on the batch. Needs
// no test framework; on a machine with a GPU it is part of tools/gpu/suite.sh.
//   cuda_tokens_check MODEL [--FLAG VALUE]...
//     --device cuda|emulated|cpu|fake   --plugin libcomoe_cuda.so   --parts policies,batch   --json FILE
//     --activations f32,bf16   --policies lru,hub,...   --capacities 0.25,...   --batches 1,4,16   --lanes
//     off,on
//     --decodes N   --threads N
// Exit status 1: something differs that must not. 2: it could not be run.
#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "tests/engine/runtime/tokens/token_runs.h"

namespace comoe::testing {
namespace {

struct Arguments {
  CheckOptions check;
  std::vector<std::string> parts = {"policies", "batch"};
  std::string json;
};

template <typename T>
absl::Status ParseNumbers(const std::string& text, bool (*parse)(absl::string_view, T*),
                          std::vector<T>* out) {
  out->clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (!parse(part, &out->emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no list of numbers"));
    }
  }
  return absl::OkStatus();
}

absl::Status Set(const std::string& flag, const std::string& value, Arguments& arguments) {
  CheckOptions& check = arguments.check;
  const std::vector<std::string> list = absl::StrSplit(value, ',');
  if (flag == "--device") {
    check.device = value;
    if (value != "cuda") {
      check.activations = {"f32"};  // others round on a GPU only
    }
  } else if (flag == "--plugin") {
    check.plugin = value;
  } else if (flag == "--parts") {
    arguments.parts = list;
  } else if (flag == "--json") {
    arguments.json = value;
  } else if (flag == "--activations") {
    check.activations = list;
  } else if (flag == "--policies") {
    check.policies = list;
  } else if (flag == "--capacities") {
    return ParseNumbers<double>(value, absl::SimpleAtod, &check.capacities);
  } else if (flag == "--batches") {
    COMOE_RETURN_IF_ERROR(ParseNumbers<std::int64_t>(value, absl::SimpleAtoi, &check.batches));
    if (std::any_of(check.batches.begin(), check.batches.end(),
                    [](std::int64_t batch) { return batch < 1 || batch >= kMaxSequences; })) {
      return absl::InvalidArgumentError(absl::StrCat("batches are 1 to ", kMaxSequences - 1));
    }
  } else if (flag == "--lanes") {
    check.lanes = list;
  } else if (flag == "--decodes" || flag == "--threads") {
    std::vector<std::int64_t> numbers;
    COMOE_RETURN_IF_ERROR(ParseNumbers<std::int64_t>(value, absl::SimpleAtoi, &numbers));
    (flag == "--decodes" ? check.decodes : check.threads) = std::clamp<std::int64_t>(numbers.front(), 1, 200);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no ", flag));
  }
  return absl::OkStatus();
}

absl::StatusOr<Arguments> Parse(const std::vector<std::string>& words) {
  Arguments arguments;
  if (words.size() % 2 != 1) {
    return absl::InvalidArgumentError("a model's folder, then flags, each with a value");
  }
  arguments.check.model = words.front();
  for (std::size_t i = 1; i < words.size(); i += 2) {
    COMOE_RETURN_IF_ERROR(base::Annotate(Set(words[i], words[i + 1], arguments), words[i]));
  }
  return arguments;
}

absl::StatusOr<bool> Run(const Arguments& arguments) {
  const CheckOptions& check = arguments.check;
  nlohmann::json out = {{"model", check.model}, {"device", check.device}};
  bool all_passed = true;
  for (const std::string& part : arguments.parts) {
    bool passed = true;
    if (part == "batch") {
      COMOE_ASSIGN_OR_RETURN(out["batch_dependence"], MeasureBatchDependence(check, &passed));
    } else if (check.device != "cpu") {  // which has no tiers
      COMOE_ASSIGN_OR_RETURN(out["policies"], CheckPolicies(check, &passed));
    }
    all_passed = all_passed && passed;
  }
  out["passed"] = all_passed;
  if (!arguments.json.empty() && !(std::ofstream(arguments.json) << out.dump() << "\n")) {
    return absl::UnavailableError(absl::StrCat("cannot write ", arguments.json));
  }
  return all_passed;
}

int Main(const std::vector<std::string>& words) {
  const absl::StatusOr<Arguments> arguments = Parse(words);
  const absl::StatusOr<bool> passed =
      arguments.ok() ? Run(*arguments) : absl::StatusOr<bool>(arguments.status());
  if (!passed.ok()) {
    std::printf("cuda_tokens_check: %s\n", passed.status().ToString().c_str());
    return 2;
  }
  std::printf("%s\n", *passed ? "passed" : "FAILED");
  return *passed ? 0 : 1;
}

}  // namespace
}  // namespace comoe::testing

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what it has said stays when its time is up
  return comoe::testing::Main({argv + 1, argv + argc});
}
