#include "tools/recurve_model/command.h"

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace recurve {
namespace {

void WriteLine(absl::string_view text) {
  const std::string line =
      absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}});
  std::fprintf(stderr, "recurve-model: %s\n", line.c_str());
}

}  // namespace

void AddModelFlags(CLI::App* command, FamilyOptions* family,
                   std::string* tokenizer) {
  command
      ->add_option("--model-family", family->family,
                   absl::StrJoin(FamilyChoices(), ", "))
      ->check(CLI::IsMember(FamilyChoices()));
  command->add_option("--model-variant", family->variant,
                      "Variant of the family, as t6_variant of T6");
  command
      ->add_option("--tokenizer", *tokenizer,
                   "auto, none, bytes, huggingface, sentencepiece, gpt2 or "
                   "tiktoken")
      ->check(CLI::IsMember({"auto", "none", "bytes", "huggingface",
                             "sentencepiece", "gpt2", "tiktoken"}));
}

CLI::Validator WholeNumber(uint64_t largest) {
  return CLI::Validator(
      [largest](std::string& text) -> std::string {
        if (text.empty() ||
            text.find_first_not_of("0123456789") != std::string::npos) {
          return absl::StrCat("'", text, "' is not a whole number from 0 to ",
                              largest);
        }
        uint64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value <= largest) return "";
        return absl::StrCat("'", text, "' is too large; expected at most ",
                            largest);
      },
      "");
}

int ReportModelError(const absl::Status& status) {
  WriteLine(absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                         status.message()));
  return kModelExitFailure;
}

int ReportModelUsage(absl::string_view message) {
  WriteLine(message);
  return kModelExitUsage;
}

}  // namespace recurve
