#include "engine/tokenizer/tokenizer_json_pipeline.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace recurve {
namespace {

// Expands a Sequence into its parts; anything else is one part. `list_key` is
// the key of a Sequence's list.
absl::Status Unfold(const JsonObject& part, const std::string& list_key,
                    const std::vector<std::string>& types,
                    std::vector<JsonObject>* parts) {
  RECURVE_ASSIGN_OR_RETURN(const std::string type,
                           part.StringOneOf("type", types));
  if (type != "Sequence") {
    parts->push_back(part);
    return absl::OkStatus();
  }
  RECURVE_RETURN_IF_ERROR(part.CheckNoUnknownKeys({"type", list_key}));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> children,
                           part.ObjectList(list_key));
  for (const JsonObject& child : children) {
    RECURVE_RETURN_IF_ERROR(Unfold(child, list_key, types, parts));
  }
  return absl::OkStatus();
}

// Empty if the key is null.
absl::StatusOr<std::vector<JsonObject>> Parts(
    const JsonObject& root, const std::string& key, const std::string& list_key,
    const std::vector<std::string>& types) {
  std::vector<JsonObject> parts;
  if (!root.Has(key)) return parts;
  RECURVE_ASSIGN_OR_RETURN(const JsonObject object, root.Object(key));
  RECURVE_RETURN_IF_ERROR(Unfold(object, list_key, types, &parts));
  return parts;
}

absl::Status CheckByteLevelKeys(const JsonObject& part) {
  return part.CheckNoUnknownKeys(
      {"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

absl::StatusOr<SplitPattern> MakePattern(const JsonObject& object,
                                         const std::string& key) {
  RECURVE_ASSIGN_OR_RETURN(const std::string regex, object.String(key));
  absl::StatusOr<SplitPattern> pattern = SplitPattern::Make(regex);
  if (!pattern.ok()) return object.Invalid(key, pattern.status().message());
  return pattern;
}

absl::StatusOr<SplitPattern> ReadSplit(const JsonObject& part) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "pattern", "behavior", "invert"}));
  RECURVE_RETURN_IF_ERROR(part.StringOneOf("behavior", {"Isolated"}).status());
  RECURVE_ASSIGN_OR_RETURN(const bool invert, part.Bool("invert"));
  if (invert) return part.Invalid("invert", "is true; expected false");
  RECURVE_ASSIGN_OR_RETURN(const JsonObject pattern, part.Object("pattern"));
  RECURVE_RETURN_IF_ERROR(pattern.CheckNoUnknownKeys({"Regex"}));
  return MakePattern(pattern, "Regex");
}

absl::StatusOr<SplitPattern> ReadDigits(const JsonObject& part) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "individual_digits"}));
  RECURVE_ASSIGN_OR_RETURN(const bool each, part.Bool("individual_digits"));
  return SplitPattern::Make(each ? R"(\p{N})" : R"(\p{N}+)");
}

absl::StatusOr<std::optional<int32_t>> ReadTemplate(const JsonObject& part,
                                                    int32_t vocab_size) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "single", "pair", "special_tokens"}));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> pieces,
                           part.ObjectList("single"));
  const bool plain = pieces.size() == 1 && pieces[0].Has("Sequence");
  if (plain) return std::nullopt;
  if (pieces.size() != 2 || !pieces[0].Has("SpecialToken") ||
      !pieces[1].Has("Sequence")) {
    return part.Invalid("single",
                        "is another template; expected the text, or one "
                        "special token and the text");
  }
  RECURVE_ASSIGN_OR_RETURN(const JsonObject piece,
                           pieces[0].Object("SpecialToken"));
  RECURVE_ASSIGN_OR_RETURN(const std::string name, piece.String("id"));
  RECURVE_ASSIGN_OR_RETURN(const JsonObject tokens,
                           part.Object("special_tokens"));
  RECURVE_ASSIGN_OR_RETURN(const JsonObject token, tokens.Object(name));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                           token.IntList("ids", 0, vocab_size - 1));
  if (ids.size() != 1) {
    return token.Invalid("ids", "is another list; expected one id");
  }
  return static_cast<int32_t>(ids[0]);
}

}  // namespace

absl::StatusOr<bool> ReadNormalizer(const JsonObject& root) {
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<JsonObject> parts,
      Parts(root, "normalizer", "normalizers", {"NFC", "Sequence"}));
  return !parts.empty();
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonObject& root) {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> parts,
                           Parts(root, "pre_tokenizer", "pretokenizers",
                                 {"ByteLevel", "Split", "Digits", "Sequence"}));
  std::vector<SplitPattern> patterns;
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonObject& part = parts[i];
    RECURVE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if ((type == "ByteLevel") != (i + 1 == parts.size())) {
      return part.Invalid("type", "is '" + type +
                                      "'; expected one ByteLevel, as the last "
                                      "pre-tokenizer");
    }
    if (type == "ByteLevel") break;
    RECURVE_ASSIGN_OR_RETURN(SplitPattern pattern, type == "Split"
                                                       ? ReadSplit(part)
                                                       : ReadDigits(part));
    patterns.push_back(std::move(pattern));
  }
  if (parts.empty()) {
    return root.Invalid("pre_tokenizer", "is empty; expected ByteLevel");
  }
  const JsonObject& last = parts.back();
  RECURVE_RETURN_IF_ERROR(CheckByteLevelKeys(last));
  RECURVE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                           last.Bool("add_prefix_space"));
  RECURVE_ASSIGN_OR_RETURN(const bool use_regex,
                           last.BoolOr("use_regex", true));
  std::vector<SplitPattern> after;
  if (use_regex) {
    RECURVE_ASSIGN_OR_RETURN(SplitPattern gpt2,
                             SplitPattern::Make(kGpt2Pattern));
    after.push_back(std::move(gpt2));
  }
  return PreTokenizer(std::move(patterns), add_prefix_space, std::move(after));
}

absl::StatusOr<std::optional<int32_t>> ReadPostProcessor(const JsonObject& root,
                                                         int32_t vocab_size) {
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<JsonObject> parts,
      Parts(root, "post_processor", "processors",
            {"ByteLevel", "TemplateProcessing", "Sequence"}));
  std::optional<int32_t> bos;
  for (const JsonObject& part : parts) {
    RECURVE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (type == "ByteLevel") {  // changes offsets, not tokens
      RECURVE_RETURN_IF_ERROR(CheckByteLevelKeys(part));
      continue;
    }
    RECURVE_ASSIGN_OR_RETURN(const std::optional<int32_t> added,
                             ReadTemplate(part, vocab_size));
    if (bos.has_value() && added.has_value()) {
      return part.Invalid("single",
                          "adds a second token before the text; expected one "
                          "template that does");
    }
    if (added.has_value()) bos = added;
  }
  return bos;
}

absl::Status CheckDecoder(const JsonObject& root) {
  RECURVE_ASSIGN_OR_RETURN(const JsonObject decoder, root.Object("decoder"));
  RECURVE_RETURN_IF_ERROR(decoder.StringOneOf("type", {"ByteLevel"}).status());
  return CheckByteLevelKeys(decoder);
}

}  // namespace recurve
