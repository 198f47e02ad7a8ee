#include "engine/tokenizer/tokenizer_json_pipeline.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/utf8.h"

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

// With Isolated, the matches and the text between them are pieces. Removed,
// inverted, drops the text between the matches.
absl::StatusOr<PreTokenizer::Step> ReadSplit(const JsonObject& part) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "pattern", "behavior", "invert"}));
  RECURVE_ASSIGN_OR_RETURN(
      const std::string behavior,
      part.StringOneOf("behavior", {"Isolated", "Removed"}));
  RECURVE_ASSIGN_OR_RETURN(const bool invert, part.Bool("invert"));
  const bool matches_only = behavior == "Removed";
  if (matches_only && !invert) {
    return part.Invalid("invert",
                        "is false; expected true, as behavior is 'Removed'");
  }
  RECURVE_ASSIGN_OR_RETURN(const JsonObject pattern, part.Object("pattern"));
  RECURVE_RETURN_IF_ERROR(pattern.CheckNoUnknownKeys({"Regex"}));
  RECURVE_ASSIGN_OR_RETURN(SplitPattern regex, MakePattern(pattern, "Regex"));
  return PreTokenizer::Step{std::move(regex), matches_only, std::nullopt};
}

absl::StatusOr<PreTokenizer::Step> ReadDigits(const JsonObject& part) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "individual_digits"}));
  RECURVE_ASSIGN_OR_RETURN(const bool each, part.Bool("individual_digits"));
  RECURVE_ASSIGN_OR_RETURN(SplitPattern pattern,
                           SplitPattern::Make(each ? R"(\p{N})" : R"(\p{N}+)"));
  return PreTokenizer::Step{std::move(pattern), false, std::nullopt};
}

// One character of text, which is not part of another one.
absl::StatusOr<std::string> ReadCharacter(const JsonObject& part,
                                          const std::string& key) {
  RECURVE_ASSIGN_OR_RETURN(std::string text, part.String(key));
  char32_t code = 0;
  const size_t size = DecodeCharacter(text, &code);
  if (size == 0 || size != text.size()) {
    return part.Invalid(
        key, absl::StrCat("is ", Quote(text), "; expected one character"));
  }
  return text;
}

struct Replacement {
  std::string from;
  std::string to;
};

// So that all replacements together do not fill the memory.
constexpr size_t kMaxGrowth = 16;

// Multiplies *growth, which is that of earlier replacements.
absl::StatusOr<Replacement> ReadReplace(const JsonObject& part,
                                        size_t* growth) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "pattern", "content"}));
  RECURVE_ASSIGN_OR_RETURN(const JsonObject pattern, part.Object("pattern"));
  RECURVE_RETURN_IF_ERROR(pattern.CheckNoUnknownKeys({"String"}));
  Replacement replacement;
  RECURVE_ASSIGN_OR_RETURN(replacement.from, pattern.String("String"));
  if (replacement.from.empty()) {
    return pattern.Invalid("String", "is empty; expected a character at least");
  }
  RECURVE_ASSIGN_OR_RETURN(replacement.to, part.String("content"));
  const size_t from = replacement.from.size();
  *growth *= std::max<size_t>(1, (replacement.to.size() + from - 1) / from);
  if (*growth > kMaxGrowth) {
    return part.Invalid(
        "content",
        absl::StrCat("makes a text up to ", *growth,
                     " times as long; expected at most ", kMaxGrowth));
  }
  return replacement;
}

// A pre-tokenizer or a decoder. `add_prefix_space` is an older key, and must
// agree with `prepend_scheme`, as in the reference; `str_rep` has no effect.
absl::StatusOr<PreTokenizer::Metaspace> ReadMetaspace(const JsonObject& part) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "replacement", "prepend_scheme", "split",
                               "add_prefix_space", "str_rep"}));
  PreTokenizer::Metaspace metaspace;
  RECURVE_ASSIGN_OR_RETURN(metaspace.symbol,
                           ReadCharacter(part, "replacement"));
  RECURVE_ASSIGN_OR_RETURN(
      const std::string scheme,
      part.StringOneOf("prepend_scheme", {"always", "first", "never"},
                       "always"));
  metaspace.prepend = scheme == "always"  ? Prepend::kAlways
                      : scheme == "first" ? Prepend::kFirst
                                          : Prepend::kNever;
  RECURVE_ASSIGN_OR_RETURN(const bool prefix,
                           part.BoolOr("add_prefix_space", true));
  if (!prefix && metaspace.prepend != Prepend::kNever) {
    return part.Invalid("add_prefix_space",
                        absl::StrCat("is false; expected true, as "
                                     "prepend_scheme is '",
                                     scheme, "'"));
  }
  RECURVE_ASSIGN_OR_RETURN(metaspace.split, part.BoolOr("split", true));
  return metaspace;
}

absl::StatusOr<PreTokenizer::Step> ReadStep(const JsonObject& part,
                                            const std::string& type) {
  if (type == "Split") return ReadSplit(part);
  if (type == "Digits") return ReadDigits(part);
  RECURVE_ASSIGN_OR_RETURN(PreTokenizer::Metaspace metaspace,
                           ReadMetaspace(part));
  return PreTokenizer::Step{std::nullopt, false, std::move(metaspace)};
}

absl::Status AddByteLevel(const JsonObject& part,
                          std::vector<PreTokenizer::Step>* steps) {
  RECURVE_RETURN_IF_ERROR(CheckByteLevelKeys(part));
  RECURVE_ASSIGN_OR_RETURN(const bool add_prefix_space,
                           part.Bool("add_prefix_space"));
  RECURVE_ASSIGN_OR_RETURN(const bool use_regex,
                           part.BoolOr("use_regex", true));
  if (add_prefix_space) steps->push_back({});
  if (use_regex) {
    RECURVE_ASSIGN_OR_RETURN(SplitPattern gpt2,
                             SplitPattern::Make(kGpt2Pattern));
    steps->push_back({std::move(gpt2), false, std::nullopt});
  }
  return absl::OkStatus();
}

// The decoders so far. What the last one made decides what may follow.
struct DecoderChain {
  enum class Place { kTexts, kBytes, kFused, kStripped };
  Place place = Place::kTexts;
  size_t growth = 1;  // of all replacements together
  TokenDecoder::Options options;
};

absl::Status ReadStrip(const JsonObject& part, TokenDecoder::Options* options) {
  RECURVE_RETURN_IF_ERROR(
      part.CheckNoUnknownKeys({"type", "content", "start", "stop"}));
  RECURVE_ASSIGN_OR_RETURN(std::string content, ReadCharacter(part, "content"));
  // Streaming would have to hold back the end of a text.
  RECURVE_RETURN_IF_ERROR(part.Int("stop", 0, 0).status());
  RECURVE_ASSIGN_OR_RETURN(const int64_t start, part.Int("start", 0, 1));
  if (start == 1) options->strip = std::move(content);
  return absl::OkStatus();
}

// Adds a decoder to those before it. Tokens become texts, then bytes become
// texts, then all of them become one text, and then that is stripped.
absl::Status AddDecoder(const JsonObject& part, const std::string& type,
                        DecoderChain* chain) {
  using Place = DecoderChain::Place;
  TokenDecoder::Options* options = &chain->options;
  const auto misplaced = [&](absl::string_view expected) {
    return part.Invalid(
        "type", absl::StrCat("is '", type, "' here; expected ", expected));
  };
  if (type == "Replace" || type == "Metaspace") {
    if (chain->place != Place::kTexts) {
      return misplaced("it before ByteFallback, Fuse and Strip");
    }
    if (type == "Replace") {
      RECURVE_ASSIGN_OR_RETURN(Replacement replacement,
                               ReadReplace(part, &chain->growth));
      options->steps.push_back({std::move(replacement.from),
                                std::move(replacement.to),
                                /*drop_at_start=*/false});
      return absl::OkStatus();
    }
    RECURVE_ASSIGN_OR_RETURN(PreTokenizer::Metaspace metaspace,
                             ReadMetaspace(part));
    const bool drops =
        metaspace.prepend != PreTokenizer::Metaspace::Prepend::kNever;
    options->steps.push_back({std::move(metaspace.symbol), " ", drops});
    return absl::OkStatus();
  }
  if (type == "Strip") {
    const bool drops = std::any_of(
        options->steps.begin(), options->steps.end(),
        [](const TokenDecoder::Step& step) { return step.drop_at_start; });
    if (chain->place != Place::kFused || drops) {
      return misplaced("it once, after Fuse, and without a Metaspace");
    }
    chain->place = Place::kStripped;
    return ReadStrip(part, options);
  }
  RECURVE_RETURN_IF_ERROR(part.CheckNoUnknownKeys({"type"}));
  const Place next = type == "ByteFallback" ? Place::kBytes : Place::kFused;
  if (chain->place >= next) {
    return misplaced("ByteFallback, Fuse and Strip once, in this order");
  }
  if (type == "ByteFallback") options->byte_fallback = true;
  chain->place = next;
  return absl::OkStatus();
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

absl::StatusOr<Normalizer> ReadNormalizer(const JsonObject& root) {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> parts,
                           Parts(root, "normalizer", "normalizers",
                                 {"NFC", "Prepend", "Replace", "Sequence"}));
  std::vector<Normalizer::Step> steps;
  size_t growth = 1;
  for (const JsonObject& part : parts) {
    RECURVE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    Normalizer::Step step;
    if (type == "Prepend") {
      RECURVE_RETURN_IF_ERROR(part.CheckNoUnknownKeys({"type", "prepend"}));
      step.kind = Normalizer::Step::Kind::kPrepend;
      RECURVE_ASSIGN_OR_RETURN(step.to, part.String("prepend"));
    } else if (type == "Replace") {
      RECURVE_ASSIGN_OR_RETURN(Replacement replacement,
                               ReadReplace(part, &growth));
      step = {Normalizer::Step::Kind::kReplace, std::move(replacement.from),
              std::move(replacement.to)};
    }
    steps.push_back(std::move(step));
  }
  return Normalizer(std::move(steps));
}

absl::StatusOr<JsonPreTokenizer> ReadPreTokenizer(const JsonObject& root) {
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<JsonObject> parts,
      Parts(root, "pre_tokenizer", "pretokenizers",
            {"ByteLevel", "Split", "Digits", "Metaspace", "Sequence"}));
  std::vector<PreTokenizer::Step> steps;
  bool byte_level = false;
  for (const JsonObject& part : parts) {
    RECURVE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if (byte_level) {
      return part.Invalid("type", absl::StrCat("is '", type,
                                               "'; expected nothing after "
                                               "ByteLevel"));
    }
    if (type == "ByteLevel") {
      byte_level = true;
      RECURVE_RETURN_IF_ERROR(AddByteLevel(part, &steps));
      continue;
    }
    RECURVE_ASSIGN_OR_RETURN(PreTokenizer::Step step, ReadStep(part, type));
    steps.push_back(std::move(step));
  }
  return JsonPreTokenizer{PreTokenizer(std::move(steps)), byte_level};
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

absl::StatusOr<TokenDecoder> ReadDecoder(const JsonObject& root,
                                         bool byte_level) {
  if (!root.Has("decoder")) {
    return root.Invalid("decoder", byte_level ? "is missing; expected ByteLevel"
                                              : "is missing; expected one");
  }
  RECURVE_ASSIGN_OR_RETURN(
      const std::vector<JsonObject> parts,
      Parts(root, "decoder", "decoders",
            {"ByteLevel", "Replace", "Metaspace", "ByteFallback", "Fuse",
             "Strip", "Sequence"}));
  DecoderChain chain;
  chain.options.byte_level = byte_level;
  for (const JsonObject& part : parts) {
    RECURVE_ASSIGN_OR_RETURN(const std::string type, part.String("type"));
    if ((type == "ByteLevel") != byte_level ||
        (byte_level && parts.size() > 1)) {
      return part.Invalid(
          "type",
          absl::StrCat("is '", type, "'; expected ",
                       byte_level ? "ByteLevel alone, as the pre_tokenizer"
                                  : "another decoder, as the pre_tokenizer "
                                    "has no ByteLevel"));
    }
    if (byte_level) {
      RECURVE_RETURN_IF_ERROR(CheckByteLevelKeys(part));
    } else {
      RECURVE_RETURN_IF_ERROR(AddDecoder(part, type, &chain));
    }
  }
  if (parts.empty() && byte_level) {
    return root.Invalid("decoder", "is empty; expected ByteLevel");
  }
  return TokenDecoder(std::move(chain.options));
}

}  // namespace recurve
