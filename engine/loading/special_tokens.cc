#include "engine/loading/special_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/checkpoint/mapped_file.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/bytes_tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace recurve {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kMap[] = "special_tokens_map.json";

// A token is a string, or an object with the string as `content`.
absl::Status ReadToken(const JsonObject& object, const std::string& key,
                       std::optional<NamedTokens::Token>* token) {
  if (token->has_value() || !object.Has(key)) return absl::OkStatus();
  absl::StatusOr<std::string> text = object.String(key);
  if (!text.ok()) {
    RECURVE_ASSIGN_OR_RETURN(const JsonObject written, object.Object(key));
    text = written.String("content");
  }
  RECURVE_RETURN_IF_ERROR(text.status());
  if (!text->empty()) *token = {*std::move(text), object.file()};
  return absl::OkStatus();
}

absl::Status ReadIds(const JsonObject& config,
                     std::map<std::string, int64_t>* ids) {
  const std::string key = "added_tokens_decoder";
  if (!config.Has(key)) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const JsonObject decoder, config.Object(key));
  for (const std::string& name : decoder.keys()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(name, &id) || id < 0) {
      return config.Invalid(
          key, absl::StrCat("has the key ", Quote(name), "; expected an id"));
    }
    RECURVE_ASSIGN_OR_RETURN(const JsonObject token, decoder.Object(name));
    RECURVE_ASSIGN_OR_RETURN(const std::string text, token.String("content"));
    ids->emplace(text, id);
  }
  return absl::OkStatus();
}

absl::Status ReadFile(const std::string& path, bool is_config,
                      NamedTokens* named) {
  RECURVE_ASSIGN_OR_RETURN(const bool exists, FileExists(path));
  if (!exists) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const JsonObject object,
                           LoadJsonFile(path, kMaxFileBytes));
  RECURVE_RETURN_IF_ERROR(ReadToken(object, "eos_token", &named->eos));
  RECURVE_RETURN_IF_ERROR(ReadToken(object, "bos_token", &named->bos));
  if (!is_config) return absl::OkStatus();
  if (object.Has("add_bos_token")) {
    RECURVE_ASSIGN_OR_RETURN(named->add_bos, object.Bool("add_bos_token"));
  }
  if (object.Has("add_eos_token")) {
    RECURVE_ASSIGN_OR_RETURN(named->add_eos, object.Bool("add_eos_token"));
  }
  return ReadIds(object, &named->ids);
}

std::string Listed(const std::vector<int32_t>& ids) {
  return absl::StrJoin(ids, ", ");
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

NamedTokens ReadNamedTokens(const std::string& dir) {
  NamedTokens named;
  named.config = absl::StrCat(dir, "/", kConfig);
  for (const char* name : {kConfig, kMap}) {
    const absl::Status status =
        ReadFile(absl::StrCat(dir, "/", name), name == kConfig, &named);
    if (!status.ok()) {
      named.problems.push_back(
          absl::StrCat("special tokens are not taken from a file of the "
                       "tokenizer: ",
                       status.message()));
    }
  }
  return named;
}

std::optional<int32_t> FindNamedToken(const NamedTokens& named,
                                      const NamedTokens::Token& token,
                                      const Tokenizer* tokenizer,
                                      const ModelDefinition& model) {
  if (tokenizer != nullptr) {
    if (const auto id = tokenizer->FindToken(token.text)) return id;
  }
  const auto listed = named.ids.find(token.text);
  if (listed == named.ids.end() || listed->second >= model.vocab_size) {
    return std::nullopt;
  }
  return static_cast<int32_t>(listed->second);
}

void CompleteEndOfSequence(const NamedTokens& named, const Tokenizer* tokenizer,
                           ModelDefinition* model) {
  std::vector<int32_t>& ids = model->eos_token_ids;
  std::optional<int32_t> found;
  std::string file;
  if (named.eos) {
    file = named.eos->file;
    found = FindNamedToken(named, *named.eos, tokenizer, *model);
    if (!found) {
      model->remarks.push_back(
          absl::StrCat(file, ": eos_token is ", Quote(named.eos->text),
                       ", which is no token of the tokenizer that is in use"));
    } else if (!ids.empty() && !Contains(ids, *found)) {
      model->remarks.push_back(
          absl::StrCat(file, " names ", Quote(named.eos->text), " (", *found,
                       ") as the end of sequence, and ", model->eos_file, " ",
                       Listed(ids), ": generations do not end at ", *found,
                       " (list it in eos_token_id if they should)"));
    }
  }
  if (!ids.empty()) return;
  if (!found && tokenizer != nullptr) {
    found = tokenizer->eos_id();
    file = "tokenizer.model";
  }
  if (found) {
    ids = {*found};
    model->eos_file = file;
    model->eos_by_tokenizer = true;
    return;
  }
  model->remarks.push_back(
      "no file names an end of sequence (eos_token_id of config.json or "
      "generation_config.json): generations end only at their longest length "
      "or at stop conditions of the request");
}

void CompareBeginOfSequence(const NamedTokens& named,
                            const Tokenizer* tokenizer,
                            ModelDefinition* model) {
  if (!named.add_bos || tokenizer == nullptr ||
      *named.add_bos == tokenizer->bos_id().has_value()) {
    return;
  }
  model->remarks.push_back(absl::StrCat(
      kConfig, ": add_bos_token is ", *named.add_bos ? "true" : "false",
      ", but the tokenizer (", tokenizer->name(), ") puts ",
      *named.add_bos
          ? "nothing before a text"
          : absl::StrCat("the token ", *tokenizer->bos_id(), " before a text"),
      "; a client that wants something else can send token ids"));
}

absl::Status CheckEndOfText(const NamedTokens& named,
                            const Tokenizer* tokenizer) {
  if (!named.add_eos || tokenizer == nullptr ||
      tokenizer->name() == BytesTokenizer::kName) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(named.config,
                   ": add_eos_token is true; expected false, as no end of "
                   "sequence is put after a prompt that is to be continued "
                   "(with --tokenizer=none clients send token ids)"));
}

void CompareAddedTokens(const NamedTokens& named, const Tokenizer* tokenizer,
                        ModelDefinition* model) {
  if (tokenizer == nullptr || tokenizer->name() != kHuggingFaceKind) return;
  for (const auto& [text, id] : named.ids) {
    const std::optional<int32_t> found = tokenizer->FindToken(text);
    if (found == id) continue;
    model->remarks.push_back(absl::StrCat(
        kConfig, ": added_tokens_decoder has ", Quote(text), " as ", id, ", ",
        found ? absl::StrCat("and tokenizer.json as ", *found)
              : "which is no token of tokenizer.json",
        "; texts are encoded as tokenizer.json says"));
    return;
  }
}

}  // namespace recurve
