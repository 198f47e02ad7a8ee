#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/checkpoint/quote.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/byte_vocabulary.h"
#include "engine/tokenizer/tokenizer_json_pipeline.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// Moves the value out of `key`, leaving null.
json TakeValue(json* object, const char* key) {
  const auto found = object->find(key);
  return found == object->end() ? json() : std::exchange(*found, json());
}

absl::Status ReadVocabulary(const JsonObject& model, const json& vocab,
                            ByteVocabulary* vocabulary) {
  if (!vocab.is_object()) {
    return model.Invalid("vocab", absl::StrCat("is ", DescribeJson(vocab),
                                               "; expected an object"));
  }
  for (const auto& item : vocab.items()) {
    const std::string key = absl::StrCat("vocab[", Quote(item.key()), "]");
    int64_t id = 0;
    if (!ReadInt(item.value(), &id)) {
      return model.Invalid(key, absl::StrCat("is ", DescribeJson(item.value()),
                                             "; expected a token id"));
    }
    const absl::Status added = vocabulary->AddToken(item.key(), id);
    if (!added.ok()) return model.Invalid(key, added.message());
  }
  return absl::OkStatus();
}

// A merge is "a b" or ["a", "b"].
std::optional<std::pair<absl::string_view, absl::string_view>> ParseMerge(
    const json& merge) {
  if (merge.is_string()) {
    const absl::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == absl::string_view::npos) return std::nullopt;
    return std::make_pair(text.substr(0, space), text.substr(space + 1));
  }
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() ||
      !merge[1].is_string()) {
    return std::nullopt;
  }
  return std::make_pair(
      absl::string_view(merge[0].get_ref<const std::string&>()),
      absl::string_view(merge[1].get_ref<const std::string&>()));
}

absl::Status ReadMerges(const JsonObject& model, const json& merges,
                        ByteVocabulary* vocabulary) {
  if (!merges.is_array()) {
    return model.Invalid("merges", absl::StrCat("is ", DescribeJson(merges),
                                                "; expected a list"));
  }
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto key = [i] { return absl::StrCat("merges[", i, "]"); };
    const auto pair = ParseMerge(merges[i]);
    if (!pair.has_value()) {
      return model.Invalid(key(),
                           absl::StrCat("is ", DescribeJson(merges[i]),
                                        "; expected 'a b' or ['a', 'b']"));
    }
    const absl::Status added = vocabulary->AddMerge(pair->first, pair->second);
    if (!added.ok()) return model.Invalid(key(), added.message());
  }
  return absl::OkStatus();
}

// Options without effect are accepted; those that change tokens are not.
absl::StatusOr<Bpe::Options> ReadModelOptions(
    const JsonObject& model, bool byte_level,
    const ByteVocabulary& vocabulary) {
  RECURVE_RETURN_IF_ERROR(model.CheckNoUnknownKeys(
      {"type", "dropout", "unk_token", "continuing_subword_prefix",
       "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
       "vocab", "merges"}));
  RECURVE_RETURN_IF_ERROR(model.DoubleOr("dropout", 0, 0, 0).status());
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    RECURVE_RETURN_IF_ERROR(model.StringOneOf(key, {""}, "").status());
  }
  Bpe::Options options;
  RECURVE_ASSIGN_OR_RETURN(options.ignore_merges,
                           model.BoolOr("ignore_merges", false));
  RECURVE_ASSIGN_OR_RETURN(options.fuse_unk, model.BoolOr("fuse_unk", false));
  if (model.Has("unk_token")) {
    RECURVE_ASSIGN_OR_RETURN(const std::string unk, model.String("unk_token"));
    options.unk_id = vocabulary.Find(unk);
    if (!options.unk_id.has_value()) {
      return model.Invalid(
          "unk_token",
          absl::StrCat("is ", Quote(unk), "; expected a token of model.vocab"));
    }
  }
  RECURVE_ASSIGN_OR_RETURN(const bool byte_fallback,
                           model.BoolOr("byte_fallback", false));
  options.characters = !byte_level;
  if (byte_fallback && !byte_level) {
    options.fallback_ids.emplace();
    for (int byte = 0; byte < 256; ++byte) {
      (*options.fallback_ids)[byte] =
          vocabulary.Find(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
    }
  } else if (byte_fallback && vocabulary.MissingByte().has_value()) {
    return model.Invalid("byte_fallback",
                         "is true; supported for a byte-level vocabulary that "
                         "has a token for each of the 256 bytes");
  }
  return options;
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonObject& object) {
  RECURVE_RETURN_IF_ERROR(
      object.CheckNoUnknownKeys({"id", "content", "single_word", "lstrip",
                                 "rstrip", "normalized", "special"}));
  AddedToken token;
  RECURVE_ASSIGN_OR_RETURN(
      const int64_t id,
      object.Int("id", 0, std::numeric_limits<int32_t>::max()));
  token.id = static_cast<int32_t>(id);
  RECURVE_ASSIGN_OR_RETURN(token.content, object.String("content"));
  RECURVE_ASSIGN_OR_RETURN(token.single_word, object.Bool("single_word"));
  RECURVE_ASSIGN_OR_RETURN(token.lstrip, object.Bool("lstrip"));
  RECURVE_ASSIGN_OR_RETURN(token.rstrip, object.Bool("rstrip"));
  RECURVE_ASSIGN_OR_RETURN(token.normalized, object.Bool("normalized"));
  RECURVE_ASSIGN_OR_RETURN(token.special, object.Bool("special"));
  return token;
}

// `vocab` is model.vocab: it may contain an added token, with the same id. The
// reference assigns the ids of the others itself, so any other id would differ.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const JsonObject& root, const json& vocab, ByteVocabulary* vocabulary) {
  std::vector<AddedToken> tokens;
  if (!root.Has("added_tokens")) return tokens;
  RECURVE_ASSIGN_OR_RETURN(const std::vector<JsonObject> objects,
                           root.ObjectList("added_tokens"));
  int64_t next_id = static_cast<int64_t>(vocab.size());
  for (const JsonObject& object : objects) {
    RECURVE_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(object));
    const auto in_vocab = vocab.find(token.content);
    const bool is_new = in_vocab == vocab.end();
    const int64_t expected = is_new ? next_id : in_vocab->get<int64_t>();
    if (token.id != expected) {
      return object.Invalid(
          "id",
          absl::StrCat("is ", token.id, "; expected ", expected, ", ",
                       is_new ? "the next free id" : "as in model.vocab"));
    }
    next_id = std::max<int64_t>(next_id, token.id + 1);
    if (is_new) {
      const absl::Status added =
          vocabulary->AddUnreachable(token.content, token.id);
      if (!added.ok()) return object.Invalid("id", added.message());
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Replaces the spelled tokens by what they decode to: nothing for special ones.
// As in the reference, an added token is spelled as the normaliser writes it.
void DecodeTokens(const TokenDecoder& decoder, BpeTokenizer::Parts* parts) {
  std::vector<std::string>& tokens = parts->tokens;
  for (const AddedToken& token : parts->added_tokens) {
    std::string spelled = token.normalized
                              ? parts->normalizer.Normalize(token.content)
                              : token.content;
    tokens[static_cast<size_t>(token.id)] = token.special ? ""
                                            : decoder.byte_level()
                                                ? decoder.Decode(spelled).text
                                                : std::move(spelled);
  }
  if (decoder.byte_level()) return;  // the others are bytes already
  parts->byte_tokens.resize(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    TokenDecoder::Text decoded = decoder.Decode(tokens[id]);
    tokens[id] = std::move(decoded.text);
    parts->byte_tokens[id] = decoded.is_byte;
    if (decoded.first.has_value()) {
      parts->first_texts.emplace(static_cast<int32_t>(id),
                                 *std::move(decoded.first));
    }
  }
  parts->strip = decoder.strip();
}

// The token before a text; `bos` is that of the file itself.
std::optional<int32_t> ChooseBegin(const BeginOfText& begin,
                                   const std::vector<AddedToken>& added_tokens,
                                   const ByteVocabulary& vocabulary,
                                   std::optional<int32_t> bos) {
  if (!begin.add.has_value()) return bos;
  if (!*begin.add) return std::nullopt;
  for (const AddedToken& token : added_tokens) {
    if (token.content == begin.token) return token.id;
  }
  const std::optional<int32_t> found = vocabulary.Find(begin.token);
  return found.has_value() ? found : bos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizerJson(
    const std::string& file, absl::string_view text, int32_t vocab_size,
    const BeginOfText& begin) {
  RECURVE_ASSIGN_OR_RETURN(json value, ParseJson(text, file, kMaxDepth));
  // The vocabulary is moved, not copied.
  json vocab;
  json merges;
  if (value.is_object() && value.contains("model") &&
      value["model"].is_object()) {
    vocab = TakeValue(&value["model"], "vocab");
    merges = TakeValue(&value["model"], "merges");
  }
  RECURVE_ASSIGN_OR_RETURN(const JsonObject root,
                           JsonObject::Make(file, std::move(value)));
  RECURVE_RETURN_IF_ERROR(root.CheckNoUnknownKeys(
      {"version", "truncation", "padding", "added_tokens", "normalizer",
       "pre_tokenizer", "post_processor", "decoder", "model"}));
  RECURVE_RETURN_IF_ERROR(root.StringOneOf("version", {"1.0"}, "1.0").status());
  RECURVE_ASSIGN_OR_RETURN(const JsonObject model, root.Object("model"));
  // The oldest files have no type: they are all BPE.
  RECURVE_RETURN_IF_ERROR(model.StringOneOf("type", {"BPE"}, "BPE").status());
  RECURVE_ASSIGN_OR_RETURN(Normalizer normalizer, ReadNormalizer(root));
  RECURVE_ASSIGN_OR_RETURN(JsonPreTokenizer pre, ReadPreTokenizer(root));
  RECURVE_ASSIGN_OR_RETURN(const TokenDecoder decoder,
                           ReadDecoder(root, pre.byte_level));
  ByteVocabulary vocabulary(
      vocab_size, pre.byte_level ? ByteVocabulary::Spelling::kByteLevel
                                 : ByteVocabulary::Spelling::kPlain);
  RECURVE_RETURN_IF_ERROR(ReadVocabulary(model, vocab, &vocabulary));
  RECURVE_RETURN_IF_ERROR(ReadMerges(model, merges, &vocabulary));
  RECURVE_ASSIGN_OR_RETURN(const Bpe::Options options,
                           ReadModelOptions(model, pre.byte_level, vocabulary));
  RECURVE_ASSIGN_OR_RETURN(std::vector<AddedToken> added_tokens,
                           ReadAddedTokens(root, vocab, &vocabulary));
  RECURVE_ASSIGN_OR_RETURN(std::optional<int32_t> bos,
                           ReadPostProcessor(root, vocab_size));
  bos = ChooseBegin(begin, added_tokens, vocabulary, bos);
  std::vector<std::string> tokens = vocabulary.TakeTokens();
  BpeTokenizer::Parts parts{
      kHuggingFaceKind,
      std::move(tokens),
      Bpe(vocabulary.TakeVocabulary(), vocabulary.TakeMerges(), options),
      std::move(pre.pre_tokenizer),
      std::move(added_tokens),
      std::move(normalizer),
      bos};
  DecodeTokens(decoder, &parts);
  return std::make_unique<BpeTokenizer>(vocab_size, std::move(parts));
}

}  // namespace recurve
