#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace comoe::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  bool text_given = false;
  bool no_special = false;
  std::vector<std::int32_t> decode;
  bool json = false;
};

absl::Status Tokenize(const TokenizeOptions& options) {
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<tokenizer::Tokenizer> tokenizer,
                         tokenizer::Tokenizer::Load(options.model + "/tokenizer.json"));
  if (!options.decode.empty()) {
    COMOE_ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(options.decode, options.no_special));
    std::printf("%s\n", options.json ? nlohmann::json({{"text", text}}).dump().c_str() : text.c_str());
    return absl::OkStatus();
  }
  std::string text = options.text;
  if (!options.text_given) {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  COMOE_ASSIGN_OR_RETURN(const std::vector<base::TokenId> ids, tokenizer->Encode(text, !options.no_special));
  if (options.json) {
    std::printf("%s\n", nlohmann::json({{"ids", ids}}).dump().c_str());
  } else {
    std::printf("%s\n", absl::StrJoin(ids, " ").c_str());
  }
  return absl::OkStatus();
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "text to token ids, or back with --decode");
  command->add_option("--model", options->model, "folder with tokenizer.json")->required();
  CLI::Option* text = command->add_option("TEXT", options->text, "what to encode (default: standard input)");
  command->add_flag("--no-special", options->no_special, "without special tokens");
  command->add_option("--decode", options->decode, "ids to turn back into text")->expected(1, -1);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, text, &result] {
    options->text_given = text->count() > 0;
    result = Tokenize(*options);
  });
}

}  // namespace comoe::cli
